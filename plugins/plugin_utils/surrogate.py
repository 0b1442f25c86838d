# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A guess at unmeasured settings from noisy measurements of others, with how unsure it is: a Gaussian process.

Rasmussen and Williams, "Gaussian Processes for Machine Learning", chapter 2. Optuna's own one needs torch, and knows neither
that values are ordered nor how noisy a launch is. The logarithm of the score is modelled: settings multiply it.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.requirements import lazy

if t.TYPE_CHECKING:
    import numpy
else:
    numpy = lazy("numpy")

Point = tuple[int, ...]

#: how far apart two values of a knob may be, in positions, and still tell of each other
REACH = 0.8

#: the share of what a knob does whatever the others are set to; the rest is what all of them do together
ADDITIVE = 0.5

#: how much settings change the score, and how much two launches of the same settings differ, as shares of it
SWING = 0.5
NOISE = 0.08


@dataclasses.dataclass(frozen=True)
class Guess:
    """Of the logarithm of a point's score. sure_to: one standard deviation, without the noise of a launch."""

    log_score: float
    sure_to: float

    def hope(self, curiosity: float) -> float:
        return self.log_score + curiosity * self.sure_to


def guesses(
    measured: t.Mapping[Point, t.Sequence[float]], points: t.Sequence[Point], noise: float = NOISE
) -> list[Guess]:
    """A guess at each of *points*. measured: {positions of the values: scores above zero, one a launch}, not empty.

    noise: of one launch, as a share of its score.
    """
    known = list(measured)
    values = numpy.array([statistics.fmean(map(math.log, measured[point])) for point in known])
    doubt = numpy.diag([noise**2 / len(measured[point]) for point in known])
    factor = numpy.linalg.cholesky(_alike(known, known) + doubt)
    ones = numpy.linalg.solve(factor, numpy.ones(len(known)))
    told = numpy.linalg.solve(factor, values)
    mean = float(ones @ told / (ones @ ones))
    across = numpy.linalg.solve(factor, _alike(known, points))
    logs = mean + across.T @ (told - mean * ones)
    left = SWING**2 - (across**2).sum(axis=0)
    return [Guess(float(log), math.sqrt(max(float(rest), 0.0))) for log, rest in zip(logs, left)]


def _alike(rows: t.Sequence[Point], columns: t.Sequence[Point]) -> t.Any:
    """How much the points of *rows* and *columns* tell of each other: near values of one knob, and of all at once."""
    one, two = numpy.array(rows, dtype=float), numpy.array(columns, dtype=float)
    squares = ((one[:, None, :] - two[None, :, :]) / REACH) ** 2
    each = numpy.exp(-squares / 2).mean(axis=2)
    together = numpy.exp(-squares.sum(axis=2) / 2)
    return SWING**2 * (ADDITIVE * each + (1 - ADDITIVE) * together)
