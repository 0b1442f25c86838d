# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One run as the launcher brought it back, in the shape of the run record."""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_tests_output import parse_nccl_tests
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import transport
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.rank_deaths import Death, first_death

#: of one run's stdout or stderr in the record, in characters; a listing of thousands of ranks is no news
TEXT_LIMIT = 200_000

HALVES = ("out_of_place", "in_place")
KEPT = (
    "backend", "launcher", "collective", "stage", "rail", "nodes", "ranks", "argv", "environment", "started", "seconds", "rc",
    "timed_out", "timeout_s", "problem", "lost", "stdout", "stderr",
)  # fmt: skip


def shape_runs(raw: t.Mapping[str, t.Any], hostnames: t.Mapping[str, str]) -> list[dict[str, t.Any]]:
    """The runs of the record that one result stands for: a program that each node ran alone is a run of each node."""
    alone = raw.get("alone")
    if alone is None:
        return [shape_run(raw, hostnames)]
    runs = []
    for node in raw["nodes"]:
        own = alone.get(node)
        said = own or {"rc": None, "timed_out": False, "seconds": 0.0, "stdout": "", "stderr": ""}
        problem = raw["problem"] or said.get("error", "") or ("" if own else "the node gave no answer")
        single = {
            **raw,
            **{key: said.get(key, "") for key in ("rc", "timed_out", "seconds", "stdout", "stderr")},
            "alone": {node: said},
            "problem": problem,
            "nodes": [node],
            "ranks": 1,
            "lost": {name: why for name, why in raw["lost"].items() if name == node},
            "deltas": {name: delta for name, delta in raw["deltas"].items() if name == node},
            "logs": {name: logs for name, logs in raw["logs"].items() if name == node},
        }
        run = shape_run(single, hostnames)
        runs.append({**run, "failing_hosts": [node] if run["failure"] else []})
    return runs


def shape_run(raw: t.Mapping[str, t.Any], hostnames: t.Mapping[str, str]) -> dict[str, t.Any]:
    """A run of the record: what was asked, what was printed, rows, failure, and the transport with its proof.

    raw: a result of _benchmark_run; hostnames: {node: what it calls itself}. Sizes in bytes, times in µs, GB/s = 1e9 bytes/s.
    """
    parsed = _parse(raw)
    short = {hostname.split(".")[0]: node for node, hostname in hostnames.items()}
    names = {**_only(raw.get("addresses", {})), **short, **{hostname: node for node, hostname in hostnames.items()}}
    death = first_death(raw["stderr"]) if raw["rc"] else None
    failing = [names.get(host, host) for host in parsed["failing_hosts"]]
    if death and death.host and not failing:
        failing = [names.get(death.host, death.host)]
    run = {key: raw[key] for key in KEPT}
    run.update(
        stdout=raw["stdout"][:TEXT_LIMIT],
        stderr=raw["stderr"][:TEXT_LIMIT],
        completed=bool(parsed["completed"]),
        validated=bool(parsed["validated"]),
        failure=failure_of(raw, parsed, death),
        failing_hosts=sorted({*failing, *raw["lost"], *raw["gone"]}),
        rows=[row_of(row) for table in parsed["tables"] for row in table["rows"]],
        non_finite_rows=parsed["non_finite_rows"],
        errors=[
            *parsed["errors"],
            *(entry["text"] for entry in parsed["test_failures"]),
            *([death.words] if death else []),
        ],
        nccl_version=parsed["nccl_version"],
        deltas=raw["deltas"],
        cpu_utilisation={node: delta["cpu_busy"] for node, delta in raw["deltas"].items()},
    )
    # With -g one process drives several GPUs, each a rank: the program's own list of devices counts them.
    run["ranks"] = parsed["ranks"] or raw["ranks"]
    run["transport"] = transport.prove(raw, run["rows"])
    run["hostnames"] = {node: hostnames[node] for node in run["nodes"] if node in hostnames}
    return run


def _parse(raw: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The report where it says at least as much as the text: a run that was ended has no report, or half of one."""
    text = parse_nccl_tests(raw["stdout"])
    if not raw["report"]:
        return text
    report = parse_nccl_tests(json.dumps(raw["report"]))
    if len(report["rows"]) < len(text["rows"]):
        return text
    return {**text, **{key: report[key] for key in ("rows", "tables", "validated", "non_finite_rows")}}


def _only(addresses: t.Mapping[str, str]) -> dict[str, str]:
    """{address: node}, without addresses that several nodes have: two names of one machine."""
    found: dict[str, list[str]] = {}
    for node, address in addresses.items():
        found.setdefault(address, []).append(node)
    return {address: nodes[0] for address, nodes in found.items() if len(nodes) == 1}


def failure_of(raw: t.Mapping[str, t.Any], parsed: t.Mapping[str, t.Any], death: Death | None = None) -> str | None:
    """The kind of failure, None for a run that is whole. What was done to the run explains what it printed, so it comes first."""
    if raw["timed_out"]:
        return "timeout"
    if raw["lost"]:
        return "node_lost"
    if raw["problem"].startswith("interrupted"):
        return "interrupted"
    if raw["problem"]:
        return "not_run" if raw["rc"] is None else "ended"
    if parsed["failure"]:
        return str(parsed["failure"])
    if death:
        return "rank_died"
    if raw["rc"] != 0:
        return "exit_status"
    if not parsed["rows"]:
        return "no_rows"
    return None if parsed["completed"] else "incomplete"


def row_of(row: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """One size: nccl-tests' columns under the record's names, with the spread of single iterations where it is known."""
    return {
        "size_bytes": row["size"],
        "count": row["count"],
        "dtype": row["type"],
        "redop": row["redop"],
        "root": row["root"],
        **{half: _half(row[half]) for half in HALVES},
    }


def _half(half: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    shaped = {
        "time_us": half["time_us"],
        "algbw_gbs": half["algbw"],
        "busbw_gbs": half["busbw"],
        "wrong": half["wrong"],
    }
    spread = half.get("per_iteration") or {}
    latency = {
        key: spread[key] for key in ("min_us", "p50_us", "p99_us", "max_us", "cv_pct") if spread.get(key) is not None
    }
    return {**shaped, **({"latency": latency} if latency else {})}
