# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import random
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import isolate, isolate_verdict, judge_isolation
from fleet_simulator import Fleet, racked
from hypothesis import given, settings
from hypothesis import strategies as st
from isolate_runs import run, said

EIGHT_RAILS = {"ranks": 8, "hcas": [f"mlx5_{rail}" for rail in range(8)]}


def slowed(fleet: Fleet, count: int, seed: int, factor: float = 0.92) -> set[str]:
    names = set(random.Random(seed).sample(list(fleet.speed), count))
    for name in names:
        fleet.speed[name] *= factor
    return names


@pytest.mark.parametrize("seed", range(9))
def test_up_to_8_slow_nodes_of_256_are_named_and_nobody_else(seed: int) -> None:
    fleet = racked(256, 16, seed)
    slow = slowed(fleet, seed, seed)
    state = run(fleet)
    assert set(state.accused) == slow
    assert not state.accused_links
    assert state.by_stage["pairs"] == 3
    assert state.launches <= 30
    assert all(found.false <= state.settings.false_accusation for found in state.accused.values())


def test_2048_nodes_take_no_more_launches_than_512() -> None:
    fleet = racked(2048, 32, 7)
    slow = slowed(fleet, 8, 7)
    state = run(fleet)
    assert set(state.accused) == slow
    assert state.launches <= 25


@pytest.mark.parametrize(("nodes", "rack"), [(24, 4), (63, 9), (33, 11), (30, 6), (50, 7)])
def test_odd_counts_and_racks_of_any_size(nodes: int, rack: int) -> None:
    fleet = racked(nodes, rack, nodes)
    slow = slowed(fleet, 1, nodes, 0.85)
    assert set(run(fleet).accused) == slow


def test_racks_may_multiply_and_measurements_may_glitch() -> None:
    fleet = racked(256, 16, 3, combine="product", glitches=0.01)
    slow = slowed(fleet, 3, 3)
    state = run(fleet)
    assert set(state.accused) == slow
    assert not state.accused_links


def test_without_racks_in_the_inventory_nobody_is_accused_of_his_racks_bias() -> None:
    fleet = racked(256, 16, 4)
    state = run(fleet, racks=False)
    assert not state.accused
    assert ("isolate_resolution", "", "all nodes") in said(state)
    fleet = racked(256, 16, 4)
    slow = slowed(fleet, 2, 4, factor=0.5)
    assert set(run(fleet, racks=False).accused) == slow


def test_without_racks_and_without_bias_a_small_fault_is_still_named() -> None:
    fleet = racked(128, 128, 5, spread=0.0)
    slow = slowed(fleet, 2, 5)
    assert set(run(fleet, racks=False).accused) == slow


def test_a_bad_link_between_two_good_nodes_is_the_links_fault() -> None:
    for factor, kind in ((0.5, "link_slow"), (0.0, "link_fails")):
        fleet = racked(128, 16, 1)
        fleet.links = {frozenset(("n0000", "n0015")): factor}
        state = run(fleet)
        assert said(state) == {(kind, "n0000", "link to n0015")}


def test_a_bad_switch_is_the_racks_fault_and_not_its_nodes() -> None:
    fleet = racked(128, 16, 1)
    fleet.bias["r002"] = 0.6
    assert said(run(fleet)) == {("rack_slow", "", "rack r002")}


def test_a_bad_switch_is_found_among_two_racks_too() -> None:
    fleet = racked(32, 16, 1)
    fleet.bias["r001"] = 0.6
    assert ("rack_slow", "", "rack r001") in said(run(fleet))


def test_bad_uplinks_are_told_from_a_bad_path() -> None:
    fleet = racked(128, 16, 1)
    fleet.uplinks["r005"] = 0.5
    assert said(run(fleet)) == {("uplink_slow", "", "uplinks of rack r005")}
    fleet = racked(128, 16, 1)
    fleet.links = {
        frozenset((one, two)): 0.5
        for one in fleet.speed
        for two in fleet.speed
        if fleet.rack[one] == "r000" and fleet.rack[two] == "r007"
    }
    assert {(kind, subject) for kind, _node, subject in said(run(fleet))} == {
        ("path_slow", "path between racks r000 and r007")
    }


def test_a_bad_rail_is_told_from_bad_nodes() -> None:
    fleet = racked(64, 16, 1, rail_count=8, rail_fault={3: 0.5})
    found = said(run(fleet, {"expectation": 95.0}, **EIGHT_RAILS))
    assert found == {("rail_slow", "", "rail 3"), ("fleet_slow", "", "all nodes")}


def test_a_rail_may_also_be_what_a_node_hangs_on() -> None:
    fleet = racked(64, 16, 2)
    fleet.bias["r001"] = 0.5
    nodes = {name: {"rail": rack} for name, rack in fleet.rack.items()}
    state = isolate.begin(nodes, {"locality": "rail"})
    while launches := isolate.plan(state):
        state = isolate.observe(state, *fleet.run(launches))
    assert [entry["rack"] for entry in isolate_verdict.verdict(state)["racks"]] == ["r001"]


