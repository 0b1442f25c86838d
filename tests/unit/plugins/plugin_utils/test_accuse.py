# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import itertools
import math
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import accuse, slow_nodes
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import pair_statistics as ps

NOISE = ps.Noise(0.03, 0.0, math.inf, fault=-math.log(0.92))
GOOD = set("bcdefgh")


def judge(
    speeds: t.Callable[[str, str, int], float | None],
    repeats: int = 4,
    good: set[str] = GOOD,
    bars: ps.Bars | None = None,
) -> accuse.Accusation | None:
    """Judge node a of eight, each pair run `repeats` times at speeds(one, two, repeat)."""
    runs = [
        (one, two, speeds(one, two, repeat))
        for one, two in itertools.combinations("abcdefgh", 2)
        for repeat in range(repeats)
    ]
    totals = ps.pair_totals(runs)
    weighing = slow_nodes.weigh(totals, NOISE)
    fleet = accuse.fleet_of(8, [(totals, weighing)])
    return accuse.accuse("a", weighing, good, fleet, bars or ps.Bars())


def test_a_node_slow_with_every_good_partner_is_accused_with_its_evidence() -> None:
    found = judge(lambda one, _two, _repeat: 92.0 if one == "a" else 100.0)
    assert found is not None
    assert found.kind == "slow"
    assert found.shift.ratio == pytest.approx(0.92)
    assert found.shift.runs == 28
    assert [partner for partner, _shift in found.partners] == list("bcdefgh")
    assert 0 < found.false <= ps.Bars().false_accusation


def test_a_healthy_node_is_not_accused() -> None:
    assert judge(lambda *_run: 100.0) is None


def test_one_bad_run_is_not_enough() -> None:
    assert judge(lambda *run: 10.0 if run == ("a", "b", 0) else 100.0) is None
    assert judge(lambda *run: 10.0 if run[0] == "a" and run[2] == 0 and run[1] in "bc" else 100.0) is None


def test_two_known_good_partners_are_needed() -> None:
    assert judge(lambda one, _two, _repeat: 50.0 if one == "a" else 100.0, good={"b"}) is None
    assert judge(lambda one, _two, _repeat: 50.0 if one == "a" else 100.0, good={"b", "c"}) is not None


def test_a_good_partner_with_whom_it_is_fast_contradicts() -> None:
    def speeds(one: str, two: str, _repeat: int) -> float:
        return 50.0 if one == "a" and two in "bcd" else 100.0

    assert judge(speeds) is None


def test_whoever_reaches_the_expectation_is_not_accused_for_being_slower_than_peers() -> None:
    bars = ps.Bars(least=90.0)
    assert judge(lambda one, _two, _repeat: 92.0 if one == "a" else 100.0, bars=bars) is None
    assert judge(lambda one, _two, _repeat: 85.0 if one == "a" else 100.0, bars=bars) is not None


def test_failing_with_good_partners_is_an_accusation_of_its_own() -> None:
    found = judge(lambda one, _two, _repeat: None if one == "a" else 100.0)
    assert found is not None
    assert found.kind == "fails"
    assert found.false < 1e-6


def test_failures_accuse_nobody_where_everybody_fails_now_and_then() -> None:
    assert judge(lambda _one, _two, repeat: None if repeat % 2 else 100.0) is None


def test_a_node_that_fails_now_and_then_is_judged_by_the_runs_that_ended() -> None:
    found = judge(lambda one, _two, repeat: None if one == "a" and repeat == 0 else 92.0 if one == "a" else 100.0)
    assert found is not None
    assert found.kind == "slow"
    assert found.shift.ratio == pytest.approx(0.92)


def link(*speeds: float | None) -> accuse.Accusation | str:
    """Judge a pair with these runs among good ones of 100 GB/s."""
    runs: list[ps.Run] = [("a", "b", speed) for speed in speeds]
    runs += [(one, two, 100.0) for one, two in itertools.combinations("bcdefgh", 2) for _repeat in range(4)]
    totals = ps.pair_totals(runs)
    weighing = slow_nodes.weigh(totals, NOISE)
    return accuse.accuse_link(totals["a", "b"], weighing, accuse.Fleet(30, 90, 0), ps.Bars())


def test_a_link_is_judged_without_the_run_that_drew_attention() -> None:
    assert link(40.0) == "open"
    assert link(40.0, 100.0, 100.0) == "good"
    slow = link(40.0, 70.0, 70.0, 70.0)
    assert isinstance(slow, accuse.Accusation)
    assert (slow.kind, slow.shift.ratio) == ("slow", pytest.approx(0.7))


def test_a_link_that_never_passes_fails() -> None:
    assert link(None, None) == "open"
    found = link(None, None, None, None)
    assert isinstance(found, accuse.Accusation)
    assert found.kind == "fails"
