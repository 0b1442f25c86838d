# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Measurements of pairs of nodes as numbers: logarithms, their noise, and how likely they are by chance. Pure.

The noise is taken from the data (differences of pairs of one rack, or repeats of one pair where the fleet is small),
and small fleets are judged with Student's t.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.pairing import Pair, ordered

Run = tuple[str, str, "float | None"]
"""One run of two nodes: GB/s, or None where it hung or failed."""

FAILED_RATIO = 0.05
"""A run that hung or failed counts as this share of its rack's level: far below any slow node, and still a number."""

NORMAL = statistics.NormalDist()
PRIOR_FREEDOM = 4.0
ENOUGH = 30
TRIM = 3.0
TRIMMED_VARIANCE = 0.9733
"""Variance of a normal variable of which what lies beyond TRIM standard deviations was left out."""
TRIMMED_EFFICIENCY = 0.9


@dataclasses.dataclass(frozen=True)
class Bars:
    """How sure a verdict has to be.

    smallest_fault: share of its peers' speed that a node must lose to be worth naming. false_accusation: how often a
    fleet may see a healthy node or link accused. missed_fault: how often a node that lost smallest_fault may be
    cleared at one look. noise: relative standard deviation to assume of one measurement before the data tell. looks:
    how often a node may be judged. least: speed in GB/s that nobody is accused at, or None.
    """

    smallest_fault: float = 0.08
    false_accusation: float = 1e-4
    missed_fault: float = 1e-4
    noise: float = 0.03
    looks: int = 21
    least: float | None = None


@dataclasses.dataclass(frozen=True)
class Noise:
    """sigma: standard deviation of one measurement's logarithm. spread: of healthy nodes about their rack. freedom:
    degrees behind them.

    settled: whether the fleet's first rounds sufficed, so that the choice of whom to measure again cannot sway it.
    fault: the smallest loss, as a distance in logarithms, that is looked for and can be told from this noise.
    """

    sigma: float
    spread: float
    freedom: float
    settled: bool = False
    fault: float = math.inf


@dataclasses.dataclass(frozen=True)
class PairTotal:
    """All runs of one pair: the sum of logarithms of GB/s over `runs`, and how many of `tries` failed.

    Where all failed, all count, each as FAILED_RATIO; where some gave a number, only those do. lowest: the lowest logarithm.
    """

    total: float
    runs: int
    tries: int
    failed: int
    lowest: float


@dataclasses.dataclass(frozen=True)
class Shift:
    """How far a node or a pair is from its peers: the logarithm of the ratio, and its standard error (infinite where
    there are no peers).
    """

    log_ratio: float
    error: float
    runs: int
    tries: int = 0
    failed: int = 0

    @property
    def ratio(self) -> float:
        return math.exp(self.log_ratio)


def log_fault(bars: Bars) -> float:
    """The smallest fault as a (positive) distance in logarithms."""
    return -math.log1p(-bars.smallest_fault)