def test_the_one_bad_hca_of_a_guilty_node_is_named() -> None:
    fleet = racked(64, 16, 1, rail_count=8, rails={"n0009": {5: 0.5}})
    state = run(fleet, **EIGHT_RAILS)
    assert said(state) == {("node_slow", "n0009", "mlx5_5")}
    rails = [row for row in state.rows if row.stage == "rails"]
    assert {row.rail for row in rails} == set(range(8))


def test_a_node_that_is_slow_by_itself_is_named_before_it_is_paired() -> None:
    fleet = racked(64, 16, 1, alone={"n0009": 0.7, "n0030": 0.0})
    state = run(fleet, **EIGHT_RAILS)
    kinds = {(kind, node) for kind, node, _subject in said(state)}
    assert kinds == {("node_slow", "n0009"), ("node_fails", "n0030")}
    assert not any({"n0009", "n0030"} & set(row.group) for row in state.rows if row.stage == "pairs")


def test_rails_with_other_names_per_node_get_an_environment_per_node() -> None:
    fleet = racked(8, 8, 1)
    nodes = {name: {"hcas": [f"mlx5_{k % 2}", f"mlx5_{k % 2 + 4}"]} for k, name in enumerate(fleet.speed)}
    state = isolate.begin(nodes, {"rails": "always"})
    seen: list[t.Any] = []
    while launches := isolate.plan(state):
        seen += [launch for launch in launches if launch.stage == "rails"]
        state = isolate.observe(state, *fleet.run(launches))
    assert seen
    for launch in seen:
        made = launch.as_dict()
        assert "NCCL_IB_HCA" not in made["env"]
        for group in made["groups"]:
            for name in group:
                assert made["node_env"][name]["NCCL_IB_HCA"] == f"={nodes[name]['hcas'][launch.rail]}"


@pytest.mark.parametrize("split", [True, False])
def test_nodes_that_hang_are_named_and_the_others_still_measured(split: bool) -> None:
    fleet = racked(128, 16, 1, hangs=frozenset(("n0005", "n0077")))
    slow = slowed(fleet, 1, 9)
    state = run(fleet, {"split": split})
    assert {(kind, node) for kind, node, _subject in said(state)} == {
        ("node_fails", "n0005"),
        ("node_fails", "n0077"),
        *(("node_slow", name) for name in slow),
    }


def test_a_hung_round_costs_its_timeout_once_a_level_and_later_timeouts_are_short() -> None:
    fleet = racked(512, 16, 1, hangs=frozenset(("n0005",)))
    state = isolate.begin({name: {"rack": rack} for name, rack in fleet.rack.items()}, {"timeout_s": 300.0})
    waits = []
    while launches := isolate.plan(state):
        rows, vanished = fleet.run(launches)
        waits += [max(row["seconds"] for row in rows)] if any(row["busbw"] is None for row in rows) else []
        state = isolate.observe(state, rows, vanished)
    assert set(state.accused) == {"n0005"}
    assert waits.count(300.0) == 2, "the whole round, then its parts side by side; from then on a good launch is known"
    assert all(wait <= 60.0 for wait in waits if wait != 300.0)


def test_nodes_that_vanish_are_said_and_accuse_nobody() -> None:
    fleet = racked(128, 16, 1, vanish={2: ["n0003"], 3: ["n0100"], 6: ["n0050", "n0051"]})
    slow = slowed(fleet, 2, 2)
    state = run(fleet)
    assert {(kind, node) for kind, node, _subject in said(state)} == {
        *(("node_vanished", name) for name in ("n0003", "n0050", "n0051", "n0100")),
        *(("node_slow", name) for name in slow),
    }


def test_all_nodes_vanishing_ends_it() -> None:
    fleet = racked(8, 8, 1)
    fleet.vanish = {2: list(fleet.speed)}
    state = run(fleet)
    assert len(isolate_verdict.verdict(state)["vanished"]) == 8


def test_a_lone_node_is_said_to_be_lone() -> None:
    assert said(run(racked(1, 1, 1))) == {("node_unmeasured", "n0000", "n0000")}


@pytest.mark.parametrize(
    ("fault", "expectation", "finding"),
    [("slow", 90.0, "nodes_untold"), ("slow", None, "nodes_unjudged"), ("hangs", None, "nodes_untold"), ("", 90.0, "")],
)
def test_of_two_nodes_it_cannot_be_told_who_it_is(fault: str, expectation: float | None, finding: str) -> None:
    fleet = racked(2, 2, 1, spread=0.0)
    if fault == "slow":
        fleet.speed["n0001"] = 50.0
    if fault == "hangs":
        fleet.hangs = frozenset(("n0001",))
    state = run(fleet, {"expectation": expectation})
    assert not state.accused
    assert said(state) == ({(finding, "", "n0000 and n0001")} if finding else set())


def test_three_nodes_suffice() -> None:
    fleet = racked(3, 3, 1, noise=0.1)
    fleet.speed["n0001"] = 25.0
    assert set(run(fleet).accused) == {"n0001"}
    assert not run(racked(3, 3, 2, noise=0.1)).accused
    assert set(run(racked(3, 3, 1, hangs=frozenset(("n0002",)))).accused) == {"n0002"}


