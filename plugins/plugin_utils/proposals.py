# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a search measures next: a spread of points at first, then what is hoped most of, at last the leaders again. Pure.

A launch is noisy, and the best of many single launches is more lucky than good. So the last third of the budget goes to the
leaders; tests/unit shows what that is worth on a recorded grid.
"""

from __future__ import annotations

import math
import random
import statistics
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.surrogate import NOISE, Point, guesses

#: points of the spread at the start
DESIGN = 8

#: the share of the budget that is kept for the leaders, and how many of them there are
CONFIRMING = 1 / 3
LEADERS = 4

#: how much of a guess's uncertainty is hoped to be good
CURIOSITY = 0.7

#: settings that failed count as so much of the worst score, so that their neighbours are not tried first
FAILED = 0.5

#: designs drawn, of which the one that covers most is taken
DRAWS = 200


def design(points: t.Sequence[Point], seed: int) -> list[Point]:
    """DESIGN of *points* that show every value of each knob as evenly as can be."""
    chance = random.Random(seed)
    size = min(DESIGN, len(points))
    draws = [chance.sample(list(points), size) for _draw in range(DRAWS)]
    return max(draws, key=_levels)


def _levels(points: t.Sequence[Point]) -> int:
    """How many different values of all knobs the points show."""
    return sum(len(set(column)) for column in zip(*points))


def propose(
    points: t.Sequence[Point],
    measured: t.Mapping[Point, t.Sequence[float]],
    failed: t.Collection[Point],
    first: t.Sequence[Point],
    left: int,
) -> Point:
    """The point to measure next. measured: {point: scores}; failed: points without any; first: the design;
    left: launches that the budget still has, this one included.
    """
    known = {*measured, *failed}
    spread = next((point for point in first if point not in known), None)
    if spread is not None or not measured:
        return spread if spread is not None else next((p for p in points if p not in known), points[0])
    new = [point for point in points if point not in known]
    launches = sum(map(len, measured.values())) + len(failed)
    if new and left > CONFIRMING * (left + launches):
        hopes = guesses(_with_failed(measured, failed), new)
        return new[max(range(len(new)), key=lambda index: hopes[index].hope(CURIOSITY))]
    ranked = scores(measured, failed)
    leaders = sorted(measured, key=lambda point: -ranked[point])[:LEADERS]
    return max(leaders, key=lambda p: math.log(ranked[p]) + CURIOSITY * NOISE / math.sqrt(len(measured[p])))


def scores(measured: t.Mapping[Point, t.Sequence[float]], failed: t.Collection[Point] = ()) -> dict[Point, float]:
    """{measured point: its score, drawn towards its neighbours' the more, the fewer launches it had}."""
    if not measured:
        return {}
    guessed = guesses(_with_failed(measured, failed), list(measured))
    return {point: math.exp(guess.log_score) for point, guess in zip(measured, guessed)}


def mean(values: t.Iterable[float]) -> float:
    """The geometric mean: scores are compared as ratios."""
    return math.exp(statistics.fmean(map(math.log, values)))


def _with_failed(
    measured: t.Mapping[Point, t.Sequence[float]], failed: t.Collection[Point]
) -> dict[Point, t.Sequence[float]]:
    worst = min(min(values) for values in measured.values())
    return {**measured, **dict.fromkeys(failed, (FAILED * worst,))}
