# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ranks answered, in the record's shape, and what is judged of it."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.module_utils._training_task import Task, Training, answer_line
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import training_plan
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_lora import judge_lora
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.training import (
    DEAREST_COLUMNS,
    TRAINING_COLUMNS,
    dearest_rows,
    training_lines,
    training_rows,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.training_prices import predict, prices_of
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.training_result import shape
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload_state import Message

MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
}
LORA = Training("LoRA 4", MODEL, lora={"r": 4, "target_modules": "all-linear"})
TASK = Task("nccl", (LORA,))
LISTED = training_plan.listed(LORA, 2, 1)
SENT = sum(message.size for message in LISTED)


def step(transfer_s: float, exposed_s: float, **more: float) -> dict[str, float]:
    known = {
        "step_s": 0.1 + exposed_s,
        "profiled_s": 0.1 + exposed_s,
        "communication_s": transfer_s * 1.2,
        "compute_s": 0.1,
    }
    return {**known, "exposed_s": exposed_s, "transfer_s": transfer_s, "cpu_cores": 1.5, **more}


def rank(number: int, transfer_s: float = 0.02, exposed_s: float = 0.005, **more: t.Any) -> list[dict[str, t.Any]]:
    steps = [step(transfer_s * factor, exposed_s * factor) for factor in (0.9, 1.0, 1.1)]
    issued = [[m.collective, m.size, 1] for m in LISTED]
    trained = {
        "training": LORA.name,
        "steps": steps,
        "issued": issued,
        "node_delta": {"cpu_busy": 0.25},
        "memory_mb": 100,
    }
    head: dict[str, t.Any] = {"versions": {"torch": "2"}, "ranks": 2, "device": "H200"}
    return [{"rank": number, "node": number, **one} for one in (head, {**trained, **more})]


def priced(seconds_each: float) -> list[dict[str, t.Any]]:
    sizes = {(m.collective, m.size) for m in LISTED}
    return [
        {"rank": 0, "price": c, "size_bytes": s, "time_us": 1e6 * seconds_each, "apart_us": 1.5e6 * seconds_each}
        for c, s in sizes
    ]


def launch(by_node: dict[str, list[dict[str, t.Any]]], setting: str = "current", **more: t.Any) -> dict[str, t.Any]:
    alone = {n: {"rc": 0, "stdout": "".join(map(answer_line, said)), "stderr": ""} for n, said in by_node.items()}
    known = {
        "collective": setting,
        "nodes": list(by_node),
        "rc": 0,
        "timed_out": False,
        "timeout_s": 60.0,
        "problem": "",
        "lost": {},
    }
    return {**known, "alone": alone, **more}


def whole(setting: str = "current", **more: t.Any) -> dict[str, t.Any]:
    return launch({"a": [*rank(0, **more), *priced(0.01)], "b": rank(1, **more)}, setting)


def judged(shaped: dict[str, t.Any], **more: t.Any) -> dict[str, Finding]:
    found = judge_lora({"a": {"problem": "", "nodes_left_out": [], **shaped, **more}}, {})
    return {finding.id: finding for finding in found}


def test_measured_and_predicted_stand_side_by_side() -> None:
    one = shape([whole()], TASK, 1, line_rate_gbps=400.0)["trainings"][0]
    assert one["transfer_s"] == {"median": 0.02, "low": pytest.approx(0.018), "high": pytest.approx(0.022)}
    assert one["communication_share"] == pytest.approx(0.024 / 0.105)
    assert one["overlap"] == pytest.approx(1 - 0.005 / 0.024)
    assert one["pattern"] == "apart" and one["predicted_s"] == pytest.approx(0.015 * len(LISTED))
    assert one["prediction_error"] == pytest.approx(one["predicted_s"] / 0.02 - 1)
    assert one["algbw_gbs"] == pytest.approx(SENT / 0.02 / 1e9) and one["line_rate_share"] is not None
    assert one["cpu_utilisation"] == {"a": 0.25, "b": 0.25} and one["as_listed"]
    assert [(entry["rank"], entry["node"]) for entry in one["by_rank"]] == [(0, "a"), (1, "b")]


def test_messages_queue_where_the_step_computes_less_than_they_take() -> None:
    prices = prices_of(priced(0.01), 2)
    assert predict(LISTED, prices, free_s=1.0)["pattern"] == "apart"
    queued = predict(LISTED, prices, free_s=0.001)
    assert (queued["pattern"], queued["seconds"]) == ("following", pytest.approx(0.01 * len(LISTED)))


def test_where_apart_could_not_be_told_the_others_are_taken() -> None:
    answers = [{**one, "apart_us": None} for one in priced(0.01)]
    assert predict(LISTED, prices_of(answers, 2), free_s=1.0)["pattern"] == "following"


def test_a_price_that_is_missing_is_named_and_no_error_computed() -> None:
    raw = launch({"a": [*rank(0), *priced(0.01)[:1]], "b": rank(1)})
    one = shape([raw], TASK, 1)["trainings"][0]
    assert one["unpriced"] and one["prediction_error"] is None
    assert "lora_prediction_off" not in judged(shape([raw], TASK, 1))


def test_nccl_tests_give_a_second_prediction() -> None:
    def run(collective: str) -> dict[str, t.Any]:
        return {"collective": collective, "ranks": 2, "rows": [{"size_bytes": 8, "out_of_place": {"time_us": 10.0}}]}

    first = shape([whole()], TASK, 1, benchmark=[run("all_reduce")])["trainings"][0]
    assert "predicted_from_nccl_tests_s" not in first, "nobody measured a broadcast"
    both = shape([whole()], TASK, 1, benchmark=[run("all_reduce"), run("broadcast")])["trainings"][0]
    assert both["predicted_from_nccl_tests_s"] > 0


