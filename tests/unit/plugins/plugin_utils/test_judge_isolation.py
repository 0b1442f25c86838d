# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import isolate_verdict, judge_isolation
from fleet_simulator import racked
from isolate_runs import run


def test_a_verdict_is_json_with_the_evidence_of_every_accusation() -> None:
    fleet = racked(64, 16, 1)
    fleet.speed["n0020"] = 80.0
    state = run(fleet)
    said = json.loads(json.dumps(isolate_verdict.verdict(state)))
    assert said["complete"]
    (entry,) = said["accused"]
    assert entry["node"] == "n0020"
    assert entry["rack"] == "r001"
    assert entry["ratio"] == pytest.approx(0.8, abs=0.04)
    assert entry["busbw"] == pytest.approx(entry["ratio"] * entry["peers_busbw"], rel=1e-3)
    assert len(entry["partners"]) >= 2
    assert sum(partner["runs"] for partner in entry["partners"]) <= entry["runs"]
    assert 0 < entry["false_accusation"] <= said["false_accusation"]
    assert said["cleared"] == 63
    assert said["launches"] == sum(said["launches_by_stage"].values()) == state.launches
    assert said["launches_of_all_pairs"] == 2016
    assert said["launches_of_the_full_circle"] == 63
    assert said["noise"] == pytest.approx(0.03, rel=0.2)


def test_every_finding_says_what_to_type_and_how_sure_it_is() -> None:
    fleet = racked(64, 16, 1, hangs=frozenset(("n0040",)), vanish={3: ["n0050"]})
    fleet.speed["n0020"] = 80.0
    fleet.bias["r003"] = 0.5
    found = {finding.id: finding for finding in judge_isolation.findings(isolate_verdict.verdict(run(fleet)))}
    assert set(found) == {"node_slow", "node_fails", "node_vanished", "rack_slow"}
    for finding in found.values():
        assert finding.fix and finding.cause and finding.expected and finding.evidence
    assert "scontrol update NodeName=n0020 State=DRAIN" in found["node_slow"].fix
    assert found["node_slow"].fix.startswith("ansible-playbook gpufabric.cluster.diagnose --limit n0020,n0000,n0001;")
    assert "GB/s against" in found["node_slow"].evidence
    assert "hung or failed" in found["node_fails"].evidence
    assert "Reason='collectives hang or fail'" in found["node_fails"].fix
    for kind in ("node_slow", "node_fails"):
        assert "fewer than one fleet in" in found[kind].evidence


def test_the_worst_comes_first() -> None:
    fleet = racked(64, 16, 1)
    fleet.speed["n0020"], fleet.speed["n0040"] = 80.0, 50.0
    assert [entry["node"] for entry in isolate_verdict.verdict(run(fleet))["accused"]] == ["n0040", "n0020"]


def test_a_verdict_can_be_asked_for_before_anything_ran_and_half_way() -> None:
    from ansible_collections.gpufabric.cluster.plugins.plugin_utils import isolate

    fleet = racked(64, 16, 1)
    state = isolate.begin({name: {"rack": rack} for name, rack in fleet.rack.items()})
    while launches := isolate.plan(state):
        said = isolate_verdict.verdict(state)
        assert not said["complete"]
        judge_isolation.findings(said)
        state = isolate.observe(state, *fleet.run(launches))


def test_what_could_not_be_convicted_is_said() -> None:
    fleet = racked(64, 16, 1)
    fleet.speed["n0020"] = 80.0
    said = isolate_verdict.verdict(run(fleet, {"retests": 0}))
    assert not said["accused"]
    assert [entry["node"] for entry in said["undecided"]][0] == "n0020"
    found = judge_isolation.findings(said)
    assert {finding.id for finding in found} == {"node_undecided"}
    assert {finding.severity for finding in found} == {"warning"}


def test_why_a_node_is_gone_is_said_where_it_is_known() -> None:
    said = isolate_verdict.verdict(run(racked(8, 4, 1, vanish={2: ["n0003"]})))
    silent, told = (
        next(one for one in judge_isolation.findings(said, lost) if one.id == "node_vanished")
        for lost in ({}, {"n0003": "Timeout, server n0003 not responding."})
    )
    assert silent.evidence == "it could no longer be reached while isolate ran"
    assert told.evidence == f"{silent.evidence} (Timeout, server n0003 not responding.)"


def test_those_to_try_a_guilty_node_with_are_neither_guilty_nor_gone() -> None:
    fleet = racked(64, 16, 1, hangs=frozenset(("n0000",)), vanish={2: ["n0001"]})
    fleet.speed["n0002"] = 80.0
    assert isolate_verdict.verdict(run(fleet))["good"] == ["n0003", "n0004"]


def test_speeds_of_slow_networks_and_fast_ones_keep_three_digits() -> None:
    fleet = racked(64, 16, 1)
    fleet.speed["n0020"] = 80.0
    said = isolate_verdict.verdict(run(fleet))
    for busbw, peers, told in (
        (0.00123, 0.0456, "0.00123 GB/s against 0.0456 GB/s"),
        (981.2, 1234.5, "981 GB/s against 1230 GB/s"),
    ):
        said["accused"][0].update(busbw=busbw, peers_busbw=peers)
        (slow,) = [one for one in judge_isolation.findings(said) if one.id == "node_slow"]
        assert told in slow.evidence
