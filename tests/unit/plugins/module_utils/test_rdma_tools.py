# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What RDMA tools print is read right, whatever terminals, launchers and web forms did to it, and no text raises."""

from __future__ import annotations

import html
import importlib
import json
import pathlib
import quopri
import re
import textwrap
import time
import typing as t

import pytest
import yaml
from ansible_collections.gpufabric.cluster.plugins.module_utils._captured_text import unpacked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FIXTURES = pathlib.Path(__file__).parents[3] / "fixtures" / "rdma_tools"
PACKAGE = "ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools"
TOOLS = (
    "ibdev2netdev",
    "iblinkinfo",
    "ibnetdiscover",
    "ibstat",
    "ibstatus",
    "ibv_devinfo",
    "lldp",
    "mlnx_qos",
    "mlxlink",
    "rdma_link",
    "show_gids",
)
OF_HOSTS = (
    "ibdev2netdev",
    "ibstat",
    "ibstatus",
    "ibv_devinfo",
    "mlnx_qos",
    "rdma_link",
    "show_gids",
)  # run on every node
CAPTURES = {path.stem: path.read_text() for path in sorted(FIXTURES.glob("*.txt"))}


def tool_of(capture: str) -> str:
    return next(tool for tool in TOOLS if capture.startswith(tool + "_"))


def parser(tool: str) -> t.Callable[[str], dict[str, t.Any]]:
    return t.cast(
        "t.Callable[[str], dict[str, t.Any]]", getattr(importlib.import_module(f"{PACKAGE}.{tool}"), f"parse_{tool}")
    )


def parse(capture: str, text: str | None = None) -> dict[str, t.Any]:
    return parser(tool_of(capture))(CAPTURES[capture] if text is None else text)


