# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import math
import random

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import pair_statistics as ps


@pytest.mark.parametrize(
    ("score", "freedom", "expected"),
    [
        (1.0, 1, 0.25),
        (2.0, 5, 0.05097),
        (3.0, 10, 0.00667),
        (5.0, 20, 3.4e-5),
        (-1.0, 1, 0.75),
        (1.96, math.inf, 0.025),
    ],
)
def test_the_tail_is_that_of_students_t(score: float, freedom: float, expected: float) -> None:
    assert ps.tail(score, freedom) == pytest.approx(expected, rel=0.1)


def test_all_failed_runs_count_as_far_below_and_some_failed_runs_not_at_all() -> None:
    totals = ps.pair_totals([("b", "a", 100.0), ("a", "b", None), ("c", "d", None), ("c", "d", None)])
    assert totals["a", "b"] == ps.PairTotal(math.log(100), 1, 2, 1, math.log(100))
    assert totals["c", "d"].total == pytest.approx(2 * math.log(100 * ps.FAILED_RATIO))
    assert (totals["c", "d"].runs, totals["c", "d"].failed) == (2, 2)
    assert ps.pair_totals([("a", "b", None)]) == {}


def fleet_runs(blocks: int, sigma: float, spread: float, seed: int, slow: int = 0) -> list[list[ps.Run]]:
    """Three rounds of 8 pairs a block; every block has a level of its own."""
    chance = random.Random(seed)
    made = []
    for block in range(blocks):
        level = 100 * chance.uniform(0.8, 1.2)
        own = {f"{block}-{k}": chance.gauss(0, spread) for k in range(16)}
        if block < slow:
            own[f"{block}-0"] -= 0.5
        order = list(own)
        rows: list[ps.Run] = []
        for _round in range(3):
            chance.shuffle(order)
            rows += [
                (one, two, level * math.exp(own[one] + own[two] + chance.gauss(0, sigma)))
                for one, two in zip(order[::2], order[1::2], strict=True)
            ]
        made.append(rows)
    return made


@pytest.mark.parametrize("sigma", [0.01, 0.03, 0.1])
def test_noise_is_found_whatever_the_levels_of_racks_and_a_few_slow_nodes(sigma: float) -> None:
    noise = ps.estimate_noise(fleet_runs(32, sigma, 0.0, 1, slow=5), ps.Bars())
    assert noise.sigma == pytest.approx(sigma, rel=0.12)
    assert noise.spread == 0.0
    assert noise.settled


def test_a_spread_of_healthy_nodes_is_told_from_noise() -> None:
    noise = ps.estimate_noise(fleet_runs(32, 0.02, 0.03, 2), ps.Bars())
    assert noise.spread == pytest.approx(0.03, rel=0.3)


def test_a_small_fleet_learns_its_noise_from_repeats() -> None:
    chance = random.Random(3)
    rows: list[ps.Run] = [
        (one, two, level * math.exp(chance.gauss(0, 0.2)))
        for one, two, level in (("a", "b", 100), ("a", "c", 50), ("b", "c", 50))
        for _repeat in range(8)
    ]
    noise = ps.estimate_noise([rows], ps.Bars(noise=0.03))
    assert 0.12 < noise.sigma < 0.26
    assert not noise.settled
    assert noise.freedom == ps.PRIOR_FREEDOM + 21
    assert ps.estimate_noise([rows[:1]], ps.Bars(noise=0.03)).sigma == pytest.approx(0.03)


def test_the_resolution_is_the_smallest_fault_until_noise_or_spread_forbid_it() -> None:
    bars = ps.Bars(smallest_fault=0.08)
    assert ps.with_fault(ps.Noise(0.03, 0.0, 200), 512, 33, bars).fault == pytest.approx(-math.log(0.92))
    assert ps.with_fault(ps.Noise(0.03, 0.03, 200), 512, 33, bars).fault > 0.2
    assert ps.with_fault(ps.Noise(0.3, 0.0, 200), 512, 33, bars).fault > 0.4
    pooled = ps.with_fault(ps.Noise(0.03, 0.0, 200), 512, 33, bars, spread=0.03)
    assert pooled == ps.with_fault(ps.Noise(0.03, 0.03, 200), 512, 33, bars)


def test_chances_are_over_all_nodes_and_looks_and_never_above_one() -> None:
    bars = ps.Bars(looks=10)
    noise = ps.Noise(0.03, 0.0, math.inf)
    assert ps.chance(ps.Shift(-0.06, 0.01, 9), noise, 512, bars) == pytest.approx(9.866e-10 * 5120, rel=0.01)
    assert ps.chance(ps.Shift(0.0, 0.01, 9), noise, 512, bars) == 1.0
    assert ps.chance(ps.Shift(-9.0, math.inf, 9), noise, 512, bars) == 1.0
