# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Why a benchmark went wrong, in the words of whoever knows it best, and what to do about it."""

from __future__ import annotations

import re
import signal

from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import size_text
from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.expectation import Run

#: failure of a run: (what is said of it, what to do)
FAILURES = {
    "timeout": (
        "the run was not finished within its time limit",
        "look at the named nodes, or raise nccl_tests_timeout_s",
    ),
    "rank_died": (
        "a rank died",
        "on the named node: journalctl -k (out of memory? XID?) and coredumpctl list",
    ),
    "node_lost": (
        "a node went away in the middle of the run",
        "look at that node's console and its log: journalctl -b -1",
    ),
    "interrupted": ("the run was interrupted", "run it again"),
    "not_run": ("the run was not started", "correct what the reason says, then run it again"),
    "ended": ("the run was ended", "correct what the reason says, then run it again"),
    "cuda": ("CUDA failed in the run", "nvidia-smi -q on the named node: memory, ECC errors, XIDs in dmesg"),
    "nccl": ("NCCL failed in the run", "grep -m1 'NCCL WARN' {log}"),
    "wrong_results": (
        "data were wrong",
        "take the node out of service: test GPUs with dcgmi diag -r 3, and the HCA's error counters",
    ),
    "non_finite_values": (
        "bandwidths were not finite numbers",
        "run it again with nccl_tests_preset: standard; a clock may have stepped",
    ),
    "not_one_communicator": ("every process ran by itself", "build nccl-tests with MPI=1 and the MPI that starts it"),
    "single_rank": ("only one rank took part", "build nccl-tests with MPI=1 and the MPI that starts it"),
    "unparseable": ("no row could be read", "less {log}"),
    "exit_status": ("the program did not end well", "less {log}"),
    "no_rows": (
        "the program measured nothing",
        "less {log}; an old program ignores options that it does not know",
    ),
    "incomplete": ("the table has no footer, so the run did not end by itself", "less {log}"),
}

#: of CUDA's words: (what they say, what causes them, what to do)
CUDA_WORDS = (
    (
        re.compile(r"out of memory", re.IGNORECASE),
        "another process holds the GPU's memory, or the largest size does not fit beside NCCL's buffers",
        "nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv on the named node; or lower nccl_tests_max_bytes",
    ),
    (
        re.compile(r"\bECC\b|double.bit", re.IGNORECASE),
        "a GPU's memory is failing",
        "take the node out of service; nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT on it, then nvidia-smi --gpu-reset or replace the GPU",
    ),
    (
        re.compile(
            r"driver version is insufficient|no CUDA.capable|invalid device|system not yet initialized|unsupported.*PTX",
            re.IGNORECASE,
        ),
        "driver, CUDA and GPUs do not fit: an old driver, fewer GPUs than ranks, or a Fabric Manager that does not run",
        "nvidia-smi and systemctl status nvidia-fabricmanager on the named node",
    ),
)

#: a row of a table, or what is left of one
_ROW = re.compile(r"^\d+\s+\d+\s+\w+\s+\w+\s+-?\d+\s")


def log_name(number: int, run: Run) -> str:
    """The files of a run beside run.json, without what ends their names."""
    return f"{number:02d}-{run['stage']}-{run['collective']}"


def judge_failure(run: Run, what: str, log: str) -> list[Finding]:
    """A finding for each node that the failure of *run* names, none for a run that is whole. what: the run in words; log: log_name()."""
    if run["failure"] is None:
        return []
    said, fix = FAILURES.get(run["failure"], (f"the run failed ({run['failure']})", "less {log}"))
    cause = ""
    if run["failure"] == "cuda":
        told = " ".join(run["errors"])
        cause, fix = next(((why, do) for words, why, do in CUDA_WORDS if words.search(told)), ("", fix))
    kept = f" ({len(run['rows'])} size(s) were measured before)" if run["rows"] and not run["completed"] else ""
    # A run that was not started for want of nodes follows from what happened to these nodes, which is said elsewhere.
    follows = run["failure"] == "not_run" and bool(run["failing_hosts"])
    return [
        Finding(
            id=f"benchmark_{run['failure']}",
            severity="notice" if follows else "error",
            node=node,
            subject=what,
            evidence=f"{said}: {_details(run, node)}{kept}",
            expected="a whole table with its footer",
            cause=cause,
            fix=fix.format(log=f"logs/{log}.*.txt"),
        )
        for node in run["failing_hosts"] or [""]
    ]


def _details(run: Run, node: str) -> str:
    """Why: the connection that ended, the launcher, the program, the rows themselves."""
    told = [run["lost"].get(node, ""), run["problem"], *run["errors"][:2], *_rows(run)]
    return "; ".join(filter(None, told)) or _last_words(run)


def _rows(run: Run) -> list[str]:
    """What is wrong with values that were measured."""
    if run["failure"] == "non_finite_values":
        return [f"{run['non_finite_rows']} row(s) hold nan or inf"]
    if run["failure"] != "wrong_results":
        return []
    wrong = [
        f"{row[half]['wrong']:g} element(s) at {size_text(row['size_bytes'])}"
        for row in run["rows"]
        for half in ("out_of_place", "in_place")
        if row.get(half) and row[half]["wrong"]
    ]
    return list(dict.fromkeys(wrong))[:3]


def _last_words(run: Run) -> str:
    printed = "".join(c for c in f"{run['stdout']}\n{run['stderr']}" if c.isprintable() or c == "\n")
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("#") and not set(line) <= set("-=*") and not _ROW.match(line)]
    return ", ".join(filter(None, [_status(run["rc"]), told[-1][:200] if told else ""]))


def _status(status: int | None) -> str:
    if status is None:
        return ""
    if status >= 0:
        return f"exit status {status}"
    known = {number.value: number.name for number in signal.Signals}
    return f"ended by signal {-status} ({known.get(-status, 'unknown')})"
