# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import math
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import bisect_hang, judge_hang
from hypothesis import given, settings
from hypothesis import strategies as st


def names(count: int) -> list[str]:
    return [f"n{k:04d}" for k in range(count)]


def bisect(
    count: int,
    bad: t.Collection[str] = (),
    links: t.Collection[tuple[str, str]] = (),
    only_from: int | None = None,
    vanish: t.Mapping[int, str] | None = None,
) -> tuple[dict[str, t.Any], int]:
    """Bisect a simulated cluster: (verdict, steps). `only_from`: sets of that size or more hang. vanish: {step: node}."""
    state = bisect_hang.begin(names(count))
    seen: set[frozenset[str]] = set()
    for step in range(20 * count):
        launches = bisect_hang.plan(state)
        if not launches:
            return bisect_hang.verdict(state), step
        lost = [name for when, name in (vanish or {}).items() if when == step]
        rows = []
        for launch in launches:
            group = frozenset(launch.groups[0])
            assert group not in seen or vanish, "a set is run twice"
            seen.add(group)
            hung = bool(group & {*bad, *lost}) or any(group >= set(link) for link in links)
            hung = hung or (only_from is not None and len(group) >= only_from)
            rows.append(
                {"launch": launch.id, "busbw": None if hung else 50.0, "seconds": launch.timeout_s if hung else 9.0}
            )
        state = bisect_hang.observe(state, rows, lost)
    raise AssertionError("it does not end")


def test_a_cluster_that_does_not_hang_costs_one_launch() -> None:
    said, steps = bisect(64)
    assert (said["hangs"], said["launches"], steps) == (False, 1, 1)
    assert judge_hang.findings(said) == []


@pytest.mark.parametrize("count", [3, 4, 5, 8, 33, 64, 512, 2048])
def test_one_bad_node_is_found_with_one_timeout_a_level(count: int) -> None:
    bad = names(count)[count // 3]
    said, _steps = bisect(count, [bad])
    assert said["guilty"] == [bad]
    assert said["confirmed"]
    assert said["timeouts"] <= math.ceil(math.log2(count)) + 2
    (finding,) = judge_hang.findings(said)
    assert (finding.id, finding.node) == ("node_hangs", bad)
    assert len(said["good"]) == 2 and bad not in said["good"]
    assert f"--limit {bad},{','.join(said['good'])};" in finding.fix


@given(st.integers(min_value=8, max_value=200), st.data())
@settings(max_examples=60)
def test_several_bad_nodes_are_all_found_and_nobody_else(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.sampled_from(names(count)), max_size=count // 4))
    said, _steps = bisect(count, bad)
    assert set(said["guilty"]) == bad
    assert not said["links"]
    assert said["confirmed"]
    assert said["launches"] <= 3 + 2 * max(len(bad), 1) * (math.ceil(math.log2(count)) + 1)


@given(st.integers(min_value=3, max_value=100), st.data())
@settings(max_examples=60)
def test_a_bad_link_between_good_nodes_is_found_as_such(count: int, data: st.DataObject) -> None:
    link = tuple(sorted(data.draw(st.sets(st.sampled_from(names(count)), min_size=2, max_size=2))))
    said, _steps = bisect(count, links=[link])  # type: ignore[list-item]
    assert said["links"] == [list(link)]
    assert not said["guilty"]
    assert said["confirmed"]
    assert [finding.id for finding in judge_hang.findings(said)] == ["link_hangs"]


def test_a_bad_node_and_a_bad_link_are_both_found() -> None:
    said, _steps = bisect(64, ["n0010"], [("n0003", "n0040")])
    assert said["guilty"] == ["n0010"]
    assert said["links"] == [["n0003", "n0040"]]


def test_what_hangs_by_its_size_alone_is_said_not_to_be_a_node() -> None:
    said, _steps = bisect(64, only_from=40)
    assert not said["guilty"] and not said["links"]
    assert len(said["unreproduced"][0]) == 64
    assert [finding.id for finding in judge_hang.findings(said)] == ["hang_unreproduced"]


def test_of_two_nodes_it_cannot_be_told_who_it_is() -> None:
    said, _steps = bisect(2, ["n0001"])
    assert (said["guilty"], said["untold"], said["launches"]) == ([], [["n0000", "n0001"]], 1)
    assert [finding.id for finding in judge_hang.findings(said)] == ["nodes_untold"]


@pytest.mark.parametrize("count", [3, 4, 7, 16])
def test_all_nodes_bad_accuses_nobody(count: int) -> None:
    said, _steps = bisect(count, names(count))
    assert not said["guilty"]
    assert {name for group in said["untold"] for name in group} == set(names(count))


def test_a_node_that_vanishes_is_not_the_one_that_hung() -> None:
    said, _steps = bisect(32, ["n0003"], vanish={1: "n0020", 3: "n0002"})
    assert said["guilty"] == ["n0003"]
    assert said["vanished"] == ["n0002", "n0020"]
    assert said["confirmed"]
    said, _steps = bisect(32, vanish={0: "n0020"})
    assert (said["hangs"], said["guilty"]) == (False, [])


def test_timeouts_shrink_once_a_launch_has_passed() -> None:
    state = bisect_hang.begin(names(8), timeout_s=300.0, least_timeout_s=30.0)
    (whole,) = bisect_hang.plan(state)
    assert whole.timeout_s == 300.0
    state = bisect_hang.observe(state, [{"launch": whole.id, "busbw": None, "seconds": 300.0}])
    left, right = bisect_hang.plan(state)
    rows = [
        {"launch": left.id, "busbw": 40.0, "seconds": 10.0},
        {"launch": right.id, "busbw": None, "seconds": 300.0},
    ]
    state = bisect_hang.observe(state, rows)
    assert {launch.timeout_s for launch in bisect_hang.plan(state)} == {50.0}
    assert (state.seconds, state.timeouts) == (600.0, 2)


def test_bad_input_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="needs at least two"):
        bisect_hang.begin(["a"])
    with pytest.raises(ValueError, match="was not planned"):
        bisect_hang.observe(bisect_hang.begin(["a", "b"]), [{"launch": "x", "busbw": 1.0}])
