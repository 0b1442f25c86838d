# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a rollback could not give back is named; a clean one says nothing."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_rollback import ANSWERS, judge_rollback
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.record import cleaned

SETTINGS = {"rollback_parts": list(ANSWERS)}
CLEAN: dict[str, dict[str, t.Any]] = {
    "nccl_tests": {"released": {}},
    "nccl_env": {"outcomes": [{"path": "/etc/nccl.conf", "status": "removed"}]},
    "roce_qos": {"settings": [], "outcomes": []},
    "rdma": {"modules": [], "outcomes": []},
    "kernel_tuning": {
        "keys_given_back": [{"key": "net.core.rmem_max", "status": "restored", "value": "212992", "evidence": ""}],
        "files": [],
    },
}


def judged(**parts: dict[str, t.Any]) -> list[tuple[str, str, str]]:
    observation = {"given_back": {**CLEAN, **parts}}
    return [(f.id, f.severity, f.subject) for f in judge_rollback({"n1": observation}, SETTINGS)]


def test_a_clean_rollback_says_nothing() -> None:
    assert judged() == []


def test_a_part_that_failed_is_named_with_its_reason() -> None:
    [finding] = judge_rollback(
        {"n1": {"given_back": {**CLEAN, "rdma": {"msg": "the prior state of rdma is torn", "failed": False}}}}, SETTINGS
    )
    assert (finding.id, finding.severity, finding.subject) == ("rollback_failed", "error", "rdma")
    assert finding.evidence == "the prior state of rdma is torn" and '"rdma"' in finding.fix


def test_a_busy_node_is_a_warning() -> None:
    assert judged(nccl_env={"skipped": True, "changed": False}) == [("rollback_held", "warning", "nccl_env")]
    assert judged(kernel_tuning={**CLEAN["kernel_tuning"], "held": "Slurm job(s) 7"}) == [
        ("rollback_held", "warning", "kernel_tuning")
    ]


def test_an_edited_file_is_kept_and_said() -> None:
    edited = {"outcomes": [{"path": "/etc/nccl.conf", "status": "changed_since"}]}
    assert judged(nccl_env=edited) == [("rollback_file_changed", "warning", "/etc/nccl.conf")]


def test_what_did_not_take_its_old_value_is_an_error() -> None:
    key = {"key": "net.core.wmem_max", "status": "read_only", "value": "1", "evidence": "in a namespace"}
    assert judged(kernel_tuning={"keys_given_back": [key], "files": []}) == [
        ("rollback_failed", "error", "net.core.wmem_max")
    ]
    gone = {"interface": "eth1", "setting": "all", "status": "failed", "why": "the interface is gone"}
    assert judged(roce_qos={"settings": [gone], "outcomes": []}) == [("rollback_failed", "error", "eth1 all")]
    left = {"released": {"r1": {"processes": [], "removed": [], "left": ["/run/gpufabric/r1: its guard removes it"]}}}
    assert judged(nccl_tests=left) == [("rollback_failed", "error", "run r1")]


def test_parts_that_were_not_asked_for_are_not_judged() -> None:
    skipped = {"given_back": {part: {"skipped": True} for part in ANSWERS}}
    findings = judge_rollback({"n1": skipped}, {"rollback_parts": ["rdma"]})
    assert [f.subject for f in findings] == ["rdma"]


def test_the_record_holds_no_arguments_of_tasks() -> None:
    noisy = {"given_back": {"rdma": {**CLEAN["rdma"], "invocation": {"module_args": {}}, "failed": False}}}
    assert cleaned(noisy) == {"given_back": {"rdma": CLEAN["rdma"]}}
