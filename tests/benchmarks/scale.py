#!/usr/bin/env python3
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What verify.yml costs the controller for 8 to 512 simulated nodes: python tests/benchmarks/scale.py [--nodes 8,16,...] [--shared].

Nodes are directories, reached over local connections, so that their modules run on this machine too. Each node's Python is started
through a wrapper that notes the CPU seconds it took; what is left of all CPU seconds is the controller's. So that a small machine can stand
for 512 nodes, modules run on one node, and what they answered is given again under the name, addresses and identifiers of every other one
(--real runs them everywhere). A last run has one node that is dead, one that prints garbage, one that hangs and one whose tools hang.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import platform
import shutil
import statistics
import sys
import tempfile
import time
import typing as t

ROOT = pathlib.Path(__file__).resolve().parents[2]

WHAT = "verify.yml over simulated nodes: CPU seconds and memory of the controller, modules run on each node, and how long ill nodes hold the rest up"
NODES = (8, 16, 32, 64, 128, 256, 512)

#: where in the fleet the ill ones are, as shares of it
ILL = {"dead": 0.1, "garbage": 0.4, "hanging": 0.6, "slow_tool": 0.9}

#: findings that name them
NAMED = {
    "dead": {"node_unreachable"},
    "garbage": {"node_unusable"},
    "hanging": {"node_hangs"},
    "slow_tool": {"rdma_tool_failed"},
}

#: seconds: what defaults allow an unreachable or hanging node at its first task, and a tool at its own
FIRST_ANSWER_S = 180.0
TOOL_S = 20.0

#: an interpreter that runs modules, notes its CPU time, and keeps their answers in the order of the calls
RUNNING = """#!/bin/sh
here=$(dirname "$0")
number=$(($(cat "$here/count" 2>/dev/null || echo 0) + 1))
echo $number > "$here/count"
{python} "$@" > "$here/answer.$number"
status=$?
cat "$here/answer.$number"
times >> "$here/times"
exit $status
"""

#: one that reads what the controller sends and gives the answer of that call
REPLAYING = """#!/bin/sh
here=$(dirname "$0")
cat > /dev/null
read -r number < "$here/count"
number=$((number + 1))
echo $number > "$here/count"
cat "$here/answer.$number"
times >> "$here/times"
"""


def put_interpreters(directory: pathlib.Path, inventory: dict[str, t.Any], replayed: pathlib.Path | None) -> None:
    """Give each node an interpreter of its own: one that replays *replayed*'s answers, or runs modules where that is None."""
    from ansible_collections.gpufabric.cluster.tests.fixtures import simulated_nodes

    hcas = simulated_nodes.Plan().hcas
    first = simulated_nodes.identity_of(1, hcas)
    answers = {path.name: path.read_text() for path in replayed.glob("answer.*")} if replayed else {}
    for number, (name, variables) in enumerate(inventory["all"]["hosts"].items(), 1):
        if "ansible_python_interpreter" in variables or "ansible_connection" in variables:
            continue  # it is ill, and has one already
        home = directory / name / ".calls"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        real = replayed is None or (directory / name / ".tools/plan").read_text().endswith("slow_tool")
        text = RUNNING if real else REPLAYING
        interpreter = home / "python"
        interpreter.write_text(text.format(python=sys.executable))
        interpreter.chmod(0o755)
        (home / "count").write_text("0\n")
        variables["ansible_python_interpreter"] = str(interpreter)
        for answer, content in answers.items() if not real else ():
            for own, other in zip(first, simulated_nodes.identity_of(number, hcas)):
                content = content.replace(own, other)
            (home / answer).write_text(content)


def measure(
    directory: pathlib.Path, count: int, ill: t.Mapping[int, str], forks: int, replayed: pathlib.Path | None = None
) -> dict[str, t.Any]:
    """One run: its row."""
    from ansible_collections.gpufabric.cluster.tests.fixtures import local_playbook, simulated_nodes

    inventory = simulated_nodes.build_nodes(directory, count, simulated_nodes.Plan(tuned=True, ill=ill))
    put_interpreters(directory, inventory, replayed)
    (directory / "hosts.json").write_text(json.dumps(inventory))
    playbook = str(ROOT / "playbooks" / "verify.yml")
    argv = local_playbook.command(directory, playbook, "--forks", str(forks), gpufabric_gate=False)
    environment = {**local_playbook.environment(directory), "ANSIBLE_DISPLAY_OK_HOSTS": "false"}
    began = time.monotonic()
    rc, usage = _run(argv, environment, directory / "output")
    wall_s = time.monotonic() - began
    record = json.loads((directory / "results/latest/run.json").read_text())
    # The shell's own times are one line, those of what it started another.
    node_cpu = [_seconds(line) for path in directory.glob("*/.calls/times") for line in path.read_text().splitlines()]
    return {
        "nodes": count,
        "modules": "replayed" if replayed else "run",
        "ill": {simulated_nodes.node_name(number): how for number, how in ill.items()},
        "rc": rc,
        "wall_s": round(wall_s, 2),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        "node_cpu_s": round(sum(node_cpu), 2),
        "node_calls": len(node_cpu) // 2,
        "controller_memory_mib": round(usage.ru_maxrss / 1024, 1),
        "record_bytes": (directory / "results/latest/run.json").stat().st_size,
        "report_bytes": (directory / "results/latest/report.html").stat().st_size,
        "errors": sorted({(f["node"], f["id"]) for f in record["findings"] if f["severity"] == "error"}),
        "named": sorted({(f["node"], f["id"]) for f in record["findings"] if f["node"] in _names(ill)}),
    }