def told(answer: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """An answer without what a label adds (the host) and what stands around the tool's own lines."""

    def without_host(value: t.Any) -> t.Any:
        if isinstance(value, dict):
            return {key: without_host(inner) for key, inner in value.items() if key != "host"}
        return [without_host(inner) for inner in value] if isinstance(value, list) else value

    return {key: without_host(value) for key, value in answer.items() if key not in ("unparsed", "errors", "host")}


def as_json(value: t.Any) -> t.Any:
    return json.loads(json.dumps(value))


OF_HOSTS_CAPTURES = [name for name in CAPTURES if tool_of(name) in OF_HOSTS]


@pytest.mark.parametrize("capture", CAPTURES)
def test_every_value_is_read(capture: str) -> None:
    wanted = json.loads((FIXTURES / f"{capture}.json").read_text())
    found = as_json(parse(capture))
    assert {key: found.get(key) for key in wanted} == wanted


# ---- what happens to captures on their way -------------------------------------------------------------------------------


def each_line(text: str, change: t.Callable[[int, str], str]) -> str:
    return "".join(change(number, line) + "\n" for number, line in enumerate(text.splitlines()))


def html_of(text: str) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;")
    return "<pre>\n" + escaped.replace("\t", "&nbsp;&nbsp;&nbsp;&nbsp;").replace("\n", "<br />\n") + "</pre>\n"


def yaml_element(_number: int, line: str) -> str:
    return yaml.safe_dump([line], width=10**6).rstrip("\n")


WAYS: dict[str, t.Callable[[str], str]] = {
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
    "old line ends": lambda text: text.replace("\n", "\r"),
    "colours": lambda text: each_line(text, lambda _, line: f"\x1b[1;32m{line}\x1b(B\x1b[m"),
    "colours with lost escapes": lambda text: each_line(text, lambda _, line: f"[32m{line}[0m"),
    "cat -v": lambda text: each_line(text, lambda _, line: f"^[[1m{line}^[[0m"),
    "byte order mark": lambda text: "\ufeff" + text,
    "tabs to blanks": lambda text: text.expandtabs(8),
    "lost indentation": lambda text: each_line(text, lambda _, line: line.strip()),
    "deeper indentation": lambda text: each_line(text, lambda _, line: "      " + line),
    "blank lines between": lambda text: text.replace("\n", "\n\n"),
    "no last line end": lambda text: text.rstrip("\n"),
    "typographic quotes": lambda text: text.replace(" '", " \u2018").replace("'", "\u2019"),
    "a mail's quotes": lambda text: each_line(text, lambda _, line: "> " + line),
    "a mail quoted twice": lambda text: each_line(text, lambda _, line: ">> " + line),
    "a comment in a script": lambda text: each_line(text, lambda _, line: "# " + line),
    "a comment in C": lambda text: each_line(text, lambda _, line: " * " + line),
    "pdsh": lambda text: each_line(text, lambda _, line: "gpu-7: " + line),
    "pdsh with domains": lambda text: each_line(text, lambda _, line: "gpu-7.site.example: " + line),
    "srun --label": lambda text: each_line(text, lambda _, line: "0: " + line),
    "mpirun --tag-output": lambda text: each_line(text, lambda _, line: "[1,3]<stdout>:" + line),
    "docker compose": lambda text: each_line(text, lambda _, line: "node-1  | " + line),
    "kubectl logs --prefix": lambda text: each_line(text, lambda _, line: "[pod/nccl-0/main] " + line),
    "kubectl logs --timestamps": lambda text: each_line(
        text, lambda n, line: f"2026-11-02T10:00:{n % 60:02}.123456789Z {line}"
    ),
    "the journal": lambda text: each_line(text, lambda n, line: f"Nov  2 10:00:{n % 60:02} gpu-7 check[4711]: {line}"),
    "grep -n": lambda text: each_line(text, lambda n, line: f"{n + 1}:{line}"),
    "cat -n": lambda text: each_line(text, lambda n, line: f"{n + 1:6}\t{line}"),
    "ansible": lambda text: "gpu-7 | CHANGED | rc=0 >>\n" + text,
    "clush -b": lambda text: "-" * 15 + "\ngpu-[7-9] (3)\n" + "-" * 15 + "\n" + text,
    "dshbak": lambda text: "-" * 16 + "\ngpu-7\n" + "-" * 16 + "\n" + text,
    "tail of files": lambda text: "==> gpu-7.txt <==\n" + text,
    "a prompt": lambda text: "[root@gpu-7 ~]# the-tool --option\n" + text + "[root@gpu-7 ~]# \n",
    "another prompt": lambda text: "(base) user@gpu-7:~/x$ sudo the-tool\n" + text + "(base) user@gpu-7:~/x$ exit\n",
    "set -x": lambda text: "+ the-tool -v\n" + text,
    "a fence": lambda text: "```console\n$ the-tool\n" + text + "```\n",
    "a web page": html_of,
    "one JSON string": lambda text: json.dumps(text),
    "Ansible's lines in JSON": lambda text: (
        'ok: [gpu-7] => {\n    "answer.stdout_lines": [\n'
        + ",\n".join(f"        {json.dumps(line)}" for line in text.splitlines())
        + "\n    ]\n}\n"
    ),
    "Ansible's lines in YAML": lambda text: "stdout_lines:\n" + each_line(text, yaml_element),
    "blanks of a mail read as Latin-1": lambda text: text.replace("\t", "        ").replace(
        "  ", "\u00c2\u00a0\u00c2 "
    ),
    "a pane of tmux": lambda text: each_line(text.expandtabs(8), lambda _, line: f"\u2502{line:<120}\u2502"),
    "a logger's brackets": lambda text: each_line(
        text, lambda n, line: f"[2026-11-02T10:00:{n % 60:02}.5+01:00 check:{n} probe.cc:16{n % 7} INFO] {line}"
    ),
    "srun's tasks": lambda text: each_line(text, lambda _, line: f"task 3: {line}"),
    "stern": lambda text: each_line(text, lambda _, line: f"nccl-0 main {line}"),
    "Docker's JSON": lambda text: each_line(
        text, lambda _, line: json.dumps({"log": line + "\n", "stream": "stdout", "time": "2026-11-02T10:00:00Z"})
    ),
    "a log store": lambda text: each_line(
        text, lambda _, line: "2026-11-02 10:00:00.123\t" + json.dumps({"stream": "stdout", "log": line})
    ),
    "a box": lambda text: "+---+\n" + each_line(text.expandtabs(8), lambda _, line: f"| {line:<150} |") + "+---+\n",
    "bars of a mail": lambda text: each_line(text, lambda _, line: "| " + line),
    "cat -n without its tab": lambda text: each_line(text, lambda n, line: f"{n + 1:6}  {line}"),
    "Markdown's escapes": lambda text: each_line(text, lambda _, line: re.sub(r"([_*#\[\]])", r"\\\1", line) + "  "),
    "a logger of Python": lambda text: each_line(
        text, lambda n, line: f"2026-11-02 10:00:{n % 60:02},{n % 1000:03} - probe - INFO - {line}"
    ),
    "a logger of C++": lambda text: each_line(
        text, lambda n, line: f"I1102 10:00:{n % 60:02}.{n:06} {4711 + n:6} probe.cc:{70 + n}] {line}"
    ),
    "Ray": lambda text: each_line(text, lambda _, line: f"(probe pid=771, ip=10.0.0.7) {line}"),
    "a kernel's clock": lambda text: each_line(text, lambda n, line: f"[{n + 100}.123456] {line}"),
    "a pane's right edge": lambda text: each_line(text.expandtabs(8), lambda _, line: f"{line:<150}|"),
    "a list of Python": lambda text: "[\n" + each_line(text, lambda _, line: f"    {line!r},") + "]\n",
    "a list of Python that begins behind its name": lambda text: (
        "    answer = [" + ",\n              ".join(map(repr, text.splitlines())) + "]\n"
    ),
    "bat": lambda text: each_line(text, lambda n, line: f"\x1b[90m{n + 1:>4} | \x1b[0m{line}"),
    "a table of CSV": lambda text: (
        "when,node,said\n"
        + each_line(text, lambda n, line: f'2026-11-02 10:00:{n % 60:02},gpu-7,"' + line.replace('"', '""') + '"')
    ),
    "one cell of CSV": lambda text: 'node,status,said\ngpu-7,0,"' + text.replace('"', '""') + '"\n',
    "logfmt": lambda text: each_line(
        text, lambda n, line: f'time="2026-11-02T10:00:{n % 60:02}Z" level=info said={json.dumps(line)} unit=check'
    ),
    "records under any name": lambda text: each_line(
        text, lambda n, line: json.dumps({"at": f"2026-11-02T10:00:{n % 60:02}Z", "node": "gpu-7", "said": line})
    ),
    "records within records": lambda text: each_line(
        text, lambda _, line: json.dumps({"_source": {"line_of": {"probe": line}, "host": {"name": "gpu-7"}}})
    ),
    "a document of JSON": lambda text: json.dumps({"gpu-7": {"status": 0, "said": text, "errors": ""}}, indent=2),
    "a notebook": lambda text: json.dumps(
        {"cells": [{"outputs": [{"name": "stdout", "text": [line + "\n" for line in text.splitlines()]}]}]}, indent=1
    ),
    "quoted-printable": lambda text: "X-Kind: mail=20\n" + quopri.encodestring(text.encode()).decode(),
    "YAML's folded string": lambda text: yaml.safe_dump({"gpu-7": {"said": text, "status": 0}}, width=90),
    "CDATA of XML": lambda text: f'<?xml version="1.0"?>\n<answer node="gpu-7"><![CDATA[{text}]]></answer>\n',
    "text of XML": lambda text: f"<answer><asked>all</asked><said>{html.escape(text)}</said></answer>\n",
    "a table of HTML": lambda text: (
        "<table>\n"
        + each_line(
            text,
            lambda n, line: f"<tr><td>{n + 1}</td><td>{html.escape(line).replace(' ', '&nbsp;')}</td></tr>",
        )
        + "</table>\n"
    ),
    "a table of Markdown": lambda text: (
        "| line | text |\n|---|---|\n" + each_line(text, lambda n, line: f"| {n + 1} | `{line}` |")
    ),
    "strings of C": lambda text: (
        "static const char said[] =\n" + each_line(text, lambda _, line: "\t" + json.dumps(line + "\n")) + "\t;\n"
    ),
    "a mapping of Python": lambda text: repr({"status": 0, "said": text}) + "\n",
    "Ansible's own log": lambda text: each_line(
        text, lambda n, line: f"2026-11-02 10:00:01,{n % 1000:03} p=77 u=root n=ansible INFO| {line}"
    ),
    "one line of Ansible's JSON": lambda text: (
        "gpu-7 | CHANGED => "
        + json.dumps({"rc": 0, "stdout": text.strip("\n"), "stdout_lines": text.splitlines()})
        + "\n"
    ),
    "a list of records": lambda text: json.dumps(
        [{"at": f"2026-11-02T10:00:{n % 60:02}Z", "said": line} for n, line in enumerate(text.splitlines())], indent=2
    ),
    "cat -A": lambda text: each_line(text, lambda _, line: line.replace("\t", "^I") + "$"),
    "carriage returns that cat -v shows": lambda text: each_line(text, lambda _, line: line + "^M"),
    "one message of syslog": lambda text: (
        "Nov  2 10:00:01 gpu-7 check[7]: " + text.strip("\n").replace("\n", "#012").replace("\t", "#011") + "\n"
    ),
    "a terminal's shifts": lambda text: each_line(text, lambda _, line: f"\x1b[1m{line}\x1b[m\x0f"),
    "the journal's fields": lambda text: each_line(
        text, lambda n, line: f"Mon 10:00 CET [i={n}]\n    PRIORITY=6\n    MESSAGE={line}"
    ),
    "a row of a database": lambda text: "  node: gpu-7\n  said: " + text + "1 row\n",
    "Perl's dump": lambda text: "$VAR1 = '" + text.replace("'", "\\'") + "';\n",
    "one line of HTML": lambda text: "".join(f"<div>{html.escape(line) or '<br>'}</div>" for line in text.splitlines()),
    "a log shipper's mappings": lambda text: each_line(
        text, lambda n, line: f'[{n}] check: [{n}.5, {{"said"=>{json.dumps(line)}, "node"=>"gpu-7"}}]'
    ),
    "logfmt with the whole of it": lambda text: f'level=error unit="a check" said={json.dumps(text)} code=1\n',
    "a chat's fence": lambda text: json.dumps({"user": "U7", "text": f"look:\n```{text.strip()}```"}) + "\n",
    "pdsh behind ts, within a report": lambda text: (
        "It fails on rack 7.\n\n```\n"
        + each_line(text, lambda n, line: f"Nov 02 10:00:{n % 60:02} gpu-7: {line}")
        + "```\n\n"
        + "Any hint is welcome.\n" * 9
    ),
    "a debugger": lambda text: f"$1 = {json.dumps(text)}\n",
    "script(1)": lambda text: "Script started on 2026-11-02\n" + text + "\nScript done on 2026-11-02\n",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("capture", [name for name in CAPTURES if tool_of(name) in ("iblinkinfo", "ibnetdiscover")])
def test_the_way_of_a_whole_fabric_changes_nothing(capture: str, way: str) -> None:
    assert told(parse(capture, WAYS[way](CAPTURES[capture]))) == told(parse(capture))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("capture", OF_HOSTS_CAPTURES)
def test_the_way_of_a_capture_changes_nothing(capture: str, way: str) -> None:
    assert told(parse(capture, WAYS[way](CAPTURES[capture]))) == told(parse(capture))


@pytest.mark.parametrize("capture", [name for name in CAPTURES if tool_of(name) not in OF_HOSTS])
@pytest.mark.parametrize(
    "way",
    [
        "carriage returns",
        "colours",
        "colours with lost escapes",
        "byte order mark",
        "blank lines between",
        "no last line end",
        "deeper indentation",
    ],
)
def test_the_way_of_a_fabric_capture_changes_nothing(capture: str, way: str) -> None:
    assert told(parse(capture, WAYS[way](CAPTURES[capture]))) == told(parse(capture))


@pytest.mark.parametrize("tool", ["ibdev2netdev", "rdma_link", "show_gids"])
def test_wider_gaps_change_nothing(tool: str) -> None:
    """`column -t` is what people put behind the tools that print tables."""
    for capture in (name for name in CAPTURES if tool_of(name) == tool):
        text = CAPTURES[capture].replace("\t", " " * 7).replace(" ", "  ")
        assert told(parse(capture, text)) == told(parse(capture))


@pytest.mark.parametrize("capture", OF_HOSTS_CAPTURES)
def test_interleaved_hosts_are_taken_apart(capture: str) -> None:
    """pdsh mixes the lines of hosts as they come; each host's are read as if alone."""
    lines = CAPTURES[capture].splitlines()
    mixed = "".join(f"gpu-1: {line}\ngpu-2: {line}\n" for line in lines)
    ordered = "".join(f"gpu-{host}: {line}\n" for host in (1, 2) for line in lines)
    assert parse(capture, mixed) == parse(capture, ordered)
    once, twice = parse(capture), parse(capture, mixed)
    lists = [key for key in once if key in ("cas", "ports", "hcas", "links", "gids", "entries", "answers")]
    assert lists
    for key in lists:
        assert [item["host"] for item in twice[key]] == ["gpu-1"] * len(once[key]) + ["gpu-2"] * len(once[key])
        assert told({key: twice[key]})[key] == once[key] * 2


def test_ranks_of_srun_are_kept_apart_but_line_numbers_are_not() -> None:
    lines = CAPTURES["ibstat_makers"].splitlines()
    labelled = "".join(f"{rank}: {line}\n" for line in lines for rank in (0, 1))
    assert [ca["host"] for ca in parse("ibstat_makers", labelled)["cas"]] == ["0"] * 6 + ["1"] * 6
    assert all("host" not in ca for ca in parse("ibstat_makers", WAYS["grep -n"](CAPTURES["ibstat_makers"]))["cas"])


def test_an_error_of_one_host_names_no_other() -> None:
    text = "gpu-1: CA 'mlx5_0'\ngpu-2: ibpanic: [7] main: stat of IB device 'mlx5_1' failed: Invalid argument\ngpu-1: \tCA type: MT4129\n"
    found = parser("ibstat")(text)
    assert found["cas"] == [{"ca": "mlx5_0", "host": "gpu-1", "ca_type": "MT4129", "ports": []}]
    assert found["unreadable_ca"] == ["mlx5_1"]


# ---- ibstat --------------------------------------------------------------------------------------------------------------


def test_messages_in_the_middle_of_a_line_are_lifted_out() -> None:
    text = (
        "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Actibwarn: [9] umad_get_ca: opened mlx5_0\nibwarn: [9] umad_get_port: port 1\nive\n"
        "\t\tRate: 40ibpanic: [9] main: stat of IB device 'mlx5_1' failed: Invalid argument\n0\n\t\tBase lid: 7\n"
    )
    found = parser("ibstat")(text)
    assert found["cas"] == [
        {"ca": "mlx5_0", "ports": [{"port": 1, "state": "Active", "rate_gbps": 400, "base_lid": 7}]}
    ]
    assert found["unreadable_ca"] == ["mlx5_1"]
    assert found["errors"] == ["ibpanic: [9] main: stat of IB device 'mlx5_1' failed: Invalid argument"]
    assert found["unparsed"] == ["ibwarn: [9] umad_get_ca: opened mlx5_0", "ibwarn: [9] umad_get_port: port 1"]


def test_a_message_after_a_whole_line_joins_nothing() -> None:
    found = parser("ibstat")("CA 'mlx5_0'\n\tPort 1:\n\t\tLink layer: InfiniBandibwarn: [9] x\nCA 'mlx5_1'\n")
    assert [ca["ca"] for ca in found["cas"]] == ["mlx5_0", "mlx5_1"]
    assert found["cas"][0]["ports"] == [{"port": 1, "link_layer": "InfiniBand"}]


@pytest.mark.parametrize(
    ("text", "names", "guids"),
    [
        ("mlx5_0\nibp12s0\nrocep1s0f0\nmlx5_bond_0\n", ["mlx5_0", "ibp12s0", "rocep1s0f0", "mlx5_bond_0"], []),
        ("$ ibstat -l\nmlx4_0\n$ ibstat mlx4_0 1\nCA: 'mlx4_0'\nPort 1:\nState: Down\n", ["mlx4_0"], []),
        ("0x0002c90300445561\n0x0002c90300445562\n", [], ["0x0002c90300445561", "0x0002c90300445562"]),
        ("#ibstat -l\nmlx4_0\n#ibstat -p\n0x0002c90300445561\n", ["mlx4_0"], ["0x0002c90300445561"]),
        ("siw_lo\nrxe_storage\nefa_0\n", ["siw_lo", "rxe_storage", "efa_0"], []),
        ("hello\nKilled\n", [], []),
    ],
)
def test_lists_of_names_and_guids(text: str, names: list[str], guids: list[str]) -> None:
    found = parser("ibstat")(text)
    assert (found["ca_names"], found["port_guids"]) == (names, guids)


def test_lines_picked_by_grep_make_ports_without_a_number() -> None:
    found = parser("ibstat")(
        "CA 'mlx4_0'\n\t\tState: Active\n\t\tRate: 56\n\t\tState: Down\n\t\tRate: 10\nCA 'mlx5_0'\n\t\tState: Armed\n"
    )
    assert [ca["ports"] for ca in found["cas"]] == [
        [{"state": "Active", "rate_gbps": 56}, {"state": "Down", "rate_gbps": 10}],
        [{"state": "Armed"}],
    ]


def test_ibstat_labels_as_people_write_them_and_a_panic_without_its_label() -> None:
    text = "main: stat of IB device 'mlx5_7' failed: No such device\nCA 'mlx5_1'\n\tport 1:\n\t\tState: Active\n\t\tRate: 200 Gb/sec (4X HDR)\n"
    answer = parser("ibstat")(text)
    assert answer["unreadable_ca"] == ["mlx5_7"]
    assert answer["cas"] == [{"ca": "mlx5_1", "ports": [{"port": 1, "state": "Active", "rate_gbps": 200}]}]


@pytest.mark.parametrize(
    "mark", ["# was 4X", "// was 4X", "<-- wrong", "-- 4X", "\u25c0\u2500 4X", "\u2190 4X", "\u2192 4X", "\u2705"]
)
@pytest.mark.parametrize("capture", ["ibstat_makers", "ibstatus_makers", "ibv_devinfo_short", "ibv_devinfo_verbose"])
def test_remarks_at_the_end_of_lines(capture: str, mark: str) -> None:
    text = "".join(f"{line}   {mark}\n" if ":" in line else line + "\n" for line in CAPTURES[capture].splitlines())
    assert told(parse(capture, text)) == told(parse(capture))


def test_remarks_emphasis_and_blackened_values() -> None:
    found = parser("ibstat")(
        "CA 'mlx5_0'   <--- this one\n\tCA type: ****\n\t**Port 1:**\n\t\t**State: Down**\n"
        "\t\tPhysical state: `Polling`\n"
        "\t\tRate: 10   # was 400\n\t\tBase lid: xxx\n\t\tPort GUID: ...\n"
    )
    assert found["cas"] == [
        {
            "ca": "mlx5_0",
            "ca_type": "****",
            "ports": [
                {
                    "port": 1,
                    "state": "Down",
                    "phys_state": "Polling",
                    "rate_gbps": 10,
                    "base_lid": "xxx",
                    "port_guid": "...",
                }
            ],
        }
    ]


def test_other_tools_in_the_same_text_change_nothing() -> None:
    """A support bundle: one file, one tool after the other; each parser takes its own and no other."""
    names = [name for name in CAPTURES if tool_of(name) in OF_HOSTS]
    for capture in names:
        others = [name for name in names if tool_of(name) != tool_of(capture)]
        bundle = "".join(
            f"##### {name}\n{CAPTURES[name]}##### rc=0\n" for name in [*others, capture, *reversed(others)]
        )
        assert told(parse(capture, bundle)) == told(parse(capture)), capture


@pytest.mark.parametrize(
    "text",
    [
        "ibpanic: [21] main: can't init UMAD library: (No such file or directory)",
        "ibpanic: [22] main: 'mlx5_9' IB device can't be found: (Success)",
        "bash: ibstat: command not found",
        "sudo: ibstat: command not found",
    ],
)
def test_without_an_answer_the_reason_stands_in_errors(text: str) -> None:
    assert parser("ibstat")(text) == {
        "cas": [],
        "ca_names": [],
        "port_guids": [],
        "unreadable_ca": [],
        "errors": [text],
        "unparsed": [],
    }


# ---- the other tools -----------------------------------------------------------------------------------------------------


def test_ibv_devinfo_lists_devices_and_drivers_that_are_missing() -> None:
    found = parser("ibv_devinfo")(
        "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs4\n"
        "2 HCAs found:\n\tmlx5_0\n\tbnxt_re1\n\n"
    )
    assert [hca["hca_id"] for hca in found["hcas"]] == ["mlx5_0", "bnxt_re1"]
    assert found["uverbs_without_driver"] == ["uverbs4"]
    assert len(found["errors"]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "No IB devices found",
        "Failed to get IB devices list: Function not implemented",
        "IB device 'mlx5_9' wasn't found",
        "Failed to open device",
    ],
)
def test_ibv_devinfo_without_devices(text: str) -> None:
    assert parser("ibv_devinfo")(text) == {"hcas": [], "uverbs_without_driver": [], "errors": [text], "unparsed": []}


def test_ibv_devinfo_lines_that_a_mail_broke() -> None:
    text = "> hca_id: mthca0\n> port: 1\n> GID[  0]:\n>\n> fe80:0000:0000:0000:0005:ad00:0003:1111\n> port: 2\n> state: PORT_DOWN (1)\n"
    ports = parser("ibv_devinfo")(text)["hcas"][0]["ports"]
    assert ports == [
        {"port": 1, "gids": [{"index": 0, "gid": "fe80:0000:0000:0000:0005:ad00:0003:1111"}]},
        {"port": 2, "gids": [], "state": "PORT_DOWN (1)"},
    ]


def test_ibv_devinfo_values_that_a_mail_broke() -> None:
    (hca,) = parser("ibv_devinfo")(
        "hca_id: nes0\n  port: 1\n    phys_state:   invalid physical\n   state (0)\n    active_width: 4X (2)\n  port: 2\n"
    )["hcas"]
    assert hca["ports"] == [
        {"port": 1, "phys_state": "invalid physical state (0)", "active_width": "4X (2)", "gids": []},
        {"port": 2, "gids": []},
    ]


def test_hosts_behind_labels_of_a_logger_that_nobody_knows() -> None:
    lines = CAPTURES["ibstat_makers"].splitlines()
    text = "".join(f"(probe pid=7{host}, ip=10.0.0.{host}) {line}\n" for line in lines for host in (1, 2))
    cas = parse("ibstat_makers", text)["cas"]
    assert [ca["host"] for ca in cas] == ["probe pid=71, ip=10.0.0.1"] * 6 + ["probe pid=72, ip=10.0.0.2"] * 6
    assert [told(ca) for ca in cas] == [told(ca) for ca in parse("ibstat_makers")["cas"]] * 2


def test_ibv_devinfo_capability_words_are_no_state() -> None:
    found = parser("ibv_devinfo")(
        "hca_id: hns_0\nphys_port_cnt: 1\ndevice_cap_flags: 0x1\nPORT_ACTIVE_EVENT\nMEM_WINDOW\n"
    )
    assert found["hcas"] == [{"hca_id": "hns_0", "phys_port_cnt": 1, "ports": []}]


@pytest.mark.parametrize(
    ("value", "wanted"), [("invalid MTU (0)", "invalid MTU (0)"), ("", ""), ("4096 (5)", 4096), ("1024", 1024)]
)
def test_ibv_devinfo_numbers_or_what_is_printed(value: str, wanted: object) -> None:
    found = parser("ibv_devinfo")(f"hca_id: rxe0\n\tport: 1\n\t\tactive_mtu:\t{value}\n")
    assert found["hcas"][0]["ports"][0]["active_mtu"] == wanted


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("port_in_name", [False, True])
def test_rdma_link_json_of_all_versions(indent: int | None, port_in_name: bool) -> None:
    wanted = parse("rdma_link_detail")
    objects = []
    for number, link in enumerate(wanted["links"]):
        name = f"{link['dev']}/{link['port']}" if port_in_name else link["dev"]
        objects.append(
            {"ifindex": number, "ifname": name, **{key: value for key, value in link.items() if key != "dev"}}
        )
    assert parser("rdma_link")(json.dumps(objects, indent=indent)) == wanted


def test_rdma_link_json_cut_in_the_middle() -> None:
    text = (
        '[{"ifindex":0,"ifname":"mlx5_0","port":1,"state":"ACTIVE","netdev":"eth1"},{"ifindex":1,"ifname":"mlx5_1","po'
    )
    found = parser("rdma_link")(text)
    assert found["ethernet"] == {"mlx5_0": "eth1"}
    assert found["unparsed"] == ['{"ifindex":1,"ifname":"mlx5_1","po']


def test_show_gids_without_routable_address_or_with_blackened_digits() -> None:
    found = parser("show_gids")(
        "roceP2p1s0f0    1   0   fe80:0000:0000:0000:xxxx:xxxx:xxxx:xxxx              v1   enP2p1\n"
        "roceP2p1s0f0    1   3   0000:0000:0000:0000:0000:ffff:c0a8:640e 192.168.100.14   v2   enP2p1\n"
        "mlx5_1  1  1  fe80:0000:0000:0000:xxxx:xxxx:xxxx:xxxx   V2  eth1\nmlx5_2 1 1 fe80::1 RoCE v2 eth2\nn_gids_found=9\n"
    )
    assert found["right_gid_index"] == {"roceP2p1s0f0": 3}
    assert found["no_routable_gid"] == ["mlx5_1", "mlx5_2"]
    assert [gid["version"] for gid in found["gids"]] == ["v1", "v2", "v2", "v2"]
    assert found["errors"] == ["show_gids counted 9 GIDs, the text holds 4"]


@pytest.mark.parametrize(
    ("rows", "index"),
    [
        (
            [("1", "fe80::1", "bond0"), ("3", "::ffff:10.0.0.1", "bond0.7"), ("5", "::ffff:10.0.0.1", "bond0")],
            5,
        ),  # before its VLAN
        (
            [("1", "fe80::1", "bond0"), ("3", "fe80::1", "bond0.7"), ("5", "::ffff:10.0.0.1", "bond0.7")],
            5,
        ),  # only the VLAN has an address
        ([("1", "fe80::1", "eth1"), ("3", "fd00::1", "eth1"), ("5", "::ffff:10.0.0.1", "eth1")], 5),  # IPv4 before IPv6
        (
            [("1", "fe80::1", "eth1"), ("2", "::ffff:169.254.1.1", "eth1"), ("3", "fd00::1", "eth1")],
            3,
        ),  # link-local IPv4 last
        ([("9", "::ffff:10.0.0.1", "net1"), ("7", "::ffff:10.0.0.1", "net1")], 7),  # a pod without the default GID
        ([("1", "fe80::1", "eth1"), ("3", "::ffff:10.0.0.1", "vxlan0")], None),
    ],
)
def test_show_gids_chooses_the_index(rows: list[tuple[str, str, str]], index: int | None) -> None:
    text = "".join(f"mlx5_0 1 {number} {gid} v2 {netdev}\n" for number, gid, netdev in rows)
    assert parser("show_gids")(text)["right_gid_index"].get("mlx5_0") == index


def test_ibdev2netdev_remarks_broken_lines_and_no_netdev() -> None:
    found = parser("ibdev2netdev")(
        "mlx5_0   port  1  ==>  ibp26s0   (Down)  # rail 1\nmlx5_1 port 1 ==>  (Down)\n"
        "0000:31:00.0 mlx5_2 (MT41692 - 900-9D3B6) BlueField-3 DPU 200GbE dual-port QSFP112,\n"
        "PCIe Gen5.0 x16 fw 32.37.1306 port 1 (DOWN  ) ==> ens3np0 (Up)\n"
    )
    assert found["map"] == {"mlx5_0": "ibp26s0", "mlx5_1": "", "mlx5_2": "ens3np0"}
    assert found["netdev_up"] == ["mlx5_2"]
    assert found["entries"][2]["fw"] == "32.37.1306"


def test_mlnx_qos_no_table_is_not_no_priority() -> None:
    assert parser("mlnx_qos")("DCBX mode: OS controlled\nPriority trust state: pcp\n")["pfc_enabled"] is None
    assert parser("mlnx_qos")("")["pfc_enabled"] is None
    cut = parser("mlnx_qos")("PFC configuration:\n\tpriority    0   1   2   3   4   5   6   7\n\tenabled     0   1   0")
    assert cut["pfc_enabled"] == [1]
    assert cut["errors"] == ["the PFC table ends after 3 of 8 priorities"]


def test_mlnx_qos_table_with_colons_is_a_table_and_a_class_keeps_its_priority() -> None:
    table = (
        "PFC configuration:\n  priority:  0   1   2   3   4   5   6   7\n  enabled:   0   0   0   0   1   0   0   0\n"
    )
    answer = parser("mlnx_qos")(table + "tc: 4 ratelimit: unlimited, tsa: ets, bw: 60%\n\t priority:  4\n")
    assert answer["pfc_enabled"] == [4]
    assert answer["tcs"][0]["priorities"] == [4]


def test_mlnx_qos_of_two_interfaces_and_with_lost_line_ends() -> None:
    text = CAPTURES["mlnx_qos_pfc"]
    second = text.replace("dscp\ndscp2prio", "pcp\ndscp2prio", 1)
    found = parser("mlnx_qos")(text + second)
    assert [answer["trust"] for answer in found["answers"]] == ["dscp", "pcp"]
    assert found["trust"] == "dscp"
    joined = "".join(line.strip() for line in text.splitlines())
    assert told(parser("mlnx_qos")("[root@gpu-1 ~]# mlnx_qos -i ens4f0" + joined)) == told(parse("mlnx_qos_pfc"))


@pytest.mark.parametrize(
    ("header", "measures", "wanted"),
    [
        # before there was a colon behind the kind, by the Perl script and by the first program
        (
            "Switch 0x0008f10400aa0102 ISR-5 Voltaire",
            " 4X 5.0 Gbps Active /   LinkUp (HOQ:15 VL_Stall:7)",
            ("4X", "5.0 Gbps", 20),
        ),
        ("Switch 0x0008f10400aa0102 ISR-5 Voltaire", " 4X  10.0 Gbps Active/  LinkUp", ("4X", "10.0 Gbps", 40)),
        # blanks lost, a rate rounded, a lane of the next generations
        ("Switch: 0x0008f10400aa0102 ISR-5 Voltaire", " 4X14.0625 Gbps Active/  LinkUp", ("4X", "14.0625 Gbps", 56)),
        ("Switch: 0x0008f10400aa0102 ISR-5 Voltaire", " 4X 25.78 Gbps Active/  LinkUp", ("4X", "25.78 Gbps", 100)),
        (
            "Switch: 0x0008f10400aa0102 ISR-5 Voltaire",
            " 2X        106.25 Gbps Active/  LinkUp) (HOQ:16 VL_Stall:7",
            ("2X", "106.25 Gbps", 200),
        ),
        (
            "Switch: 0x0008f10400aa0102 ISR-5 Voltaire",
            " 4X         212.5 Gbps Active/  LinkUp",
            ("4X", "212.5 Gbps", 800),
        ),
        (
            "Switch: 0x0008f10400aa0102 ISR-5 Voltaire",
            " 4X 10.0 Gbps (FDR10) Active/  LinkUp",
            ("4X", "10.0 Gbps (FDR10)", 40),
        ),
        (
            "Switch: 0x0008f10400aa0102 ISR-5 Voltaire",
            " 4X    Extended speed Active/  LinkUp",
            ("4X", "Extended speed", None),
        ),
    ],
)
def test_iblinkinfo_of_every_age(header: str, measures: str, wanted: tuple[str, str, float | None]) -> None:
    found = parser("iblinkinfo")(f'{header}:\n      5    7[  ] ==({measures})==>      31    1[  ] "gpu-3 HCA-2" ( )\n')
    assert found["nodes"] == [{"type": "Switch", "guid": "0x0008f10400aa0102", "name": "ISR-5 Voltaire"}]
    (link,) = found["links"]
    assert tuple(link[key] for key in ("width", "speed", "rate_gbps")) == wanted
    assert (link["state"], link["phys_state"], link["peer"], link["peer_lid"]) == (
        "Active",
        "LinkUp",
        "gpu-3 HCA-2",
        31,
    )


def test_one_line_a_host_of_ansible() -> None:
    text = (
        r"gpu-1 | CHANGED | rc=0 | (stdout) CA 'mlx5_0'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: Active" + "\n"
        r"gpu-2 | FAILED | rc=255 | (stdout) CA 'mlx5_0' (stderr) ibpanic: [4] main: stat of IB device 'mlx5_3' failed: x"
        + "\n"
    )
    found = parser("ibstat")(text)
    assert [(ca["host"], ca["ports"]) for ca in found["cas"]] == [
        ("gpu-1", [{"port": 1, "state": "Active"}]),
        ("gpu-2", []),
    ]
    assert found["unreadable_ca"] == ["mlx5_3"]


def test_iblinkinfo_of_a_port_that_was_not_answered_for() -> None:
    (link,) = parser("iblinkinfo")(
        '      5    7[  ] ==( 4X  53.125 Gbps Active/  LinkUp)==>      "Port not available"\n'
    )["links"]
    assert (link["state"], link["peer"], link["peer_port"]) == ("Active", "", None)


SOURCES = {
    "a string of one line": '\t\tstdout: "{}",\n\t}}\n\tgot := parse(stdout)\n\tif len(got) != 1 {{\n\t\tt.Fatal(got)\n\t}}\n',
    "a raw string": "\tanswer := `{}`\n\n\tgot, err := parse(answer)\n",
    "a docstring": 'ANSWER = """{}"""\n\n\ndef test_it():\n',
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("capture", ["ibstat_makers", "ibstatus_makers", "ibv_devinfo_short", "iblinkinfo_blocks"])
def test_a_string_within_a_program(source: str, capture: str) -> None:
    """Captures stand in tests as strings: with the quote right before the first line, escapes, and code around."""
    text = CAPTURES[capture].rstrip("\n")
    if source == "a string of one line":
        text = text.replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    elif source == "a docstring":
        text = text.replace("\t", "\\t")
    assert told(parse(capture, SOURCES[source].format(text))) == told(parse(capture))


def test_a_string_and_the_lines_cut_from_it_are_one_answer() -> None:
    answer = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active"
    text = json.dumps({"stdout": answer, "stdout_lines": answer.splitlines()}, indent=4)
    assert parser("ibstat")(f"gpu-1 | CHANGED => {text}\n")["cas"] == [
        {"ca": "mlx5_0", "host": "gpu-1", "ports": [{"port": 1, "state": "Active"}]}
    ]


def test_arrows_drawn_behind_a_value_are_no_part_of_it() -> None:
    found = parser("ibstat")(
        "CA 'mlx5_4'    \u2014\u2014\u2014>> the one that fails\n\tPort 1:\n\t\tState: Down------->>look\n\t\tRate: 10\u2014\u2014>slow\n"
    )
    assert found["cas"] == [{"ca": "mlx5_4", "ports": [{"port": 1, "state": "Down", "rate_gbps": 10}]}]


LEAF = "MF0;leaf-5:MQM9700/U1"


def test_iblinkinfo_diff_keeps_both_sides() -> None:
    text = (
        f"Switch: 0x08c0eb0300ab9902 {LEAF}:\n"
        '<            6    3[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>      21    1[  ] "gpu-4 HCA-1" ( )\n'
        '>            6    3[  ] ==(                Down/ Polling)==>             [  ] "" ( )\n'
        "< CA: gpu-4 HCA-1:\n"
        f'<       0x08c0eb0300ab1404     21    1[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>       6    3[  ] "{LEAF}" ( )\n'
    )
    found = parser("iblinkinfo")(text)
    assert [(node["name"], node.get("side")) for node in found["nodes"]] == [(LEAF, None), ("gpu-4 HCA-1", "<")]
    assert [(link["node"], link["state"], link["side"]) for link in found["links"]] == [
        (LEAF, "Active", "<"),
        (LEAF, "Down", ">"),
        ("gpu-4 HCA-1", "Active", "<"),
    ]
    quoted = "".join(f"> {line}\n" for line in text.splitlines()[:1]) + "> end\n"
    assert all("side" not in node for node in parser("iblinkinfo")(quoted)["nodes"])


def test_ibnetdiscover_diff_keeps_both_sides() -> None:
    text = (
        f"vendid=0x2c9\nswitchguid=0x8c0eb0300ab9902(8c0eb0300ab9902)\n"
        f'Switch\t65 "S-08c0eb0300ab9902"\t\t# "{LEAF}" enhanced port 0 lid 6 lmc 0\n'
        '< [3]\t"H-08c0eb0300ab1404"[1](8c0eb0300ab1404) \t\t# "gpu-4 HCA-1" lid 21 4xNDR\n'
        '> [9]\t"H-08c0eb0300ab1404"[1](8c0eb0300ab1404) \t\t# "gpu-4 HCA-1" lid 21 4xNDR\n'
    )
    found = parser("ibnetdiscover")(text)
    assert [(link["node"], link["port"], link["side"]) for link in found["links"]] == [(LEAF, 3, "<"), (LEAF, 9, ">")]


@pytest.mark.parametrize(
    "capture", ["iblinkinfo_blocks", "iblinkinfo_lines", "ibnetdiscover_topology", "ibnetdiscover_ports"]
)
@pytest.mark.parametrize("width", [60, 76])
def test_a_fabric_whose_lines_a_mail_broke(capture: str, width: int) -> None:
    """Broken at blanks, as mail programs do; each run of blanks is one afterwards, within quotes too."""

    def broken(line: str) -> str:
        return "\n".join(
            f"> {piece}" for piece in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
        )

    def even(value: t.Any) -> t.Any:
        if isinstance(value, dict):
            return {key: even(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [even(inner) for inner in value]
        return " ".join(value.split()) if isinstance(value, str) else value

    lines = [line for line in CAPTURES[capture].splitlines() if not line.startswith("#")]
    whole = even(told(parse(capture, "\n".join(lines))))
    found = even(told(parse(capture, "\n".join(map(broken, lines)))))
    assert {key: found[key] for key in ("nodes", "links", "hosts", "switches")} == {
        key: whole[key] for key in ("nodes", "links", "hosts", "switches")
    }


@pytest.mark.parametrize(
    "capture", ["iblinkinfo_blocks", "iblinkinfo_lines", "ibnetdiscover_topology", "ibnetdiscover_ports"]
)
@pytest.mark.parametrize("width", [80, 100, 132])
def test_a_fabric_whose_lines_a_terminal_broke(capture: str, width: int) -> None:
    """Broken where the terminal ended, within words, and nothing lost."""
    lines = CAPTURES[capture].expandtabs(8).splitlines()
    broken = "".join(f"{line[at : at + width]}\n" for line in lines for at in range(0, max(1, len(line)), width))
    found, whole = told(parse(capture, broken)), told(parse(capture, "\n".join(lines)))
    keys = [key for key in ("nodes", "links", "dangling", "hosts", "switches") if key in whole]
    assert {key: found[key] for key in keys} == {key: whole[key] for key in keys}


@pytest.mark.parametrize("capture", ["ibstat_makers", "ibstatus_makers", "ibv_devinfo_short", "ibv_devinfo_verbose"])
def test_line_ends_that_a_web_form_took_away(capture: str) -> None:
    """Only labels are left to part the lines; flags and labels of -v that no field is made of may go astray."""
    found = told(parse(capture, " ".join(CAPTURES[capture].split())))
    wanted = told(parse(capture))
    key = next(key for key in ("cas", "ports", "hcas") if key in wanted)
    assert len(found[key]) == len(wanted[key])
    for one, other in zip(found[key], wanted[key]):
        for field, value in other.items():
            if isinstance(value, (int, float)) or field in ("state", "phys_state", "default_gid", "fw", "vendor_id"):
                assert one[field] == value
        for port, as_wanted in zip(one.get("ports", []), other.get("ports", [])):
            assert {**port, **as_wanted} == port


def test_a_loop_over_the_names_of_cas() -> None:
    found = parser("ibstat")("ibp1s0\n\t\tState: Active\n\t\tRate: 400\nroce2\n\t\tState: Down\n\t\tRate: 25\n")
    assert found["ca_names"] == ["ibp1s0", "roce2"]
    assert [(ca["ca"], ca["ports"]) for ca in found["cas"]] == [
        ("ibp1s0", [{"state": "Active", "rate_gbps": 400}]),
        ("roce2", [{"state": "Down", "rate_gbps": 25}]),
    ]


def test_topologies_of_other_ages_and_hands() -> None:
    """Before 2007 without speeds, from programs that simulate ibnetdiscover, and with GUIDs that somebody blackened."""
    found = parser("ibnetdiscover")(
        'Switch\t64 "0x0000000000001000"\t# "spine-9" enhanced port 0 lid 10\n'
        '[1]\t"0x0000000000002000"[7]\t\t# "leaf-9" lid 20\n'
        '[2]\t"H-9c05<hidden>"[1](9c05<hidden>) \t\t# "gpu-9 mlx5_0" lid 21 2xNDR\n'
        'Ca\t1 "H-08c0eb0300ab1299"\t\t# "gpu-8 mlx5_0"\n'
        '[1](0x08c0eb0300ab1299)\t"S-0x1000"[3]\t\t# lid 22 lmc 0\n'
    )
    assert [(node["guid"], node["lid"]) for node in found["nodes"]] == [
        ("0x0000000000001000", 10),
        ("0x08c0eb0300ab1299", None),
    ]
    fields = ("node", "lid", "port", "peer", "peer_lid", "peer_port", "peer_guid", "rate_gbps")
    assert [tuple(link[field] for field in fields) for link in found["links"]] == [
        ("spine-9", 10, 1, "leaf-9", 20, 7, "0x0000000000002000", None),
        ("spine-9", 10, 2, "gpu-9 mlx5_0", 21, 1, "0x9c05<hidden>", 200),
        ("gpu-8 mlx5_0", 22, 1, "spine-9", 10, 3, "0x0000000000001000", None),
    ]


def test_iblinkinfo_tells_switches_without_blocks() -> None:
    """`-l` has no blocks: what a chip says of itself, names, and one LID on several ports tell which end is a switch."""
    line = '0x08c0eb0300ab00{:02x} "{:>30}" {:6} {:4}[  ] ==( 4X 53.125 Gbps Active/  LinkUp)==>  0x08c0eb0300abff01 {:6} {:4}[  ] "{}" ( )\n'
    found = parser("iblinkinfo")(
        line.format(1, "gpu-1 HCA-1", 31, 1, 7, 4, "SwitchIB Mellanox Technologies")
        + line.format(2, "rack-9-b", 8, 1, 32, 1, "gpu-2 mlx5_0")
        + line.format(2, "rack-9-b", 8, 2, 33, 1, "gpu-3 mlx5_0")
        + line.format(3, "MT27700 ConnectX-4 Mellanox Technologies", 34, 1, 8, 3, "rack-9-b")
    )
    assert (found["hosts"], found["switches"]) == (
        ["gpu-1", "gpu-2", "gpu-3"],
        ["SwitchIB Mellanox Technologies", "rack-9-b"],
    )


def test_iblinkinfo_lines_of_one_node_have_no_loggers_prefix() -> None:
    """Every line of `-l` begins alike where one switch was asked for: that beginning is the node."""
    line = '0x08c0eb0300ab0002 "{:>30}"      8 {:4}[  ]  ==( 4X 5.0 Gbps Active /   LinkUp)==>  0x08c0eb0300ab{:04x} {:6}    1[  ] "gpu-{} HCA-1" (  )\n'
    found = parser("iblinkinfo")("".join(line.format("ISR9099 rack-7", n, n, 30 + n, n) for n in range(1, 7)))
    assert {(link["node"], link["guid"], link["lid"]) for link in found["links"]} == {
        ("ISR9099 rack-7", "0x08c0eb0300ab0002", 8)
    }
    assert [link["port"] for link in found["links"]] == [1, 2, 3, 4, 5, 6]
    assert (found["switches"], len(found["hosts"])) == (["ISR9099 rack-7"], 6)


def test_iblinkinfo_lines_within_a_program() -> None:
    """Comments that show a line as a string, with the quotes of its names escaped; a docstring that broke a line with a mark."""
    found = parser("iblinkinfo")(
        '#a = "          41    1[  ] ==( 4X 10.0 Gbps Active/  LinkUp)==>       2   18[  ] \\"MF0;leaf-3:IS5200/L07/U1\\" ( )"\n'
        "#b = '          42    1[  ] ==( 4X  5.0 Gbps Active/  LinkUp)==>       2    1[  ] \"gpu-2 HCA-1\" ( )'\n"
        '    0x08c0eb0300ab1200 "              gpu-1 mlx5_0"     37    1[  ] ==\\\n'
        "    ( 4X       14.0625 Gbps Active/  LinkUp)==>  \\\n"
        '    0x08c0eb0300ab9901      5   16[  ] "MF0;leaf-4:SX6036/U1" ( )\n'
    )
    assert [
        (link["node"], link["lid"], link["peer"], link["peer_lid"], link["peer_port"]) for link in found["links"]
    ] == [
        ("", 41, "MF0;leaf-3:IS5200/L07/U1", 2, 18),
        ("", 42, "gpu-2 HCA-1", 2, 1),
        ("gpu-1 mlx5_0", 37, "MF0;leaf-4:SX6036/U1", 5, 16),
    ]
    assert found["unparsed"] == []


def test_ibnetdiscover_of_a_simulators_input() -> None:
    """What somebody wrote for a simulator has cables without a comment; the names stand in the nodes' own lines."""
    text = (
        'Switch 36 "S-0000000000ab0001" # "spine-1" base port 0 lid 0 lmc 0\n[1] "S-0000000000ab0003"[2]\n\n'
        'Switch 36 "S-0000000000ab0003" # "leaf-3" base port 0 lid 0 lmc 0\n[2] "S-0000000000ab0001"[1]\n[3] "H-0000000000ab0005"[1]\n'
    )
    for written in (text, text.replace(" #", "\\t\\t#").replace('] "', ']\\t"')):
        found = parser("ibnetdiscover")(written)
        assert [(link["node"], link["port"], link["peer"], link["peer_port"]) for link in found["links"]] == [
            ("spine-1", 1, "leaf-3", 2),
            ("leaf-3", 2, "spine-1", 1),
            ("leaf-3", 3, "", 1),
        ]
        assert found["unparsed"] == []


def test_links_below_the_counters_of_ibqueryerrors() -> None:
    (link,) = parser("iblinkinfo")(
        'Errors for 0x08c0eb0300ab1200 "gpu-1 HCA-1"\n   GUID 0x08c0eb0300ab1200 port 1: [SymbolErrorCounter == 7]\n'
        '       Link info:     41   1[  ] ==( 4X          10.0 Gbps Active/  LinkUp)==>  0x08c0eb0300ab9901      2   34[  ] "leaf-3" ( )\n'
    )["links"]
    assert (link["node"], link["guid"], link["lid"], link["peer"]) == (
        "gpu-1 HCA-1",
        "0x08c0eb0300ab1200",
        41,
        "leaf-3",
    )


def test_ibnetdiscover_of_widths_that_are_no_widths() -> None:
    text = (
        "SW    73  3 0x08c0eb0300ab7701 ?? ???                                    'leaf-3'\n"
        'Switch\t24 "S-0008f104003f0aa1"\t\t# "sFB" base port 0 lid 5 lmc 0\n'
        '[24][ext 3]\t"R-0008f10403960600"[1](8f10403960601) \t\t# "rt1" lid 6 ?????\n'
    )
    found = parser("ibnetdiscover")(text)
    assert [(port["port"], port["width"], port["rate_gbps"]) for port in found["dangling"]] == [(3, "??", None)]
    assert [(link["peer"], link["peer_type"], link["width"], link["speed"]) for link in found["links"]] == [
        ("rt1", "Router", "??", "???")
    ]


def test_ibhosts_and_ibswitches_make_lists_of_nodes() -> None:
    found = parser("ibnetdiscover")(
        'Ca\t: 0x08c0eb0300ab1200 ports 2 "gpu-1 HCA-1"\n'
        'Switch\t: 0x08c0eb0300ab9901 ports 65 "MF0;leaf-3:MQM9700/U1" enhanced port 0 lid 73 lmc 0\n'
    )
    assert [(node["type"], node["ports"], node["lid"]) for node in found["nodes"]] == [
        ("CA", 2, None),
        ("Switch", 65, 73),
    ]
    assert (found["hosts"], found["switches"]) == (["gpu-1"], ["leaf-3"])


def test_rdma_resources_and_statistics_are_no_links() -> None:
    found = parser("rdma_link")(
        "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1\n"
        "link mlx5_0/1 lqpn 1 type GSI state RTS sq-psn 0 comm [ib_core]\n"
        "link mlx5_1/1 rx_write_requests 0 rx_read_requests 0\n"
    )
    assert (len(found["links"]), found["active"]) == (1, ["mlx5_0"])


def test_ibv_devinfo_blackened_gids_keep_what_is_left() -> None:
    found = parser("ibv_devinfo")(
        "hca_id:\tmlx5_0\n\t\tport:\t1\n\t\t\tGID[  0]:\t\tfe80::xxxx:xxff:fexx:xxxx, RoCE v2\n\t\t\tGID[  3]:\t\t::ffff:10.x.x.9, RoCE v2\n"
    )
    assert [gid["gid"] for gid in found["hcas"][0]["ports"][0]["gids"]] == [
        "fe80::xxxx:xxff:fexx:xxxx",
        "::ffff:10.x.x.9",
    ]


def test_a_program_that_logs_what_ibdev2netdev_said_is_no_host() -> None:
    stamp = "[2026-03-17T07:56:59.95+08:00 monitor:571 IBDevice.cc:169 INFO] "
    found = parser("ibdev2netdev")(
        f"{stamp}ibdev2netdev: hns_0 port 1 ==> bond0 (Up)\n{stamp}hns_1 port 1 ==> ens3 (Down)\n"
    )
    assert found["map"] == {"hns_0": "bond0", "hns_1": "ens3"}
    assert all("host" not in entry for entry in found["entries"])


def test_iblinkinfo_types_rates_and_notes() -> None:
    links = parse("iblinkinfo_blocks")["links"]
    fields = ("node_type", "peer_type", "rate_gbps", "state", "phys_state", "note")
    assert [tuple(link[field] for field in fields) for link in links] == [
        ("CA", "Switch", 200, "Active", "LinkUp", "Could be 106.25 Gbps"),
        ("CA", "", None, "Down", "Polling", ""),
        ("CA", "Switch", 400, "Active", "LinkUp", ""),
        ("Switch", "CA", 200, "Active", "LinkUp", ""),
        ("Switch", "CA", 20, "Active", "LinkUp", ""),
        ("Switch", "", None, "Down", "Disabled", ""),
        ("Switch", "Switch", 400, "Active", "LinkUp", ""),
    ]


def test_mlxlink_json_says_the_same() -> None:
    wanted = parse("mlxlink_text")
    document = {
        "result": {"output": {title: dict(labels) for title, labels in wanted["sections"].items()}},
        "status": {"code": 0},
    }
    document["result"]["output"]["Physical Counters and BER Info"]["Raw Physical Errors Per Lane"] = {
        "values": ["11", "22", "33", "44"]
    }
    found = parser("mlxlink")(json.dumps(document))
    assert {key: found[key] for key in wanted if key != "sections"} == {
        key: wanted[key] for key in wanted if key != "sections"
    }


@pytest.mark.parametrize(
    "document",
    [
        {
            "lldp": {
                "interface": {
                    "ens4np0": {
                        "chassis": {"leaf-3.fabric": {"id": {"type": "mac", "value": "00:1c:73:aa:bb:01"}}},
                        "port": {"id": {"type": "ifname", "value": "Ethernet11/1"}, "descr": "gpu-1 rail 3"},
                    }
                }
            }
        },
        {
            "lldp": {
                "interface": [
                    {
                        "ens4np0": {
                            "chassis": {"leaf-3.fabric": {"id": {"type": "mac", "value": "00:1c:73:aa:bb:01"}}},
                            "port": {"id": {"type": "ifname", "value": "Ethernet11/1"}, "descr": "gpu-1 rail 3"},
                        }
                    }
                ]
            }
        },
        {
            "lldp": [
                {
                    "interface": [
                        {
                            "name": "ens4np0",
                            "chassis": [
                                {
                                    "id": [{"type": "mac", "value": "00:1c:73:aa:bb:01"}],
                                    "name": [{"value": "leaf-3.fabric"}],
                                }
                            ],
                            "port": [
                                {
                                    "id": [{"type": "ifname", "value": "Ethernet11/1"}],
                                    "descr": [{"value": "gpu-1 rail 3"}],
                                }
                            ],
                        }
                    ]
                }
            ]
        },
    ],
)
def test_lldp_json_of_all_versions(document: dict[str, t.Any]) -> None:
    assert parser("lldp")(json.dumps(document)) == parse("lldp_people")


# ---- no text raises ------------------------------------------------------------------------------------------------------

PIECES = sorted(
    {line for text in CAPTURES.values() for line in text.splitlines(keepends=True)}
    | {
        "ibwarn: [1] x: y\n",
        "ibpanic: [1] main: stat of IB device '",
        "\x1b[31m",
        "\r",
        "\x00",
        "libibverbs: Warning: ",
        "-----\n",
        "gpu-1: ",
        "0: ",
        "[1,2]<stderr>:",
        "> ",
        "{",
        "}",
        "[",
        '"ifname"',
        "\\n",
        "&#39;",
        "<br>",
        "GID[",
        "==(",
        ")==>",
        "9" * 5000,
        "\u0663",
        "\u00b2",
    }
)
QUICK = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("tool", TOOLS)
@QUICK
@given(text=st.text(max_size=400))
def test_no_text_raises(tool: str, text: str) -> None:
    json.dumps(parser(tool)(text))


@pytest.mark.parametrize("tool", TOOLS)
@QUICK
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=30), cuts=st.lists(st.integers(0, 2000), max_size=6))
def test_no_mixture_of_captures_raises(tool: str, pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    for cut in cuts:
        text = text[:cut] + text[cut + 3 :]
    json.dumps(parser(tool)(text))


@pytest.mark.parametrize("capture", CAPTURES)
def test_no_cut_raises_and_what_came_before_stays(capture: str) -> None:
    """Cut at every byte: what is read from the beginning is what the whole text says of it."""
    text = CAPTURES[capture]
    whole = {key: value for key, value in parse(capture).items() if key in ("cas", "ports", "hcas", "links", "gids")}
    for at in range(0, len(text), max(1, len(text) // 300)):
        found = parse(capture, text[:at])
        for key, items in whole.items():
            assert found[key][:-1] == items[: max(0, len(found[key]) - 1)], (at, key)


HOSTILE = [
    piece * 200_000 for piece in (" ", "=", "-", "a", "0", "'", "[", "{", ">", "#", ":", '"', "(", "|", "@", "<", "~")
] + [
    "\t" * 200_000 + "x",
    "a." * 100_000,
    "x " * 100_000,
    "\x1b]" * 100_000,
    "\x1b[" + "1;" * 100_000,
    "**a" * 70_000,
    "`a" * 100_000,
    "<br" * 70_000,
    "CA" + " " * 200_000,
    "link a/1 " + "lid 1 " * 40_000,
    "hca_id:" + " " * 200_000,
    "GID[0]: " + "a:" * 100_000,
    "port " * 40_000,
    "ibwarn: [" * 40_000,
    "sh: " * 50_000,
    "x=['" * 50_000,
    "x = ['a',\n" * 30_000,
]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_lines_take_linear_time(tool: str, text: str) -> None:
    started = time.process_time()
    parser(tool)(text)
    assert time.process_time() - started < 2.0


PACKED = [
    '"a","' * 25_000,
    '"",' * 30_000,
    '\t"' * 45_000,
    'a="b" ' * 20_000,
    'a="b\\n' * 20_000,
    '{"a":' * 20_000,
    '{"a":"' * 20_000,
    "=\n" * 45_000 + "=3D",
    "<![CDATA[" * 15_000,
    "<a>" * 30_000,
    "|a|b|\n" * 15_000,
    ": 'a\n\n" * 20_000,
    ': "a\\\n' * 20_000,
    ("x" * 90 + "\n") * 1_000,
    "'\\n" * 30_000,
]


@pytest.mark.parametrize("text", [*PACKED, *HOSTILE])
def test_hostile_documents_take_linear_time(text: str) -> None:
    started = time.process_time()
    unpacked(text)
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize("text", PACKED)
def test_hostile_documents_of_a_fabric_take_linear_time(text: str) -> None:
    started = time.process_time()
    parser("iblinkinfo")(text)
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize("capture", CAPTURES)
def test_five_megabytes_take_linear_time(capture: str) -> None:
    size = 5_000_000 // len(CAPTURES[capture])
    started = time.process_time()
    parse(capture, CAPTURES[capture] * size)
    assert time.process_time() - started < 30.0
