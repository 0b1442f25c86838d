# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges what the role lora_workload measured: what failed and why, what communication costs, what other settings gain."""

from __future__ import annotations

import statistics
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_samples import compare

Result = t.Mapping[str, t.Any]

#: a rank whose computation takes so much longer than the median rank's slows all others
SLOW_RANK = 1.25
#: {kind of failure: (id, why, what to do)}
FAILURES = {
    "out_of_memory": (
        "lora_out_of_memory",
        "model, optimizer and activations are more than a rank may take",
        "set lora_workload_batch or lora_workload_sequence lower, or name a smaller lora_workload_model",
    ),
    "timeout": (
        "lora_hung",
        "a rank that waits for another one waits until the time limit",
        "look at the nodes named, or give lora_workload_timeout_s more seconds if steps are that slow",
    ),
    "lost": (
        "node_lost",
        "the node went away in the middle of the training",
        "look at the node, then run lora.yml again",
    ),
    "failed": ("lora_rank_failed", "", "correct what the rank says, then run lora.yml again"),
}


def judge_lora(nodes: t.Mapping[str, Result], settings: t.Mapping[str, t.Any]) -> list[Finding]:
    """Findings over the registered results of lora_step; one node, the launcher, has one."""
    findings: list[Finding] = []
    tolerated = float(settings.get("lora_workload_tolerated_error", 0.25))
    for launcher, result in nodes.items():
        if result["problem"]:
            findings.append(_not_run(launcher, result))
        findings += [_failure(failure) for failure in result["failures"]]
        findings += [_left_out(entry) for entry in result["nodes_left_out"]]
        trainings = result["trainings"]
        for one in trainings:
            findings += [_measured(one), *_unlike_the_list(one), *_mispredicted(one, tolerated), *_slow_ranks(one)]
        findings += _compared(trainings)
    return findings


def _finding(identifier: str, severity: str, subject: str, evidence: str, **more: str) -> Finding:
    known = {"node": "", "expected": "", "cause": "", "fix": "", **more}
    return Finding(id=identifier, severity=severity, subject=subject, evidence=evidence, **known)


def _not_run(launcher: str, result: Result) -> Finding:
    return _finding(
        "lora_incomplete" if result["trainings"] else "lora_not_run",
        "error",
        "lora_workload",
        result["problem"],
        expected="a measurement of every training under every setting",
        fix=f"correct that, or look at {launcher}, then run lora.yml again",
    )


def _failure(failure: Result) -> Finding:
    identifier, cause, fix = FAILURES.get(failure["kind"], FAILURES["failed"])
    ranks = failure["ranks"]
    nodes = sorted({str(rank["node"]) for rank in ranks} or set(failure["lost"]) or set(failure["silent"]))
    said = "; ".join(f"rank {rank['rank']} on {rank['node']} in {rank['while']}: {rank['text']}" for rank in ranks[:3])
    if not said and failure["kind"] == "timeout":
        silent = f", {', '.join(failure['silent'])} gave no answer at all" if failure["silent"] else ""
        said = f"not finished within {failure['timeout_s']:.0f} s{silent}"
    said = said or failure["problem"] or " ".join(failure["said"].split())[-400:] or "torchrun ended without an answer"
    return _finding(
        identifier,
        "error",
        f"training, setting {failure['setting']}",
        f"{said} (not measured: {'; '.join(failure['missing'])})" if failure["missing"] else said,
        node=nodes[0] if len(nodes) == 1 else "",
        expected="a measurement of every training",
        cause=cause,
        fix=fix,
    )


def _left_out(entry: Result) -> Finding:
    return _finding(
        "node_left_out",
        "warning",
        "lora_workload",
        f"it took no part: {entry['why']}",
        node=entry["node"],
        expected="a node that can train",
        fix="correct that, and run lora.yml again",
    )


def _subject(one: Result) -> str:
    return f"{one['name']}, setting {one['setting']}"


