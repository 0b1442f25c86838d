# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lock in the way is one finding a run, and says who, since when and what to type; and a dead run of this machine is known."""

from __future__ import annotations

import os
import subprocess
import sys
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import controller_process
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_run_lock import judge_run_lock

HOLDER = {"run_id": "20260101T120000Z-aaaa", "user": "ann", "host": "desk1", "since": "2026-01-01T12:00:00+00:00"}


def answer(status: str, holder: dict[str, str] | None = None, **more: t.Any) -> dict[str, t.Any]:
    return {"lock": {"status": status, "holder": holder or {}, "seconds_ago": 3.2, "evidence": "", **more}}


def test_one_finding_for_each_run_in_the_way() -> None:
    other = {**HOLDER, "run_id": "20260101T130000Z-cccc"}
    nodes = {f"n{i}": answer("held", HOLDER) for i in range(512)} | {"m": answer("held", other), "k": answer("taken")}
    findings = judge_run_lock(nodes, {})
    assert [(f.id, f.severity, f.node) for f in findings] == [
        ("run_locked", "error", "n0"),
        ("run_locked", "error", "m"),
    ]
    said = findings[0].evidence
    for word in ("ann", "desk1", HOLDER["run_id"], HOLDER["since"], "511 more"):
        assert word in said
    assert "gpufabric_lock=break" in findings[0].fix


def test_a_free_node_says_nothing() -> None:
    assert judge_run_lock({"a": answer("taken"), "b": answer("ignored"), "c": answer("nothing")}, {}) == []


def test_a_node_that_cannot_be_locked_is_a_warning() -> None:
    [finding] = judge_run_lock({"n1": answer("failed", evidence="Read-only file system")}, {})
    assert (finding.id, finding.severity) == ("run_lock_not_taken", "warning") and "Read-only" in finding.evidence


def test_a_process_that_ended_is_gone_and_one_that_lives_is_not() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    told = controller_process.holder(child.pid, "now")
    assert told["process"].startswith(f"{child.pid} ") and not controller_process.is_gone(told)
    child.communicate(b"\n", timeout=30)
    assert controller_process.is_gone(told)
    mine = controller_process.holder(os.getpid(), "now")
    assert not controller_process.is_gone(mine)
    reused = {**mine, "process": f"{os.getpid()} 1"}
    assert controller_process.is_gone(reused), "another process has that number now"


def test_what_ran_elsewhere_is_never_called_gone() -> None:
    mine = controller_process.holder(os.getpid(), "now")
    assert not controller_process.is_gone({**mine, "controller": "another", "process": "999999 1"})
    assert not controller_process.is_gone({**mine, "process": ""})
    assert not controller_process.is_gone({})