def _names(ill: t.Mapping[int, str]) -> set[str]:
    from ansible_collections.gpufabric.cluster.tests.fixtures import simulated_nodes

    return {simulated_nodes.node_name(number) for number in ill}


def _run(argv: list[str], environment: dict[str, str], output: pathlib.Path) -> tuple[int, t.Any]:
    """Exit status and resource usage of a process with all that it waited for; ru_maxrss is the largest single process, in KiB."""
    with output.open("wb") as file:
        actions = [(os.POSIX_SPAWN_DUP2, file.fileno(), 1), (os.POSIX_SPAWN_DUP2, file.fileno(), 2)]
        pid = os.posix_spawn(argv[0], argv, environment, file_actions=actions)
        _pid, status, usage = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), usage


def _seconds(line: str) -> float:
    """User and system seconds as the shell's ``times`` prints them: 0m0.120s 0m0.030s."""
    total = 0.0
    for word in line.split():
        minutes, seconds = word.rstrip("s").split("m")
        total += 60 * float(minutes) + float(seconds)
    return total


def slope(points: t.Sequence[tuple[float, float]]) -> float:
    """The exponent of a power law through *points*: the slope of the least-squares line on logarithmic axes."""
    xs, ys = [math.log(x) for x, _y in points], [math.log(y) for _x, y in points]
    return statistics.linear_regression(xs, ys).slope


def figures(record: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Controller seconds a node, memory, calls a node, exponents over all sizes and over the upper half, and who was named."""
    healthy = [row for row in record["rows"] if not row["ill"] and row["nodes"] > 1]
    controller = [(row["nodes"], row["cpu_s"] - row["node_cpu_s"]) for row in healthy]
    memory = [(row["nodes"], row["controller_memory_mib"]) for row in healthy]
    upper = len(healthy) // 2
    result: dict[str, t.Any] = {
        "controller_cpu_s": {str(n): round(s, 1) for n, s in controller},
        "controller_cpu_ms_a_node": {str(n): round(1e3 * s / n, 1) for n, s in controller},
        "controller_memory_mib": {str(n): m for n, m in memory},
        "calls_a_node": {str(row["nodes"]): round(row["node_calls"] / row["nodes"], 2) for row in healthy},
        "record_kib_a_node": {
            str(row["nodes"]): round(row["record_bytes"] / row["nodes"] / 1024, 1) for row in healthy
        },
        "wall_s": {str(row["nodes"]): row["wall_s"] for row in healthy},
        "errors_on_healthy_nodes": sum(len(row["errors"]) for row in healthy),
    }
    if len(healthy) > 2:
        result["slope"] = {
            "controller_cpu": round(slope(controller), 3),
            "controller_cpu_upper_half": round(slope(controller[upper:]), 3),
            "controller_memory": round(slope(memory), 3),
            "record_bytes": round(slope([(row["nodes"], row["record_bytes"]) for row in healthy]), 3),
            "report_bytes": round(slope([(row["nodes"], row["report_bytes"]) for row in healthy]), 3),
        }
    for row in (row for row in record["rows"] if row["ill"]):
        alone = next((other["wall_s"] for other in healthy if other["nodes"] == row["nodes"]), None)
        result["ill_named"] = {
            how: any(named[0] == name and named[1] in NAMED[how] for named in row["named"])
            for name, how in row["ill"].items()
        }
        result["others_with_errors"] = len([node for node, _id in row["errors"] if node not in row["ill"]])
        result["held_up_s"] = round(row["wall_s"] - alone, 1) if alone is not None else None
        result["allowed_s"] = record["settings"]["first_answer_s"] + record["settings"]["tool_s"]
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default=",".join(map(str, NODES)), help="how many, in one run each")
    parser.add_argument(
        "--forks", type=int, default=2 * (os.cpu_count() or 1), help="on one machine its processors bound them"
    )
    parser.add_argument("--real", action="store_true", help="run the modules on every node")
    parser.add_argument("--shared", action="store_true", help="say in the record that the machine had other work")
    parser.add_argument("--keep", type=pathlib.Path, help="a directory for the nodes, which stays")
    parser.add_argument("--dry", action="store_true", help="print the rows, and write no record")
    options = parser.parse_args()
    counts = [int(word) for word in options.nodes.split(",")]
    most = max(counts)
    ill = {max(1, round(share * most)): how for how, share in ILL.items()}
    rows = []
    with tempfile.TemporaryDirectory(prefix="scale-") as temporary:
        directory = options.keep or pathlib.Path(temporary)
        for part in ("recorded", "nodes"):
            (directory / part).mkdir(parents=True, exist_ok=True)
        replayed = None
        if not options.real:
            rows.append(measure(directory / "recorded", 1, {}, options.forks))
            replayed = directory / "recorded" / next(iter(_names({1: ""}))) / ".calls"
        for count, sick in [*((count, {}) for count in counts), (most, ill)]:
            rows.append(measure(directory / "nodes", count, sick, options.forks, replayed))
            print(rows[-1], flush=True)
    import ansible.release
    import recorded

    settings = {
        "forks": options.forks,
        "processors": os.cpu_count(),
        "machine_shared": options.shared,
        "first_answer_s": FIRST_ANSWER_S,
        "tool_s": TOOL_S,
        "connection": "local",
        "modules": "run on every node"
        if options.real
        else "run on one node, and its answers given again as every other one's",
    }
    versions = {"ansible-core": ansible.release.__version__, "kernel": platform.release()}
    if options.dry:
        print(json.dumps(figures({"rows": json.loads(json.dumps(rows)), "settings": settings}), indent=2))
        return 0
    path = recorded.write("scale", WHAT, settings, rows, versions)
    print(json.dumps(json.loads(path.read_text())["figures"], indent=2))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "collections"))
    sys.exit(main())
