# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a study leaves: autotune.json, reports, a profile with a gain and none without, findings."""

from __future__ import annotations

import json
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_autotune import judge_autotune
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search import Search
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_plan import Plan
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_record import files_of, record_of
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_study import Study
from simulated_tuning import BUDGET, OBJECTIVE, OTHERS, SPACE, Cluster

pytest.importorskip("numpy")

IN_FORCE = {"btl_tcp_links": "2"}
KEYS = {
    "schema_version", "collection_version", "study", "finished", "backend", "transport", "nodes", "versions", "objective",
    "space", "budget", "starts", "trials", "leader", "importances", "problem", "result", "profile",
}  # fmt: skip


def studied(cluster: Cluster, problem: str = "") -> dict[str, t.Any]:
    plan = Plan(
        backend="mpi", transport="mpi_tcp", nodes=("n1", "n2"), versions={"mpi": "4.1.6"}, space=SPACE, objective=OBJECTIVE,
        starts={"default": {}, "current": IN_FORCE}, in_force=IN_FORCE, others=OTHERS, budget=BUDGET, template={},
        iterations=5, warmup=1, fabric="f0", study="f0-q0",
    )  # fmt: skip
    search = Search(SPACE, BUDGET.trials)
    study = Study(search, OBJECTIVE, plan.starts, OTHERS, BUDGET, cluster.measure, cluster.say, cluster.clock)
    outcome = None if problem else study.run()
    return record_of(plan, search, outcome, problem, {}, "2026-01-01T00:00:00+00:00")


def test_a_gain_is_told_with_its_profile() -> None:
    record = studied(Cluster())
    assert set(record) == KEYS
    files = files_of(record)
    assert set(files) == {"autotune.json", "report.md", "report.html", "openmpi-mca-params.conf"}
    assert "btl_tcp_sndbuf = 1048576" in files["openmpi-mca-params.conf"]
    assert json.loads(files["autotune.json"]) == json.loads(json.dumps(record))
    report = files["report.md"]
    assert report.startswith("# 3.") or report.startswith("# 2.9")
    for part in ("Measured in turn", "current", "btl_tcp_links=2", "Trials", "what is in force"):
        assert part in report and part in files["report.html"], part
    answer = {
        "result": record["result"],
        "profile": record["profile"]["file"],
        "directory": "/r",
        "problem": "",
        "left_out": [],
    }
    (finding,) = judge_autotune({"n1": answer}, {})
    assert (finding.id, finding.severity) == ("autotune_gain", "notice")
    assert "/r/openmpi-mca-params.conf" in finding.fix and "btl_tcp_sndbuf=1048576" in finding.evidence


def test_without_a_gain_nothing_is_to_be_changed() -> None:
    record = studied(Cluster(lambda settings: 1.0, noise=0.06))
    assert set(files_of(record)) == {"autotune.json", "report.md", "report.html"}
    assert record["result"]["text"].startswith("no improvement: ") and record["result"]["best"] == IN_FORCE
    answer = {"result": record["result"], "profile": "", "directory": "/r", "problem": "", "left_out": []}
    (finding,) = judge_autotune({"n1": answer}, {})
    assert (finding.id, finding.fix) == ("autotune_no_gain", "nothing: nothing was changed")


def test_an_unfinished_study_says_why_and_what_to_do() -> None:
    record = studied(Cluster(), problem="n2 went away: it closed its connection")
    assert record["result"] == {} and "Not finished: n2 went away" in files_of(record)["report.md"]
    out = [{"node": "n3", "why": "it is busy: a Slurm job"}]
    answer = {"result": {}, "profile": "", "directory": "/r", "problem": record["problem"], "left_out": out}
    findings = judge_autotune({"n1": answer}, {})
    assert [(f.id, f.severity, f.node) for f in findings] == [
        ("autotune_unfinished", "error", ""),
        ("node_left_out", "warning", "n3"),
    ]
    assert "/r" in findings[0].cause