def tail(score: float, freedom: float) -> float:
    """Probability that Student's t with `freedom` degrees exceeds `score` (Wallace's normal approximation; good to a
    few per cent).
    """
    if math.isinf(freedom):
        return 0.5 * math.erfc(score / math.sqrt(2))
    bent = math.sqrt(freedom * math.log1p(score * score / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    return 0.5 * math.erfc(math.copysign(bent, score) / math.sqrt(2))


def pair_totals(runs: t.Iterable[Run]) -> dict[Pair, PairTotal]:
    """Add up runs (node, node, GB/s or None where it hung or failed) by pair. {} where no run of all gave a number."""
    measured = list(runs)
    speeds = [math.log(speed) for _one, _two, speed in measured if speed is not None]
    if not speeds:
        return {}
    lost = statistics.median(speeds) + math.log(FAILED_RATIO)
    by_pair: dict[Pair, list[float]] = {}
    tries: dict[Pair, int] = {}
    for one, two, speed in measured:
        pair = ordered(one, two)
        tries[pair] = tries.get(pair, 0) + 1
        values = by_pair.setdefault(pair, [])
        if speed is not None:
            values.append(math.log(speed))
    return {
        pair: PairTotal(sum(values), len(values), tries[pair], tries[pair] - len(values), min(values))
        if values
        else PairTotal(lost * tries[pair], tries[pair], tries[pair], tries[pair], lost)
        for pair, values in by_pair.items()
    }


def estimate_noise(blocks: t.Sequence[t.Sequence[Run]], bars: Bars) -> Noise:
    """The noise of these runs, a list a block, each run (node, node, GB/s or None).

    Large fleets: the median absolute difference of two pairs of one block, which a few bad nodes do not move and the
    block's level does not enter; and from the nodes' own means how far healthy nodes differ. Small ones: repeats of
    one pair, blended with the noise that the bars assume.
    """
    gaps: list[float] = []
    by_node: dict[str, list[float]] = {}
    for block in blocks:
        logs = [(one, two, math.log(speed)) for one, two, speed in block if speed is not None]
        level = statistics.median(value for _one, _two, value in logs) if logs else 0.0
        gaps += [abs(first[2] - second[2]) for first, second in zip(logs[::2], logs[1::2], strict=False)]
        for one, two, value in logs:
            by_node.setdefault(one, []).append(value - level)
            by_node.setdefault(two, []).append(value - level)
    if len(gaps) < ENOUGH:
        return _noise_of_repeats(blocks, bars)
    limit = TRIM * 1.4826 * statistics.median(gaps)
    kept = [gap for gap in gaps if gap <= limit]
    freedom = len(kept) * TRIMMED_EFFICIENCY
    squares = statistics.fmean(gap * gap for gap in kept) / 2 / TRIMMED_VARIANCE if kept else 0.0
    variance = (PRIOR_FREEDOM * bars.noise**2 + freedom * squares) / (PRIOR_FREEDOM + freedom)
    return Noise(math.sqrt(variance), _spread(list(by_node.values()), variance), PRIOR_FREEDOM + freedom, settled=True)


def _noise_of_repeats(blocks: t.Sequence[t.Sequence[Run]], bars: Bars) -> Noise:
    by_pair: dict[Pair, list[float]] = {}
    for block in blocks:
        for one, two, speed in block:
            if speed is not None:
                by_pair.setdefault(ordered(one, two), []).append(math.log(speed))
    repeated = [values for values in by_pair.values() if len(values) > 1]
    squares = sum(statistics.variance(values) * (len(values) - 1) for values in repeated)
    freedom = PRIOR_FREEDOM + sum(len(values) - 1 for values in repeated)
    return Noise(math.sqrt((PRIOR_FREEDOM * bars.noise**2 + squares) / freedom), 0.0, freedom)


def _spread(nodes: t.Sequence[t.Sequence[float]], pair_variance: float) -> float:
    """Standard deviation of healthy nodes, from how much more their means differ than the pairs' noise explains (0 if
    no more).

    With n pairs a node, pairs vary by noise + 2 s², means by noise / n + s² (1 + 1 / n): the two together give s².
    """
    means = [statistics.fmean(values) for values in nodes if len(values) > 1]
    if len(means) < ENOUGH:
        return 0.0
    count = statistics.fmean(len(values) for values in nodes if len(values) > 1)
    middle = statistics.median(means)
    seen = (1.4826 * statistics.median(abs(mean - middle) for mean in means)) ** 2
    explained = pair_variance / count
    if seen < explained * (1 + 6 / math.sqrt(len(means))):
        return 0.0
    return math.sqrt((seen - explained) / (1 - 1 / count))


def with_fault(noise: Noise, nodes: int, runs: int, bars: Bars, spread: float = 0.0) -> Noise:
    """The noise with what `runs` runs a node can name within the bars among `nodes` nodes; never below the smallest
    fault. spread: how much healthy nodes are taken to differ at the least.
    """
    spread = max(noise.spread, spread)
    false = NORMAL.inv_cdf(1 - bars.false_accusation / (max(nodes, 1) * bars.looks))
    missed = NORMAL.inv_cdf(1 - bars.missed_fault)
    told = (false + missed) * math.sqrt(spread**2 + noise.sigma**2 / max(runs, 1))
    return dataclasses.replace(noise, spread=spread, fault=max(log_fault(bars), told))


def looks_healthy(shift: Shift, noise: Noise, missed: float) -> bool:
    """Whether a node or pair that has lost the fault would look this good in at most `missed` of cases."""
    return bool(shift.runs) and tail((shift.log_ratio + noise.fault) / shift.error, noise.freedom) <= missed


def chance(shift: Shift, noise: Noise, suspects: int, bars: Bars) -> float:
    """Probability that any of `suspects` healthy nodes (or pairs) shows a shift this low at any of the looks
    (Bonferroni), at most 1.
    """
    if not shift.runs or math.isinf(shift.error):
        return 1.0
    return min(1.0, tail(-shift.log_ratio / shift.error, noise.freedom) * suspects * bars.looks)
