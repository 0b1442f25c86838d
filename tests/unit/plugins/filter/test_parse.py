# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parse filters: what they take, what their pages promise, and that the pages' examples run."""

from __future__ import annotations

import gzip
import html
import json
import pathlib
import typing as t

import ansible.template
import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.gpufabric.cluster.plugins.filter.parse import PARSERS, FilterModule
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = pathlib.Path(__file__).parents[4]
PAGES = {path.stem: path for path in sorted((ROOT / "plugins" / "filter").glob("parse_*.yml"))}
FILTERS = FilterModule().filters()

#: ansible-core renders only text that is trusted, from 2.19 on
trusted = getattr(ansible.template, "trust_as_template", str)


def page(name: str) -> dict[str, t.Any]:
    return t.cast("dict[str, t.Any]", yaml.safe_load(PAGES[name].read_text()))


NCCL_LOG = """gpu-1:71:80 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ens9
gpu-1:71:80 [0] NCCL INFO Using network Socket
gpu-1:71:80 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
gpu-1:71:80 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.7.0.2<40103> failed : Connection refused
"""


def captures_of(name: str) -> list[str]:
    """Captures of the filter's tool."""
    tool = name.removeprefix("parse_")
    fixtures = ROOT / "tests" / "fixtures"
    files = sorted((fixtures / "rdma_tools").glob(f"{tool}_*.txt")) or sorted((fixtures / tool).glob("*.txt"))
    return [NCCL_LOG] if tool == "nccl_log" else [file.read_text() for file in files]


def test_every_filter_has_its_page_and_every_page_its_filter() -> None:
    assert set(PAGES) == set(FILTERS) == set(PARSERS)
    assert {name: page(name)["DOCUMENTATION"]["name"] for name in PAGES} == {name: name for name in PAGES}


TYPES = {"str": str, "int": int, "float": (int, float), "bool": bool, "list": list, "dict": dict}


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_the_answer_is_what_the_page_says(name: str) -> None:
    promised = page(name)["RETURN"]["_value"]["contains"]
    found = FILTERS[name](captures_of(name)[0])
    for key, said in promised.items():
        if found.get(key) is not None and said["type"] != "raw":
            assert isinstance(found[key], TYPES[said["type"]]), key
    if not name.startswith(("parse_nccl", "parse_mlxlink")):
        assert set(found) == set(promised)


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_the_example_of_the_page_runs(name: str, tmp_path: pathlib.Path) -> None:
    """With a capture in the place of the file that the example looks up, some capture gives an answer that says something."""
    message = yaml.safe_load(page(name)["EXAMPLES"])[0]["ansible.builtin.debug"]["msg"]
    file = f"gpu-1.{name.removeprefix('parse_')}.txt"
    assert file in message
    templar = Templar(loader=DataLoader(), variables={})
    answers = []
    for capture in captures_of(name):
        (tmp_path / file).write_text(capture)
        answers.append(templar.template(trusted(message.replace(file, str(tmp_path / file)))))
    assert any(answers)


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_text_lines_and_bytes_are_the_same(name: str) -> None:
    text = captures_of(name)[0].rstrip("\n")
    wanted = FILTERS[name](text)
    assert FILTERS[name](text.splitlines()) == wanted
    assert FILTERS[name](text.encode()) == wanted


@pytest.mark.parametrize(
    "saved",
    [
        lambda text: gzip.compress(text.encode()),
        lambda text: text.encode("utf-16"),
        lambda text: text.replace("\n", "\r"),
        lambda text: text.replace("\t", "\\t").replace("\n", "\\n"),
        lambda text: f"    {json.dumps(text)},\n",
        lambda text: repr(text.encode()),
        lambda text: f"CompletedProcess(args=['x', '-y'], returncode=0, stdout={text.encode()!r}, stderr=b'')",
        lambda text: '"' + text.replace("\t", "\\t").replace("\n", "\\n") + '"',
    ],
    ids=[
        "gzip",
        "utf-16",
        "old line ends",
        "a string within JSON",
        "a string of JSON",
        "bytes of Python",
        "a process of Python",
        "a string in quotes",
    ],
)
@pytest.mark.parametrize("name", sorted(PARSERS))
def test_a_capture_reads_the_same_however_it_was_saved(name: str, saved: t.Callable[[str], str | bytes]) -> None:
    text = next(each for each in captures_of(name) if each.isascii() and "\r" not in each and each[:1] not in "{[")
    assert FILTERS[name](saved(text)) == FILTERS[name](text)


LOG = (
    "gpu-3:771:771 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eno7\n"
    "gpu-3:771:779 [0] NCCL INFO NET/IB : Using [0]mlx5_3:1/IB [1]mlx5_8:1/IB [RO]; OOB eno7:10.7.7.3<0>\n"
    "gpu-3:771:779 [0] NCCL INFO Using network IB\n"
    "gpu-3:771:781 [0] transport/net_ib.cc:2015 NCCL WARN NET/IB: Got completion from peer 10.7.7.4<41217> with status=12 opcode=1"
    " len=0 vendor err 129 (Send) localGid fe80::a088:c203:ab:3 hca mlx5_8\n"
)


@pytest.mark.parametrize(
    "saved",
    [
        lambda text: text,
        lambda text: "when,said\n" + "".join(f'2026-11-02 10:00:00,"{line}"\n' for line in text.splitlines()),
        lambda text: json.dumps({"gpu-3": {"status": 1, "said": text}}, indent=2),
        lambda text: yaml.safe_dump({"gpu-3": {"said": text}}, width=80),
        lambda text: "".join(f"{line[at : at + 90]}\n" for line in text.splitlines() for at in range(0, len(line), 90)),
        lambda text: (
            'ok: [gpu-3] => {\n    "msg": [\n' + ",\n".join(map(json.dumps, text.splitlines())) + "\n    ]\n}\n"
        ),
        lambda text: "".join(f"<tr><td>7</td><td>{html.escape(line)}</td></tr>\n" for line in text.splitlines()),
        lambda text: "".join(f"26/11/02 10:00:01 INFO Probe: {line}\n" for line in text.splitlines()),
    ],
    ids=["as it is", "CSV", "JSON", "YAML", "a terminal", "Ansible", "HTML", "a clock"],
)
def test_a_log_of_nccl_is_read_in_whatever_it_was_saved(saved: t.Callable[[str], str]) -> None:
    found = FILTERS["parse_nccl_log"](saved(LOG))
    fields = ("transport", "interface", "hcas", "failure", "status", "vendor_err", "direction")
    assert [found[field] for field in fields] == ["IB", "eno7", ["mlx5_3", "mlx5_8"], "ib_completion", 12, 129, "Send"]


@pytest.mark.parametrize("value", [None, 7, {"stdout": "x"}, ["x", 7], object()])
def test_anything_else_gets_one_sentence(value: object) -> None:
    with pytest.raises(
        AnsibleFilterError, match="^parse_ibstat: expected the text that the tool printed.* found [a-zA-Z]+$"
    ):
        FILTERS["parse_ibstat"](value)


@pytest.mark.parametrize("name", sorted(PARSERS))
@settings(max_examples=60)
@given(text=st.one_of(st.text(max_size=300), st.binary(max_size=300)))
def test_no_text_raises(name: str, text: str | bytes) -> None:
    assert isinstance(FILTERS[name](text), dict)