def _measured(one: Result) -> Finding:
    step, exposed = one["step_s"], one["exposed_s"]
    processors = statistics.median(one["cpu_utilisation"].values()) if one["cpu_utilisation"] else 0.0
    rate = f", {one['line_rate_share']:.0%} of the line rate" if one["line_rate_share"] is not None else ""
    return _finding(
        "lora_communication",
        "notice",
        _subject(one),
        f"a step takes {_ms(step)}; communication is {one['communication_share']:.0%} of it, {_ms(exposed)} are not hidden behind "
        f"computation ({one['exposed_share']:.0%}), overlap {one['overlap']:.0%}; {one['messages']} messages of "
        f"{one['sent_bytes'] / 1e6:.4g} MB take {1e3 * one['transfer_s']['median']:.4g} ms, {one['predicted_s'] * 1e3:.4g} ms "
        f"predicted; {one['algbw_gbs']:.3g} GB/s, {one['bandwidth_utilisation']:.0%} of the best measured here{rate}; "
        f"processors {processors:.0%} busy",
        cause=f"{one['rules']} rules: {one['bandwidth_share']:.0%} of the predicted time is bandwidth, the rest latency",
    )


def _ms(value: Result) -> str:
    return f"{1e3 * value['median']:.4g} ms ({1e3 * value['low']:.4g} to {1e3 * value['high']:.4g})"


def _unlike_the_list(one: Result) -> list[Finding]:
    if one["as_listed"]:
        return []
    first = one["differences"][0]
    return [
        _finding(
            "lora_messages_unlisted",
            "warning",
            _subject(one),
            f"{first['issued']} {first['collective']} of {first['size']} bytes were issued in a step, {first['listed']} are in the list"
            + (f" (and {len(one['differences']) - 1} more differences)" if len(one["differences"]) > 1 else ""),
            expected="the messages that follow from the model's config",
            cause="this version of PyTorch, transformers or peft sends something else, so the prediction is of another job",
            fix="trust the measurement, not the prediction",
        )
    ]


def _mispredicted(one: Result, tolerated: float) -> list[Finding]:
    error = one["prediction_error"]
    if error is None or abs(error) <= tolerated:
        return []
    return [
        _finding(
            "lora_prediction_off",
            "notice",
            _subject(one),
            f"its messages took {1e3 * one['transfer_s']['median']:.4g} ms, {1e3 * one['predicted_s']:.4g} ms were predicted ({error:+.0%})",
            expected=f"a difference of at most {tolerated:.0%}",
            cause="messages cost more beside computation than alone"
            if error < 0
            else "small or overlapping messages cost less than alone",
        )
    ]


def _slow_ranks(one: Result) -> list[Finding]:
    """Ranks that compute longer than the others, who then wait for them inside the collectives."""
    usual = statistics.median(rank["compute_s"] for rank in one["by_rank"])
    return [
        _finding(
            "lora_slow_rank",
            "warning",
            f"rank {rank['rank']}, {_subject(one)}",
            f"it computes {1e3 * rank['compute_s']:.4g} ms a step, the median rank {1e3 * usual:.4g} ms",
            node=rank["node"],
            expected=f"at most {SLOW_RANK:g} times the median",
            cause="every other rank waits for it in each collective",
            fix=f"ansible-playbook gpufabric.cluster.diagnose --limit {rank['node']}",
        )
        for rank in one["by_rank"]
        if len(one["by_rank"]) > 2 and usual and rank["compute_s"] > SLOW_RANK * usual
    ]


def _compared(trainings: t.Sequence[Result]) -> list[Finding]:
    """Each further setting against the first one, training by training."""
    findings = []
    baselines = {one["name"]: one for one in reversed(trainings)}
    for one in trainings:
        base = baselines[one["name"]]
        if base is one:
            continue
        gain = compare([1 / value for value in one["samples_s"]], [1 / value for value in base["samples_s"]])
        exposed = [side["exposed_s"]["median"] for side in (base, one)]
        predicted = [1e3 * side["predicted_s"] for side in (base, one)]
        less = f" ({1 - exposed[1] / exposed[0]:.0%} less)" if exposed[0] else ""
        findings.append(
            _finding(
                "lora_settings_compared",
                "notice",
                f"{one['name']}, settings {base['setting']} and {one['setting']}",
                f"steps of {1e3 * base['step_s']['median']:.4g} and {1e3 * one['step_s']['median']:.4g} ms, as fast {gain.text}; "
                f"communication that is not hidden {1e3 * exposed[0]:.4g} and {1e3 * exposed[1]:.4g} ms{less}; "
                f"predicted communication {predicted[0]:.4g} and {predicted[1]:.4g} ms",
            )
        )
    return findings