def test_other_settings_are_compared_with_the_first() -> None:
    raws = [whole("before"), whole("after", transfer_s=0.006, exposed_s=0.001)]
    finding = judged(shape(raws, TASK, 1))["lora_settings_compared"]
    assert finding.severity == "notice" and finding.subject == "LoRA 4, settings before and after"
    assert "(80% less)" in finding.evidence


@pytest.mark.parametrize(
    ("change", "identifier", "words"),
    [
        (
            {"rank": 1, "node": 1, "problem": "out_of_memory", "while": "LoRA 4", "text": "CUDA out of memory"},
            "lora_out_of_memory",
            "rank 1 on b",
        ),
        ({"rank": 1, "node": 1, "problem": "failed", "while": "start", "text": "no GPU"}, "lora_rank_failed", "no GPU"),
    ],
)
def test_a_rank_that_fails_is_named_with_its_words(change: dict[str, t.Any], identifier: str, words: str) -> None:
    raw = launch({"a": rank(0)[:1], "b": [*rank(1)[:1], change]}, rc=17)
    shaped = shape([raw], TASK, 1)
    finding = judged(shaped)[identifier]
    assert shaped["trainings"] == [] and finding.severity == "error" and finding.node == "b"
    assert words in finding.evidence and "not measured: LoRA 4" in finding.evidence


def test_a_hung_launch_names_the_nodes_that_never_answered() -> None:
    raw = launch({"a": rank(0)[:1], "b": []}, rc=None, timed_out=True)
    finding = judged(shape([raw], TASK, 1))["lora_hung"]
    assert "not finished within 60 s, b gave no answer at all" in finding.evidence and finding.node == "b"


def test_torchruns_own_words_are_told_where_no_rank_spoke() -> None:
    raw = launch({"a": []}, rc=1)
    raw["alone"]["a"].update(rc=1, stderr="ModuleNotFoundError: No module named 'torch'")
    assert "No module named 'torch'" in judged(shape([raw], TASK, 1))["lora_rank_failed"].evidence


def test_what_was_measured_before_a_failure_is_kept() -> None:
    raw = launch(
        {
            "a": [*rank(0), {"rank": 0, "node": 0, "problem": "failed", "while": "messages alone", "text": "x"}],
            "b": rank(1),
        },
        rc=18,
    )
    found = judged(shape([raw], TASK, 1))
    assert {"lora_rank_failed", "lora_communication"} <= set(found)


def test_messages_that_are_not_in_the_list_are_told() -> None:
    more = [[m.collective, m.size, 1] for m in LISTED] + [["all_reduce", 4, 3]]
    finding = judged(shape([launch({"a": [*rank(0, issued=more)], "b": rank(1)})], TASK, 1))["lora_messages_unlisted"]
    assert "3 all_reduce of 4 bytes were issued in a step, 0 are in the list" in finding.evidence


def test_a_rank_that_computes_longer_than_the_others_is_named() -> None:
    slow = [step(0.02, 0.005, compute_s=0.2)] * 3
    raw = launch({"a": [*rank(0), *rank(1)], "b": [*rank(2), *rank(3, steps=slow)]})
    finding = judged(shape([raw], TASK, 2))["lora_slow_rank"]
    assert (finding.node, finding.severity) == ("b", "warning") and finding.subject.startswith("rank 3")


def test_nodes_left_out_and_why_nothing_ran_are_findings() -> None:
    left = [{"node": "c", "why": "it has no GPU"}]
    empty = {"trainings": [], "failures": [], "problem": "lora_workload_lora_ranks holds 0", "nodes_left_out": left}
    found = judged(empty)
    assert found["lora_not_run"].severity == "error" and found["node_left_out"].node == "c"


def test_latency_or_bandwidth_is_said() -> None:
    cause = judged(shape([whole()], TASK, 1))["lora_communication"].cause
    assert cause.startswith(("latency rules", "bandwidth rules"))


def test_the_report_shows_a_row_a_setting_and_the_sizes_that_matter() -> None:
    lora = shape([whole("before"), whole("after")], TASK, 1)
    record = {"nodes": {"a": {"lora": lora}, "b": {}}}
    rows = training_rows(record)
    assert [row[:3] for row in rows] == [["LoRA 4", "before", "2"], ["LoRA 4", "after", "2"]]
    assert all(len(row) == len(TRAINING_COLUMNS) for row in rows)
    assert rows[0][TRAINING_COLUMNS.index("they take (ms)")] == "20"
    dear = dearest_rows(record)
    assert dear and {row[2] for row in dear} <= {"all_reduce", "broadcast"}
    assert all(len(row) == len(DEAREST_COLUMNS) for row in dear)
    assert training_rows({"nodes": {"b": {}}}) == []
    lines = training_lines(record)
    assert len(lines) == 2 and lines[0].startswith("LoRA 4, setting before: step (ms) 105 ")


def test_sizes_for_nccl_tests_come_from_the_list() -> None:
    plan = shape([whole()], TASK, 1)["size_plan"]
    assert {entry["collective"] for entry in plan} <= {"all_reduce", "broadcast"} and plan
    assert isinstance(LISTED[0], Message)
