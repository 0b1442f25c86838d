# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The run record: nothing lost, nobody forgotten, no pass without a judgment."""

from __future__ import annotations

import json
import pathlib
import typing as t

import jsonschema
import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.assemble import assemble
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.read_logs import read_logs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.record import SCHEMA, decide, judge_section
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.sections import BENCHMARK, NODE, SECTIONS, Section

ABOUT = {"ansible_core": "2.19.0", "python": "3.11", "finished": "2026-01-01T00:01:00+00:00", "check_mode": False}


def node(name: str, **changes: t.Any) -> dict[str, t.Any]:
    observed = {"hostname": name, "boot_id": f"boot-{name}", "machine_id": f"m-{name}", "busy": False, "busy_why": ""}
    return {"observed": {**observed, **changes}, "invocation": {"module_args": {}}, "failed": False}


def run(
    results: dict[str, dict[str, t.Any]],
    nodes: t.Sequence[str] = ("n1", "n2"),
    logs: dict[str, t.Any] | None = None,
    **inputs: t.Any,
) -> dict[str, t.Any]:
    everything = {section.name: results.get(section.name, {}) for section in (*SECTIONS, BENCHMARK)}
    settings = {section.name: {n: {} for n in nodes} for section in (*SECTIONS, BENCHMARK)}
    started = {"run_id": "20260101T000000Z-0a1b", "started": "2026-01-01T00:00:00+00:00", "nodes": list(nodes)}
    record = assemble({**started, "bad_nodes": [], "findings": [], **inputs}, everything, settings, ABOUT, logs)
    record.pop("logs")
    jsonschema.validate(json.loads(json.dumps(record)), json.loads(SCHEMA.read_text()))
    return record


def test_an_unreachable_node_is_named_and_the_others_stay() -> None:
    record = run({"node": {"n1": node("n1"), "n2": {"unreachable": True, "msg": "No route to host"}}})
    assert record["findings"][0]["id"] == "node_unreachable" and record["findings"][0]["node"] == "n2"
    assert record["verdict"]["status"] == "fail" and "n2" in record["verdict"]["text"]
    assert set(record["nodes"]["n1"]) == {"node"} and "invocation" not in record["nodes"]["n1"]["node"]


def test_a_node_that_never_came_into_the_play_is_named() -> None:
    assert [f["node"] for f in run({"node": {"n1": node("n1")}})["findings"]] == ["n2"]


def test_a_node_without_python_is_told_apart_from_a_dead_one() -> None:
    broken = {
        "msg": "The module failed to execute correctly",
        "module_stderr": "/usr/bin/python3: not found",
        "rc": 127,
    }
    finding = run({"node": {"n1": node("n1"), "n2": broken}})["findings"][0]
    assert (finding["id"], finding["subject"]) == ("node_unusable", "Python") and "not found" in finding["evidence"]


def test_nothing_observed_is_no_pass() -> None:
    assert run({"node": {"n1": node("n1"), "n2": node("n2")}})["verdict"]["status"] == "unjudged"


@pytest.mark.parametrize(("lines", "status"), [(0, "unjudged"), (3, "pass")])
def test_logs_that_hold_nothing_are_no_pass(tmp_path: pathlib.Path, lines: int, status: str) -> None:
    (tmp_path / "job.log").write_text("step 1\n" * lines)
    record = run({}, nodes=(), logs={"logs": read_logs(str(tmp_path))})
    assert record["verdict"]["status"] == status
    assert lines or "no log holds a line" in record["verdict"]["text"]


def test_one_machine_under_two_names_is_one_finding() -> None:
    record = run({"node": {"n1": node("same"), "n2": node("same")}})
    assert [f["id"] for f in record["findings"]] == ["duplicate_boot_id"]


def test_a_busy_node_is_said_so() -> None:
    record = run({"node": {"n1": node("n1", busy=True, busy_why="Slurm job(s) 7"), "n2": node("n2")}})
    assert [(f["id"], f["severity"], f["node"]) for f in record["findings"]] == [("node_busy", "warning", "n1")]


def test_bad_input_is_reported_and_its_node_not_blamed_twice() -> None:
    wrong = Finding("wrong_type", "error", "n2", "rdma_x", "rdma_x = 'a'").as_dict()
    record = run({"node": {"n1": node("n1")}}, bad_nodes=["n2"], findings=[wrong])
    assert [f["id"] for f in record["findings"]] == ["wrong_type"]


def test_a_part_that_failed_is_a_finding_with_its_words() -> None:
    section = Section("kernel", "kernel_tuning", "v", "keys", "nowhere:at_all")
    found = judge_section(section, {"n1": {"msg": "boom", "failed": False}, "n2": None}, {"n1": {}, "n2": {}})
    assert [(f.id, f.node, f.evidence) for f in found] == [("kernel_not_observed", "n1", "boom")]


def test_nodes_with_equal_settings_are_judged_together(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def judge(nodes: t.Mapping[str, t.Any], settings: t.Mapping[str, t.Any]) -> list[Finding]:
        calls.append([settings["x"], *nodes])
        return []

    monkeypatch.setattr(Section, "load_judge", lambda self: judge)
    settings = {"n1": {"x": "a"}, "n2": {"x": "b"}, "n3": {"x": "a"}}
    judge_section(NODE, {name: node(name) for name in settings}, settings)
    assert calls == [["a", "n1", "n3"], ["b", "n2"]]


def test_an_error_beats_everything_and_the_worst_comes_first() -> None:
    findings = [Finding("a", "notice", "n1", "s", "e"), Finding("b", "error", "n2", "mlx5_1 port 1", "Down")]
    assert decide(findings, judged=True).text == "FAIL: n2 mlx5_1 port 1: Down"
    assert decide(findings[:1], judged=True).status == "pass"


NOTHING = {
    "started": False,
    "runs": [],
    "planned": 0,
    "problem": "n1: no program",
    "nodes_used": [],
    "nodes_left_out": [],
    "lost": {},
    "released": [],
}


@pytest.mark.parametrize(
    ("registered", "said"),
    [
        ({"msg": "The module failed to execute", "failed_when_result": False}, "The module failed to execute"),
        ({"unreachable": True, "msg": "Failed to connect to the host via ssh"}, "Failed to connect"),
        (NOTHING, "n1: no program"),
    ],
)
def test_a_benchmark_that_gave_nothing_is_no_pass(registered: dict[str, t.Any], said: str) -> None:
    nodes = {"n1": node("n1"), "n2": node("n2")}
    record = run({"node": nodes, "benchmark": {"n1": registered, "n2": {"skipped": True}}})
    assert record["verdict"]["status"] == "fail"
    (finding,) = [f for f in record["findings"] if f["part"] == "benchmark"]
    assert finding["id"] == "benchmark_not_run" and said in finding["evidence"]


def test_a_benchmark_that_was_not_asked_for_is_none() -> None:
    nodes = {"n1": node("n1"), "n2": node("n2")}
    skipped = {"n1": {"skipped": True, "msg": "Conditional result was False"}, "n2": {"skipped": True}}
    assert run({"node": nodes, "benchmark": skipped})["findings"] == []


def test_what_a_play_said_to_the_benchmark_is_in_the_record() -> None:
    nodes = {"n1": node("n1"), "n2": node("n2")}
    registered = {**NOTHING, "said": {"nccl_tests_tolerated_share": 0.5}}
    record = run({"node": nodes, "benchmark": {"n1": registered, "n2": {"skipped": True}}})
    assert [group["values"] for group in record["settings"]["benchmark"]] == [{"nccl_tests_tolerated_share": 0.5}]
