# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The measured part of a run: taken from the launcher, judged against what the fabric should give."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.module_utils._withheld import withheld
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_busbw import judge_busbw
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_containers import judge_containers, notes_of
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_failure import log_name
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.record import cleaned
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.repeat_latency import add_repeat_latency

#: texts that become files of their own beside run.json
LOG_KEYS = ("stdout", "stderr")
#: what of a run holds words of programs or of the user, in which an environment may stand
TOLD_KEYS = (*LOG_KEYS, "argv", "environment", "problem", "lost", "errors", "transport")


@dataclasses.dataclass
class BenchmarkPart:
    """benchmark: run.json's part, empty where none ran; verdicts: a mapping for each collective and size."""

    benchmark: dict[str, t.Any] = dataclasses.field(default_factory=dict)
    verdicts: list[dict[str, t.Any]] = dataclasses.field(default_factory=list)
    findings: list[Finding] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    logs: dict[str, str] = dataclasses.field(default_factory=dict)


def benchmark_part(
    results: t.Mapping[str, t.Mapping[str, t.Any] | None],
    settings: t.Mapping[str, t.Mapping[str, t.Any]],
    observed: t.Mapping[str, t.Mapping[str, t.Any]],
) -> BenchmarkPart:
    """Judge what the launcher registered.

    results: {node: result of the role nccl_tests}, of which one holds ``runs``; settings: {node: what judge_busbw() reads}.
    """
    part = BenchmarkPart()
    launcher = next((node for node, result in results.items() if result and "runs" in result), None)
    if launcher is None:
        part.findings = [_no_answer(node, result) for node, result in results.items() if result and _failed(result)]
        return part
    result = cleaned(results[launcher] or {})
    runs = [without_secrets(run) for run in result.pop("runs")]
    add_repeat_latency(runs)
    result = withheld(result)
    part.verdicts, part.findings = judge_busbw(
        runs, settings[launcher], observed, result.get("nodes_left_out", []), str(result.get("problem", ""))
    )
    for number, run in enumerate(runs, start=1):
        name = log_name(number, run)
        part.logs.update({f"{name}.{key}.txt": run.pop(key) for key in LOG_KEYS if run.get(key)})
    containers = result.get("containers") or {}
    part.findings += judge_containers(containers)
    part.notes += notes_of(containers)
    part.benchmark = {"launcher": launcher, **result, "runs": runs}
    if any(run["backend"] == "mpi" for run in runs):
        part.notes.append("GPUs were not measured: the nodes' network was, with MPI in the place of NCCL")
    return part


def without_secrets(run: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """A run as it may be kept."""
    return {**run, **{key: withheld(run[key]) for key in TOLD_KEYS if key in run}}


def _failed(result: t.Mapping[str, t.Any]) -> bool:
    return bool(result.get("failed") or result.get("unreachable") or result.get("msg") and not result.get("skipped"))


def _no_answer(node: str, result: t.Mapping[str, t.Any]) -> Finding:
    """A benchmark that was asked for and gave nothing is no pass, whatever else the run observed."""
    said = " ".join(str(result.get("msg") or result.get("module_stderr") or "the task gave no result").split())
    return Finding(
        id="benchmark_not_run",
        severity="error",
        node=node,
        subject="benchmark",
        evidence=f"nothing was measured: {said}",
        expected="a measurement from the launching node",
        fix=f"ansible {node} -m ansible.builtin.ping -vvv, then run the playbook nccl_tests again",
    )