def test_all_nodes_bad_is_told_by_the_expectation_only() -> None:
    fleet = racked(32, 16, 1)
    fleet.speed = dict.fromkeys(fleet.speed, 50.0)
    assert said(run(fleet, {"expectation": 90.0})) == {("fleet_slow", "", "all nodes")}
    assert said(run(fleet)) == set()


def test_every_pair_failing_accuses_nobody() -> None:
    fleet = racked(8, 8, 1)
    fleet.hangs = frozenset(fleet.speed)
    state = run(fleet)
    assert not state.accused
    assert said(state) == {("fleet_fails", "", "all nodes")}
    assert set(state.by_stage) == {"pairs"}


@given(st.integers(min_value=3, max_value=40), st.integers(min_value=0, max_value=1000), st.data())
@settings(max_examples=25)
def test_whatever_happens_it_ends_and_accuses_only_the_guilty(nodes: int, seed: int, data: st.DataObject) -> None:
    fleet = racked(nodes, data.draw(st.sampled_from((1, 3, 4, 8, 40))), seed)
    names = sorted(fleet.speed)
    slow = set(data.draw(st.lists(st.sampled_from(names), max_size=nodes // 5)))
    for name in slow:
        fleet.speed[name] *= data.draw(st.sampled_from((0.3, 0.6, 0.92)))
    fleet.hangs = frozenset(data.draw(st.lists(st.sampled_from(names), max_size=nodes // 8)))
    fleet.vanish = {
        data.draw(st.integers(min_value=1, max_value=9)): data.draw(st.lists(st.sampled_from(names), max_size=2))
    }
    state = run(fleet, {"split": data.draw(st.booleans())})
    assert set(state.accused) <= slow | fleet.hangs
    judge_isolation.findings(isolate_verdict.verdict(state))


def test_measurements_that_were_not_planned_are_refused() -> None:
    state = isolate.begin({"a": {}, "b": {}, "c": {}})
    launch = isolate.plan(state)[0]
    with pytest.raises(ValueError, match="not planned"):
        isolate.observe(state, [{"launch": launch.id, "group": ["a", "z"], "busbw": 1.0}])
    with pytest.raises(ValueError, match="z, which is not among the nodes"):
        isolate.observe(state, [], ["z"])


def test_a_launch_without_rows_and_numbers_that_are_none_have_failed() -> None:
    state = isolate.begin({"a": {}, "b": {}, "c": {}})
    for speed in (float("nan"), 0.0, -1.0, None, "N/A"):
        launch = isolate.plan(state)[0]
        row = {"launch": launch.id, "group": list(launch.groups[0]), "busbw": speed}
        assert isolate.observe(state, [row]).rows[-1].busbw is None
    assert isolate.observe(state, []).rows[-1].busbw is None


@pytest.mark.parametrize(
    ("given_settings", "said_of_it"),
    [
        ({"round": 3}, "round is not a setting"),
        ({"rounds": 0}, "^isolate_rounds is 0"),
        ({"smallest_fault": 8}, "smallest_fault is 8, expected a share"),
        ({"rails": "some"}, "rails is some"),
        ({"expectation": -1.0}, "expectation is -1.0"),
        ({"fan_out": 1}, "fan_out is 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_a_sentence(
    given_settings: dict[str, t.Any], said_of_it: str
) -> None:
    with pytest.raises(ValueError, match=said_of_it):
        isolate.begin({"a": {}, "b": {}}, given_settings)


def test_nodes_that_make_no_sense_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="no node was given"):
        isolate.begin({})
    with pytest.raises(ValueError, match="ranks of a is 0"):
        isolate.begin({"a": {"ranks": 0}})


def test_a_split_round_is_one_launch_with_neighbouring_ranks_and_ring() -> None:
    state = isolate.begin({f"n{k}": {"ranks": 8} for k in range(6)}, {"alone": False, "size": 1 << 32})
    (launch,) = isolate.plan(state)
    made = launch.as_dict()
    assert made["env"] == {"NCCL_ALGO": "Ring", "NCCL_TESTS_SPLIT": "DIV16"}
    assert (made["stage"], made["round"], made["size"], len(made["groups"])) == ("pairs", 0, 1 << 32, 3)
    state = isolate.begin({f"n{k}": {"ranks": 8} for k in range(6)}, {"alone": False, "split": False})
    assert [dict(launch.env) for launch in isolate.plan(state)] == [{"NCCL_ALGO": "Ring"}] * 3


def test_notes_of_the_caller_reach_the_verdict() -> None:
    fleet = racked(16, 16, 1)
    fleet.speed["n0003"] = 50.0
    state = isolate.begin({name: {} for name in fleet.speed})
    while launches := isolate.plan(state):
        rows, _gone = fleet.run(launches)
        for row in rows:
            row["notes"] = ["via NET/Socket"] if "n0003" in row["group"] else []
        state = isolate.observe(state, rows)
    (finding,) = judge_isolation.findings(isolate_verdict.verdict(state))
    assert "via NET/Socket" in finding.evidence
    assert "fewer than one fleet in" in finding.evidence
    assert "known-good partners" in finding.evidence
