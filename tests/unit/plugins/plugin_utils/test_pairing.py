# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import pairing
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.pairing import Node
from hypothesis import given
from hypothesis import strategies as st

counts = st.integers(min_value=2, max_value=60)


def names(count: int) -> list[str]:
    return [f"n{k:03d}" for k in range(count)]


@given(counts)
def test_the_circle_meets_every_pair_exactly_once(count: int) -> None:
    met = [
        pairing.ordered(*pair)
        for number in range(pairing.full_rounds(count))
        for pair in pairing.circle_round(names(count), number)
    ]
    assert len(met) == len(set(met)) == count * (count - 1) // 2


@given(counts, st.integers(min_value=0, max_value=200))
def test_a_round_is_disjoint_and_leaves_out_one_at_most(count: int, number: int) -> None:
    seated = [name for pair in pairing.circle_round(names(count), number) for name in pair]
    assert len(seated) == len(set(seated)) == count - count % 2


@given(st.integers(min_value=1, max_value=30).map(lambda k: 2 * k + 1))
def test_with_an_odd_count_nobody_sits_out_twice_before_all_did(count: int) -> None:
    out = [
        (set(names(count)) - {name for pair in pairing.circle_round(names(count), number) for name in pair}).pop()
        for number in range(count)
    ]
    assert sorted(out) == names(count)


def test_a_lone_node_has_no_round() -> None:
    assert pairing.circle_round(["n"], 0) == []
    assert pairing.full_rounds(1) == 0


def test_2048_nodes_make_a_round_of_1024_pairs() -> None:
    assert len(pairing.circle_round(names(2048), 1000)) == 1024


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(min_value=1, max_value=9), min_size=1), st.integers(0, 5))
def test_blocks_part_the_nodes_and_keep_whole_racks(racks: dict[str, int], homeless: int) -> None:
    nodes = [Node(f"{rack}{k}", rack) for rack, size in racks.items() for k in range(size)]
    nodes += [Node(f"x{k}") for k in range(homeless)]
    made = pairing.blocks(nodes)
    assert sorted(name for block in made.values() for name in block) == sorted(node.name for node in nodes)
    for rack, size in racks.items():
        if size >= pairing.SMALLEST_BLOCK:
            assert {f"{rack}{k}" for k in range(size)} <= set(made[rack])
    assert len(made) == 1 or all(len(block) >= pairing.SMALLEST_BLOCK for block in made.values())


def test_across_pairs_join_two_blocks_each_and_cover_all_blocks_in_time() -> None:
    members = {"a": names(4), "b": [f"b{k}" for k in range(4)], "c": [f"c{k}" for k in range(2)], "d": []}
    seen = set()
    for number in range(3):
        cells = pairing.across_round(members, number)
        used = [name for pairs in cells.values() for pair in pairs for name in pair]
        assert len(used) == len(set(used))
        for (one, two), pairs in cells.items():
            seen.add(frozenset((one, two)))
            assert len(pairs) == min(len(members[one]), len(members[two]))
            assert all(left in members[one] and right in members[two] for left, right in pairs)
    assert seen == {frozenset("ab"), frozenset("ac"), frozenset("bc")}


def test_least_met_spreads_over_partners_and_uses_nobody_twice() -> None:
    met = {("a", "x"): 2, ("a", "y"): 1, ("b", "x"): 1}
    assert pairing.least_met(["a", "b"], ["x", "y", "z"], met) == [("a", "z"), ("b", "y")]
    assert pairing.least_met(["a", "b"], ["x", "y"], {**met, ("b", "y"): 3}) == [("a", "y"), ("b", "x")]
    assert pairing.least_met(list("abc"), list("abc"), {}) == [("a", "b")]
    assert pairing.least_met(list("abcd"), list("abcd"), {}, most=1) == [("a", "b")]


def test_groups_of_unequal_ranks_cannot_share_a_split_launch() -> None:
    nodes = {"a": Node("a", ranks=8), "b": Node("b", ranks=8), "c": Node("c", ranks=4), "d": Node("d", ranks=8)}
    assert pairing.by_ranks([("a", "b"), ("c", "d")], nodes) == {16: [("a", "b")], 12: [("c", "d")]}
    assert pairing.split_env(16) == {"NCCL_TESTS_SPLIT": "DIV16"}


@given(st.lists(st.integers()), st.integers(min_value=1, max_value=9))
def test_portions_keep_order_and_are_even(items: list[int], parts: int) -> None:
    made = pairing.portions(items, parts)
    assert [item for part in made for item in part] == items
    assert len(made) == min(parts, len(items))
    assert not made or max(map(len, made)) - min(map(len, made)) <= 1
