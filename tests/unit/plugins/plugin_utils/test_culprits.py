# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""From matrices to culprits, with faults of every shape."""

from __future__ import annotations

import itertools
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.culprits import BOTH, IN, OUT, find_culprits
from hypothesis import given, settings
from hypothesis import strategies as st

Bad = t.Callable[[str, str], bool]


def matrix(count: int, bad: Bad) -> dict[tuple[str, str], bool]:
    names = [f"n{number}" for number in range(1, count + 1)]
    return {(one, other): not bad(one, other) for one, other in itertools.permutations(names, 2)}


def named(count: int, bad: Bad) -> list[tuple[str, str]]:
    verdict = find_culprits(matrix(count, bad))
    assert not verdict.everyone and not verdict.groups and not verdict.pairs
    return [(accused.node, accused.direction) for accused in verdict.nodes]


def test_all_well() -> None:
    verdict = find_culprits(matrix(8, lambda one, other: False))
    assert not (verdict.everyone or verdict.groups or verdict.nodes or verdict.pairs)


@pytest.mark.parametrize("count", [3, 4, 9, 40])
def test_one_node_in_each_direction(count: int) -> None:
    assert named(count, lambda one, other: "n2" in (one, other)) == [("n2", BOTH)]
    assert named(count, lambda one, other: one == "n2") == [("n2", OUT)]
    assert named(count, lambda one, other: other == "n2") == [("n2", IN)]


def test_two_nodes_of_eight() -> None:
    found = named(8, lambda one, other: bool({"n2", "n7"} & {one, other}))
    assert sorted(found) == [("n2", BOTH), ("n7", BOTH)]


def test_one_sends_nothing_and_another_takes_nothing() -> None:
    found = named(8, lambda one, other: one == "n3" or other == "n5")
    assert sorted(found) == [("n3", OUT), ("n5", IN)]


def test_a_node_that_fails_with_most_and_not_all() -> None:
    assert named(9, lambda one, other: "n4" in (one, other) and "n9" not in (one, other)) == [("n4", BOTH)]


def test_a_pair_accuses_neither_end() -> None:
    verdict = find_culprits(matrix(6, lambda one, other: {one, other} == {"n2", "n5"}))
    assert verdict.nodes == () and verdict.pairs == (("n2", "n5", True),)
    verdict = find_culprits(matrix(6, lambda one, other: (one, other) == ("n5", "n2")))
    assert verdict.nodes == () and verdict.pairs == (("n5", "n2", False),)


def test_two_nodes_alone_cannot_be_told_apart() -> None:
    verdict = find_culprits(matrix(2, lambda one, other: True))
    assert not verdict.nodes and not verdict.everyone and verdict.pairs == (("n1", "n2", True),)


def test_everyone() -> None:
    assert find_culprits(matrix(6, lambda one, other: True)).everyone
    # of three nodes, two are bad: no pair works, so it cannot be told which
    assert find_culprits(matrix(3, lambda one, other: bool({"n1", "n2"} & {one, other}))).everyone
    assert find_culprits(matrix(8, lambda one, other: one != "n1")).everyone


def test_a_group_that_is_cut_off_is_named_once() -> None:
    cut_off = {"n7", "n8", "n9"}
    verdict = find_culprits(matrix(9, lambda one, other: (one in cut_off) != (other in cut_off)))
    assert verdict.groups == (("n7", "n8", "n9"),)
    assert not verdict.nodes and not verdict.pairs and not verdict.everyone


def test_a_bad_node_and_a_bad_pair_between_others() -> None:
    verdict = find_culprits(matrix(8, lambda one, other: "n1" in (one, other) or {one, other} == {"n4", "n6"}))
    assert [accused.node for accused in verdict.nodes] == ["n1"]
    assert verdict.pairs == (("n4", "n6", True),)


@settings(max_examples=60)
@given(st.integers(4, 20), st.data())
def test_no_healthy_node_is_accused(count: int, data: st.DataObject) -> None:
    """Fewer than half of the nodes bad with everyone: all of them are named, and nobody else."""
    names = [f"n{number}" for number in range(1, count + 1)]
    most = (count - 1) // 2
    guilty = data.draw(st.sets(st.sampled_from(names), max_size=most))
    verdict = find_culprits(matrix(count, lambda one, other: bool(guilty & {one, other})))
    assert {accused.node for accused in verdict.nodes} == guilty
    assert not verdict.pairs and not verdict.everyone
