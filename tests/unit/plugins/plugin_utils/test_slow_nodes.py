# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import dataclasses
import itertools
import math
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import pair_statistics as ps
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import slow_nodes
from hypothesis import given, settings
from hypothesis import strategies as st

NOISE = ps.Noise(0.03, 0.0, 200.0, fault=-math.log(0.92))


def pairs_of(names: t.Iterable[str], speed: dict[str, float], repeats: int = 1) -> list[ps.Run]:
    """Every pair, as fast as its slower node, without noise."""
    return [
        (one, two, 100 * min(speed.get(one, 1.0), speed.get(two, 1.0)))
        for one, two in itertools.combinations(names, 2)
        for _repeat in range(repeats)
    ]


def weigh(runs: list[ps.Run]) -> slow_nodes.Weighing:
    return slow_nodes.weigh(ps.pair_totals(runs), NOISE)


def test_nothing_measured_says_nothing() -> None:
    assert weigh([]).level is None
    assert weigh([("a", "b", None)]).slow == frozenset()


@given(
    st.integers(min_value=4, max_value=12),
    st.dictionaries(st.integers(min_value=0, max_value=11), st.floats(min_value=0.1, max_value=0.9), max_size=3),
    st.floats(min_value=0.01, max_value=1000.0),
)
@settings(max_examples=60)
def test_slow_nodes_are_found_and_their_partners_are_not(size: int, slow: dict[int, float], scale: float) -> None:
    names = [f"n{k}" for k in range(size)]
    speed = {f"n{k}": share for k, share in slow.items() if k < size}
    if len(speed) > size - 3:
        return
    runs = [(one, two, s and s * scale) for one, two, s in pairs_of(names, speed, repeats=4)]
    found = weigh(runs)
    assert found.slow == set(speed)
    for name, share in speed.items():
        assert found.shifts[name].ratio == pytest.approx(share)
    for name in set(names) - set(speed):
        assert found.shifts[name].ratio == pytest.approx(1.0)
        assert found.doubts[name] < 0


def test_the_order_of_the_runs_does_not_matter() -> None:
    runs = pairs_of("abcdef", {"c": 0.5})
    assert weigh(runs).slow == weigh(runs[::-1]).slow == {"c"}
    assert weigh([(two, one, s) for one, two, s in runs]).shifts["c"].ratio == pytest.approx(0.5)


def test_a_slow_link_is_charged_to_neither_end() -> None:
    runs = [(one, two, 40.0 if {one, two} == {"a", "b"} else 100.0) for one, two in itertools.combinations("abcdef", 2)]
    found = weigh(runs)
    assert set(found.links) == {("a", "b")}
    assert found.links["a", "b"].ratio == pytest.approx(0.4)
    assert not found.slow


def test_two_slow_nodes_of_four_are_found_once_measured_often() -> None:
    assert weigh(pairs_of("abcd", {"a": 0.9, "b": 0.9}, repeats=8)).slow == {"a", "b"}


def test_a_node_that_fails_with_everybody_is_slow_and_not_all_its_links() -> None:
    runs = [(one, two, None if "a" in (one, two) else 100.0) for one, two in itertools.combinations("abcdef", 2)]
    found = weigh(runs)
    assert found.slow == {"a"}
    assert not found.links
    assert found.shifts["a"].failed == found.shifts["a"].tries == 5


def test_nobody_is_cleared_by_few_runs_or_by_few_degrees_of_freedom() -> None:
    few, many = weigh(pairs_of("abcd", {})), weigh(pairs_of("abcd", {}, repeats=10))
    assert not slow_nodes.is_healthy("a", few, 1e-3)
    assert slow_nodes.is_healthy("a", many, 1e-3)
    runs = pairs_of("abcd", {}, repeats=4)
    assert slow_nodes.is_healthy("a", weigh(runs), 1e-3)
    unsure = slow_nodes.weigh(ps.pair_totals(runs), dataclasses.replace(NOISE, freedom=4.0))
    assert not slow_nodes.is_healthy("a", unsure, 1e-3)


def test_two_nodes_have_nothing_to_be_compared_with() -> None:
    found = weigh([("a", "b", 50.0)] * 10)
    assert math.isinf(found.shifts["a"].error)
    assert found.doubts == {"a": 0.0, "b": 0.0}
