# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether one set of measurements is really better than another, or only luckier."""

from __future__ import annotations

import dataclasses
import random
import statistics
import typing as t

#: resamples; 2,000 give the 95% bounds of a ratio of medians to about 1% (Efron and Tibshirani, chapter 13)
RESAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Comparison:
    """ratio: median of the candidate over median of the reference; low, high: its 95% interval."""

    ratio: float
    low: float
    high: float

    @property
    def better(self) -> bool:
        """Whether the candidate's gain (a larger value) is outside the noise."""
        return self.low > 1.0

    @property
    def worse(self) -> bool:
        return self.high < 1.0

    @property
    def text(self) -> str:
        how = "better" if self.better else "worse" if self.worse else "no difference outside the noise"
        return f"{self.ratio:.3g} times ({self.low:.3g} to {self.high:.3g}): {how}"


def compare(candidate: t.Sequence[float], reference: t.Sequence[float], seed: int = 0) -> Comparison:
    """Bootstrap interval of the ratio of medians of two samples of a value that is better when larger.

    With fewer than three values on either side no interval can be told, and nothing counts as better. ValueError for an
    empty sample or values that are not above zero.
    """
    if not candidate or not reference or min(*candidate, *reference, 1.0) <= 0:
        raise ValueError("both samples need at least one value, all above zero")
    ratio = statistics.median(candidate) / statistics.median(reference)
    if min(len(candidate), len(reference)) < 3:
        return Comparison(ratio, 0.0, float("inf"))
    chance = random.Random(seed)

    def resampled(sample: t.Sequence[float]) -> float:
        return statistics.median(chance.choices(sample, k=len(sample)))

    ratios = sorted(resampled(candidate) / resampled(reference) for _round in range(RESAMPLES))
    return Comparison(ratio, ratios[int(0.025 * RESAMPLES)], ratios[int(0.975 * RESAMPLES) - 1])
