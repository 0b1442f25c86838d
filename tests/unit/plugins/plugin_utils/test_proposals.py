# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is measured next, against random search on the grid that was recorded on real GPUs."""

from __future__ import annotations

import json
import math
import pathlib
import random
import statistics
import typing as t

import pytest

pytest.importorskip("numpy")

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import proposals
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.surrogate import guesses

RECORD = pathlib.Path(__file__).parents[3] / "benchmarks" / "results" / "autotune_h200.json"
Point = tuple[int, ...]
BUDGET = 25
SEEDS = 200


class Recorded(t.NamedTuple):
    """busbw: {point: GB/s, the mean of all its measurements}; noise: what single measurements were of such a mean."""

    busbw: dict[Point, float]
    noise: list[float]


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    rows = [r for r in json.loads(RECORD.read_text())["rows"] if r["busbw"] and not r["phase"].startswith("nvlink")]
    grid = [row["settings"] for row in rows if row["phase"] == "grid"]
    names = sorted({name for settings in grid for name in settings})
    values = {name: sorted({int(s.get(name, 0)) for s in grid}) for name in names}
    measured: dict[Point, list[float]] = {}
    for row in (row for row in rows if set(row["settings"]) <= set(names)):  # the search had channels to choose, too
        point = tuple(values[name].index(int(row["settings"].get(name, 0))) for name in names)
        measured.setdefault(point, []).append(row["busbw"])
    means = {point: statistics.fmean(found) for point, found in measured.items()}
    # n values about their own mean spread too little, by the square root of n/(n-1)
    noise = [
        1 + (value / means[point] - 1) * math.sqrt(len(found) / (len(found) - 1))
        for point, found in measured.items()
        for value in found
        if len(found) > 1
    ]
    return Recorded(means, noise)


def share_of_best(recorded: Recorded, point: Point) -> float:
    return recorded.busbw[point] / max(recorded.busbw.values())


def searched(recorded: Recorded, seed: int) -> float:
    """What the search's pick is worth after BUDGET launches, with the defaults and the guide's list among them."""
    chance = random.Random(seed)
    points = list(recorded.busbw)
    first = proposals.design(points, seed)
    measured: dict[Point, list[float]] = {}

    def launch(point: Point) -> None:
        measured.setdefault(point, []).append(recorded.busbw[point] * chance.choice(recorded.noise))

    launch((0, 0, 0))
    launch((1, 4, 2))
    for left in range(BUDGET - 2, 0, -1):
        launch(proposals.propose(points, measured, (), first, left))
    ranked = proposals.scores(measured)
    return share_of_best(recorded, max(ranked, key=lambda point: ranked[point]))


def at_random(recorded: Recorded, seed: int) -> float:
    chance = random.Random(seed)
    drawn = chance.sample(list(recorded.busbw), BUDGET)
    return share_of_best(recorded, max(drawn, key=lambda point: recorded.busbw[point] * chance.choice(recorded.noise)))


def test_the_search_beats_random_search_on_a_recorded_grid(recorded: Recorded) -> None:
    assert len(recorded.busbw) >= 90 and statistics.stdev(recorded.noise) > 0.05
    ours = [searched(recorded, seed) for seed in range(SEEDS)]
    theirs = [at_random(recorded, seed) for seed in range(SEEDS)]
    assert statistics.fmean(ours) >= statistics.fmean(theirs) + 0.015
    assert statistics.fmean(ours) >= 0.955
    assert sorted(ours)[SEEDS // 20] >= sorted(theirs)[SEEDS // 20] + 0.03, "bad luck costs less, too"


def test_the_design_shows_every_value(recorded: Recorded) -> None:
    for seed in range(5):
        design = proposals.design(list(recorded.busbw), seed)
        assert len(set(design)) == proposals.DESIGN
        assert [len(set(column)) for column in zip(*design)] == [4, 5, 5]


def test_a_guess_knows_what_it_knows() -> None:
    line = [(place,) for place in range(9)]
    near, far = (guesses({(0,): [2.0] * 9, (2,): [4.0] * 9}, line)[place] for place in (1, 8))
    assert math.log(2) < near.log_score < math.log(4)
    assert near.sure_to < far.sure_to
    assert far.log_score == pytest.approx(math.log(8) / 2, abs=0.05)


def test_one_lucky_launch_is_drawn_to_its_neighbours_more_than_six() -> None:
    often = proposals.scores({(0,): [3.0] * 4, (1,): [3.6] * 6, (2,): [3.0] * 4})
    once = proposals.scores({(0,): [3.0] * 4, (1,): [3.6], (2,): [3.0] * 4})
    assert once[1,] < 3.58 < often[1,] < 3.6


def test_nothing_measured_is_no_reason_to_stop() -> None:
    points = [(0,), (1,), (2,)]
    assert proposals.propose(points, {}, {(0,), (1,)}, [(0,), (1,)], 5) == (2,)
    assert proposals.propose(points, {}, set(points), [(0,)], 5) == (0,)
