# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A guess at unmeasured settings: each variable's value multiplies the result, whatever the others are."""

from __future__ import annotations

import math
import statistics
import typing as t

Point = tuple[int, ...]

#: sweeps of the fit; the effects settle within a few
SWEEPS = 10

#: weight of "this value has no effect" against the measurements of it: one lucky trial must not decide
PRIOR_WEIGHT = 0.5

#: what is hoped of a value that was never tried, on top of its neighbours' effect (a factor of e^0.1)
CURIOSITY = 0.1


def predictor(measured: t.Mapping[Point, float], sizes: t.Sequence[int]) -> t.Callable[[Point], float]:
    """Fit log(score) = mean + sum of one effect a variable and value, by backfitting; returns the guess at log(score).

    measured: {positions of the values: score above zero}; sizes: number of values of each variable. A value without a
    measurement is taken for its better neighbour, and a little better, so that it gets tried.
    """
    logs = {point: math.log(score) for point, score in measured.items()}
    mean = statistics.fmean(logs.values())
    effects: list[list[float]] = [[0.0] * size for size in sizes]
    axes = range(len(sizes))
    for _sweep in range(SWEEPS):
        for axis in axes:
            residuals: dict[int, list[float]] = {}
            for point, value in logs.items():
                others = sum(effects[other][point[other]] for other in axes if other != axis)
                residuals.setdefault(point[axis], []).append(value - mean - others)
            tried = {level: sum(found) / (len(found) + PRIOR_WEIGHT) for level, found in residuals.items()}
            effects[axis] = [tried.get(level, _hoped(level, tried)) for level in range(sizes[axis])]
    return lambda point: mean + sum(effects[axis][point[axis]] for axis in axes)


def _hoped(level: int, tried: t.Mapping[int, float]) -> float:
    neighbours = [tried[other] for other in (level - 1, level + 1) if other in tried]
    return max(neighbours, default=0.0) + CURIOSITY
