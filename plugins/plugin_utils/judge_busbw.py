# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Verdicts on measured bandwidth, a collective and size each, and findings on what went wrong in measuring."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import size_text
from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.expectation import (
    Baseline,
    Expectations,
    Point,
    Run,
    published,
    read_baseline,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_failure import judge_failure, log_name
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_nccl_log import judge_nccl_log
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.line_rates import LineRates, Nodes
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import listed
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.merged_findings import NAMED_NODES, merged
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.run_reader import RunUnreadable, read_run
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.user_path import user_path

Verdict = dict[str, t.Any]

#: measured against expected; below it a size fails, unless nccl_tests_tolerated_share says another share
LEAST_SHARE = 0.9


#: (cause, fix) of bandwidth that is too low: of one node by itself, whose GPUs it is, and of several, of which any may be the one
SLOW_NODE = (
    "a GPU, its clocks or an NVLink of this node is slower than its kind",
    "on the node: nvidia-smi nvlink -s; nvidia-smi -q -d PERFORMANCE,CLOCK; dcgmi diag -r 3",
)
SLOW_FABRIC = (
    "a link, an HCA, a setting or a node is slower than its kind",
    "ansible-playbook gpufabric.cluster.isolate names the node and link; then ansible-playbook gpufabric.cluster.diagnose",
)


def judge_busbw(
    runs: t.Sequence[Run],
    settings: t.Mapping[str, t.Any],
    nodes: Nodes,
    left_out: t.Sequence[t.Mapping[str, str]] = (),
    problem: str = "",
) -> tuple[list[Verdict], list[Finding]]:
    """(verdicts, findings). settings: of the roles nccl_tests and rdma; nodes: {node: {part: what was observed}}.

    left_out: [{node, why}]; problem: why nothing was run.
    A verdict: stage, collective, rail, transport, nodes, size_bytes, busbw_gbs, expected_busbw_gbs,
    expected_from, line_rate_gbs, utilisation (busbw / line rate), margin, status, why.
    """
    nothing = problem if not runs else ""
    # Nodes that are why nothing was measured are named there: one cause is one finding.
    at_fault = [entry["node"] for entry in left_out if entry["why"] == nothing]
    others = {entry["node"]: [_left_out(entry)] for entry in left_out if entry["why"] != nothing}
    findings = merged(others, of_all=False)
    if nothing:
        findings.append(_not_measured(nothing, at_fault))
    baseline, problems = _baseline(str(settings.get("nccl_tests_baseline") or ""))
    findings += problems
    least = float(settings.get("nccl_tests_tolerated_share") or LEAST_SHARE)
    rates = LineRates(nodes, settings)
    verdicts: list[Verdict] = []
    measured: list[_Told] = []
    for number, run in enumerate(runs, start=1):
        findings += judge_failure(run, _what(run), log_name(number, run))
        if not run["rows"]:
            continue
        expectations = Expectations(run, settings, nodes, rates, baseline)
        judged = [_verdict(run, row, expectations, least) for row in run["rows"]]
        verdicts += judged
        told = _below(run, judged, expectations) + _published(run, nodes, least) + _transport(run)
        told += judge_nccl_log(run, nodes, rates, _what(run))
        worst = min((verdict["margin"] for verdict in judged if verdict["margin"] is not None), default=0.0)
        measured += [_Told(run, worst, finding) for finding in told]
    return verdicts, findings + _once(measured)


class _Told(t.NamedTuple):
    """A finding on what *run* measured. worst: its lowest margin."""

    run: Run
    worst: float
    finding: Finding


def _once(measured: t.Sequence[_Told]) -> list[Finding]:
    """What collectives of one kind have in common is one finding, with the words of the one that is furthest below.

    A slow link is slow for all of them: four findings would be three more to read, and nothing else to do.
    """
    groups: dict[tuple[str, str, str], list[_Told]] = {}
    for told in measured:
        groups.setdefault((told.finding.id, told.finding.node, _kind(told.run)), []).append(told)
    findings = []
    for (_id, _node, kind), group in groups.items():
        first = min(group, key=lambda told: told.worst)
        names = list(dict.fromkeys(told.run["collective"] for told in group))
        alike = len({told.finding.evidence for told in group}) == 1
        evidence = first.finding.evidence if alike else f"{first.run['collective']}: {first.finding.evidence}"
        findings.append(dataclasses.replace(first.finding, subject=f"{', '.join(names)} {kind}", evidence=evidence))
    return findings


def _baseline(path: str) -> tuple[Baseline, list[Finding]]:
    if not path:
        return {}, []
    try:
        return read_baseline(read_run(user_path(path))), []
    except (ValueError, KeyError, TypeError) as error:
        return {}, [
            Finding(
                id="baseline_unreadable",
                severity="error",
                node="",
                subject="nccl_tests_baseline",
                evidence=str(error) if isinstance(error, RunUnreadable) else f"{path}: {type(error).__name__}: {error}",
                expected="the run.json of an earlier run on the controller",
                fix="set nccl_tests_baseline to results/<run id>/run.json of an accepted run, or remove it",
            )
        ]


def _what(run: Run) -> str:
    return f"{run['collective']} {_kind(run)}"


def _kind(run: Run) -> str:
    rail = f" on rail {run['rail']}" if run["rail"] else ""
    return f"({run['backend']}, {run['stage']}{rail}, {run['transport']['claimed'] or 'any transport'})"


def _alone(run: Run) -> str:
    """The node that a run is about, "" where it is about several."""
    return str(run["nodes"][0]) if len(run["nodes"]) == 1 else ""


def _left_out(entry: t.Mapping[str, str]) -> Finding:
    why = entry["why"]
    known = why.startswith(("it is busy", "it did not answer"))
    return Finding(
        id="node_not_measured",
        severity="notice" if known else "error",
        node=entry["node"],
        subject="benchmark",
        evidence=f"left out of the benchmark: {why}",
        expected="every node takes part",
        fix="" if known else "correct what the reason says, then run the playbook nccl_tests again",
    )


def _not_measured(problem: str, nodes: t.Sequence[str]) -> Finding:
    where = f"{listed(nodes, NAMED_NODES)}: " if nodes else ""
    return Finding(
        id="benchmark_not_run",
        severity="error",
        node="",
        subject="benchmark",
        evidence=f"nothing was measured: {where}{problem}",
        expected="a measurement over at least two nodes",
        fix="correct what the reason says, or add nodes to the inventory; without a benchmark: --skip-tags nccl_tests",
    )


def _verdict(run: Run, row: t.Mapping[str, t.Any], expectations: Expectations, least: float) -> Verdict:
    half = row["out_of_place"]
    size, busbw = row["size_bytes"], half["busbw_gbs"]
    point = expectations.at(size)
    line_rate = expectations.computed.line_rate_gbs
    status, why = _status(half, size, point, least)
    return {
        "stage": run["stage"],
        "collective": run["collective"],
        "rail": run["rail"],
        "transport": run["transport"]["claimed"],
        "nodes": run["nodes"],
        "size_bytes": size,
        "busbw_gbs": busbw,
        "expected_busbw_gbs": point.busbw_gbs,
        "expected_from": point.kind,
        "line_rate_gbs": line_rate,
        "utilisation": busbw / line_rate if line_rate and busbw is not None else None,
        "margin": busbw / point.busbw_gbs - 1.0 if point.busbw_gbs and busbw is not None else None,
        "status": status,
        "why": why,
    }


def _status(half: t.Mapping[str, t.Any], size: int, point: Point, least: float) -> tuple[str, str]:
    if half["wrong"]:
        return "fail", f"{half['wrong']:g} element(s) were wrong"
    if size == 0:
        return "pass", "nothing to move: the size is below 16 bytes a rank"
    if half["busbw_gbs"] is None or half["time_us"] is None:
        return "fail", "no bandwidth was measured"
    if point.busbw_gbs is None:
        return "unjudged", f"no expectation: {point.source}"
    if point.allowed_us is not None:
        ok = half["time_us"] <= point.allowed_us
        return "pass" if ok else "fail", f"mostly latency: {half['time_us']:.0f} µs, {point.allowed_us:.0f} µs allowed"
    share = half["busbw_gbs"] / point.busbw_gbs
    said = f"{half['busbw_gbs']:.4g} GB/s, {share:.0%} of the {point.busbw_gbs:.4g} GB/s expected ({point.source})"
    return "pass" if share >= least else "fail", said


def _below(run: Run, judged: t.Sequence[Verdict], expectations: Expectations) -> list[Finding]:
    """One finding a run for all sizes that failed, with the worst of them; one where nothing could be judged."""
    peak = expectations.computed.peak_gbs
    wrong = run["failure"] == "wrong_results"  # which is said already, with what to do
    failed = [
        verdict
        for verdict, row in zip(judged, run["rows"], strict=True)
        if verdict["status"] == "fail" and not (wrong and row["out_of_place"]["wrong"])
    ]
    if failed:
        worst = min(failed, key=lambda verdict: verdict["margin"] if verdict["margin"] is not None else -1.0)
        cause, fix = SLOW_NODE if run["stage"] == "node" else SLOW_FABRIC
        return [
            Finding(
                id="busbw_below_expected",
                severity="error",
                node=_alone(run),
                subject=_what(run),
                evidence=f"{len(failed)} of {len(judged)} sizes are below; at {size_text(worst['size_bytes'])} {worst['why']}",
                expected="right data" if peak is None else f"busbw near {peak:.4g} GB/s for large sizes",
                cause=cause,
                fix=fix,
            )
        ]
    unjudged = [verdict for verdict in judged if verdict["status"] == "unjudged"]
    if unjudged and run["failure"] is None:
        return [
            Finding(
                id="busbw_not_judged",
                severity="error",
                node=_alone(run),
                subject=_what(run),
                evidence=f"{len(unjudged)} sizes were measured and none could be judged: {expectations.computed.source}",
                expected="a line rate to hold the measurement against",
                fix="set nccl_tests_line_rate_gbps to what one node's NICs give together, in Gb/s",
            )
        ]
    return []


def _published(run: Run, nodes: Nodes, least: float) -> list[Finding]:
    """A cross-check with figures that others published: worth a look, no verdict, since their machines were others."""
    figure = published(run, nodes)
    large = [row for row in run["rows"] if figure and row["size_bytes"] >= figure["min_bytes"]]
    if not figure or not large:
        return []
    best = max(row["out_of_place"]["busbw_gbs"] or 0.0 for row in large)
    if best >= least * figure["busbw_gbs"]:
        return []
    return [
        Finding(
            id="busbw_below_published",
            severity="warning",
            node=_alone(run),
            subject=_what(run),
            evidence=f"{best:.4g} GB/s at best",
            expected=f"{figure['busbw_gbs']:g} GB/s: {figure['what']} ({figure['source']})",
            cause="NVLink SHARP that is off, clocks that are throttled, or a link that is down",
            fix="nvidia-smi nvlink -s; nvidia-smi -q -d PERFORMANCE,CLOCK; see whether the log has NVLS channels",
        )
    ]


def _transport(run: Run) -> list[Finding]:
    claimed, proven = run["transport"]["claimed"], run["transport"]["proven"]
    if not claimed or claimed == proven or (run["failure"] and not proven):
        return []  # a run that was cut off moved fewer bytes than it would have, and its failure is said already
    return [
        Finding(
            id="transport_fallback" if proven else "transport_not_proven",
            severity="error",
            node=_alone(run),
            subject=_what(run),
            evidence="; ".join(run["transport"]["evidence"][:4]) or "nothing shows which transport was used",
            expected=f"{claimed} as the transport" + (f", not {proven}" if proven else ""),
            cause="the launcher fell back to another transport, or the traffic took another way",
            fix="ansible-playbook gpufabric.cluster.diagnose; the run's log says what was selected",
        )
    ]
