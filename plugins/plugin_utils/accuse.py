# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The statistics of an accusation: which nodes and links are slow, how sure that is, and how often it would be wrong.
Pure.

A pair is as fast as the slower of its two nodes, times what its rack does to all of its pairs, times noise. So in
logarithms a node's shift is the mean over its pairs with healthy partners minus the mean over the pairs of its rack
that
it has no part in: the rack's own level falls out. The noise is taken from the data (median absolute deviation, or
repeats of one pair
where the fleet is small), and small fleets are judged with Student's t.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
import statistics
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.pairing import Pair, ordered

FAILED_RATIO = 0.05
"""A run that hung or failed counts as this share of its rack's level: far below any slow node, and still a number."""

NORMAL = statistics.NormalDist()
OUTLIER = 3.5
CONTRADICTION = 4.0
PRIOR_FREEDOM = 4.0
ENOUGH_FOR_MAD = 30
TRIM = 3.0
TRIMMED_VARIANCE = 0.9733
"""Variance of a normal variable of which what lies beyond TRIM standard deviations was left out."""
TRIMMED_EFFICIENCY = 0.9
LITTLE_DOUBT = -3.0
CANDIDATES = 6
LARGEST_SET = 3
PRIOR = math.log(100)
"""One node in a hundred is taken to be slow before anything is measured."""


@dataclasses.dataclass(frozen=True)
class Bars:
    """How sure a verdict has to be.

    smallest_fault: share of its peers' speed that a node must lose to be worth naming. false_accusation: how often a
    fleet may see a healthy node or link
    accused. missed_fault: how often a node that lost smallest_fault may be cleared at one look. noise: relative
    standard deviation to assume
    of one measurement before the data tell. looks: how often a node may be judged. least: speed in GB/s that nobody
    is accused at, or None.
    """

    smallest_fault: float = 0.08
    false_accusation: float = 1e-4
    missed_fault: float = 1e-3
    noise: float = 0.03
    looks: int = 21
    least: float | None = None


@dataclasses.dataclass(frozen=True)
class Noise:
    """sigma: standard deviation of one measurement's logarithm. spread: of healthy nodes about their rack. freedom:
    degrees behind them.

    settled: whether the fleet's first rounds sufficed, so that the choice of whom to measure again cannot sway it.
    """

    sigma: float
    spread: float
    freedom: float
    settled: bool = False


@dataclasses.dataclass(frozen=True)
class PairTotal:
    """All runs of one pair: the sum of logarithms of GB/s over `runs`, and how many of `tries` failed.

    Where all failed, all count, each as FAILED_RATIO; where some gave a number, only those do.
    """

    total: float
    runs: int
    tries: int
    failed: int


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


@dataclasses.dataclass(frozen=True)
class Weighing:
    """One block, weighed. level: logarithm of GB/s of its healthy pairs, None where nothing ran. slow: nodes that the
    level leaves out.

    partners: {node: {partner: shift}}. links: pairs that are slow although both ends are not, and so count for
    neither.
    """

    level: float | None
    shifts: dict[str, Shift]
    partners: dict[str, dict[str, Shift]]
    links: dict[Pair, Shift]
    slow: frozenset[str]
    doubts: dict[str, float]


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


def pair_totals(runs: t.Iterable[tuple[str, str, float | None]]) -> dict[Pair, PairTotal]:
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
        pair: PairTotal(sum(values), len(values), tries[pair], tries[pair] - len(values))
        if values
        else PairTotal(lost * tries[pair], tries[pair], tries[pair], tries[pair])
        for pair, values in by_pair.items()
    }


def estimate_noise(blocks: t.Sequence[t.Sequence[tuple[str, str, float | None]]], bars: Bars) -> Noise:
    """The noise of these runs, a list a block, each run (node, node, GB/s or None).

    Large fleets: the median absolute difference of two pairs of one block, which a few bad nodes do not move and the
    block's level does not enter;
    and from the nodes' own means how far healthy nodes differ. Small ones: repeats of one pair, blended with the
    noise that the bars assume.
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
    if len(gaps) < ENOUGH_FOR_MAD:
        return _noise_of_repeats(blocks, bars)
    limit = TRIM * 1.4826 * statistics.median(gaps)
    kept = [gap for gap in gaps if gap <= limit]
    freedom = len(kept) * TRIMMED_EFFICIENCY
    squares = statistics.fmean(gap * gap for gap in kept) / 2 / TRIMMED_VARIANCE if kept else 0.0
    variance = (PRIOR_FREEDOM * bars.noise**2 + freedom * squares) / (PRIOR_FREEDOM + freedom)
    return Noise(math.sqrt(variance), _spread(list(by_node.values()), variance), PRIOR_FREEDOM + freedom, settled=True)


def _noise_of_repeats(blocks: t.Sequence[t.Sequence[tuple[str, str, float | None]]], bars: Bars) -> Noise:
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
    if len(means) < ENOUGH_FOR_MAD:
        return 0.0
    count = statistics.fmean(len(values) for values in nodes if len(values) > 1)
    middle = statistics.median(means)
    seen = (1.4826 * statistics.median(abs(mean - middle) for mean in means)) ** 2
    explained = pair_variance / count
    if seen < explained * (1 + 6 / math.sqrt(len(means))):
        return 0.0
    return math.sqrt((seen - explained) / (1 - 1 / count))


def resolution(noise: Noise, nodes: int, runs: int, bars: Bars) -> float:
    """The smallest distance in logarithms that `runs` runs a node can name within the bars; never below the smallest
    fault.
    """
    false = NORMAL.inv_cdf(1 - bars.false_accusation / (max(nodes, 1) * bars.looks))
    missed = NORMAL.inv_cdf(1 - bars.missed_fault)
    return max(log_fault(bars), (false + missed) * math.sqrt(noise.spread**2 + noise.sigma**2 / max(runs, 1)))


def weigh(totals: t.Mapping[Pair, PairTotal], noise: Noise, fault: float) -> Weighing:
    """Weigh one block's pairs: which set of slow nodes explains them best. `fault` as resolution() gives it.

    A set is scored by how much slower the pairs that touch it are than the others, less PRIOR for each of its nodes;
    the best sets of up to LARGEST_SET
    nodes are taken out one after the other until none explains anything more. Every node left is then doubted by the
    best set that it could be part of.
    """
    if not totals:
        return Weighing(None, {}, {}, {}, frozenset(), {})
    links = _odd_links(totals, noise, fault)
    kept = {pair: total for pair, total in totals.items() if pair not in links}
    slow: set[str] = set()
    clean = _Clean(kept, slow)
    while True:
        best = max(_sets(clean.slowest()), key=lambda names: _score(clean, names, noise, fault), default=())
        if not best or _score(clean, best, noise, fault) <= 0:
            break
        slow.update(best)
        clean = _Clean(kept, slow)
    meets: dict[str, dict[str, PairTotal]] = {name: {} for pair in totals for name in pair}
    for (one, two), total in kept.items():
        meets[one][two] = total
        meets[two][one] = total
    level = _mean([total for pair, total in kept.items() if not slow.intersection(pair)] or list(kept.values()))
    return Weighing(
        level,
        _shifts(kept, meets, slow, noise),
        {
            name: {other: _pair_shift(total, level, noise) for other, total in met.items()}
            for name, met in meets.items()
        },
        {pair: _pair_shift(totals[pair], level, noise) for pair in links},
        frozenset(slow),
        _doubts(clean, [name for name in meets if name not in slow], bool(slow), noise, fault),
    )


class _Clean:
    """The pairs that touch no slow node, added up by node."""

    def __init__(self, kept: t.Mapping[Pair, PairTotal], slow: set[str]) -> None:
        self.pairs = {pair: total for pair, total in kept.items() if pair[0] not in slow and pair[1] not in slow}
        self.total = sum(total.total for total in self.pairs.values())
        self.runs = sum(total.runs for total in self.pairs.values())
        self.by_node: dict[str, tuple[float, int]] = {}
        for pair, total in self.pairs.items():
            for name in pair:
                old = self.by_node.get(name, (0.0, 0))
                self.by_node[name] = (old[0] + total.total, old[1] + total.runs)

    def slowest(self) -> list[str]:
        """The CANDIDATES nodes with the lowest mean."""
        return heapq.nsmallest(CANDIDATES, self.by_node, key=lambda name: self.by_node[name][0] / self.by_node[name][1])

    def contrast(self, names: t.Sequence[str], noise: Noise) -> tuple[float, float] | None:
        """(how much slower the pairs that touch `names` are than the others, its variance); None where there is
        nothing on one side.
        """
        total, runs = 0.0, 0
        for name in names:
            own = self.by_node.get(name, (0.0, 0))
            total, runs = total + own[0], runs + own[1]
        for one, two in itertools.combinations(names, 2):
            inner = self.pairs.get(ordered(one, two))
            if inner is not None:
                total, runs = total - inner.total, runs - inner.runs
        others = self.runs - runs
        if not runs or not others:
            return None
        variance = noise.sigma**2 * (1 / runs + 1 / others) + noise.spread**2 / len(names)
        return (self.total - total) / others - total / runs, variance


def _sets(names: t.Sequence[str]) -> t.Iterator[tuple[str, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(names, size) for size in range(1, LARGEST_SET + 1))


def _gain(clean: _Clean, names: t.Sequence[str], noise: Noise, fault: float) -> float | None:
    """Logarithm of the likelihood ratio of `names` having lost `fault` or more against nobody having lost anything."""
    seen = clean.contrast(names, noise)
    if seen is None:
        return None
    lost, variance = seen
    return (lost * lost if lost > fault else 2 * lost * fault - fault * fault) / (2 * variance)


def _score(clean: _Clean, names: t.Sequence[str], noise: Noise, fault: float) -> float:
    gain = _gain(clean, names, noise, fault)
    return -math.inf if gain is None else gain - PRIOR * len(names)


def _doubts(clean: _Clean, names: t.Sequence[str], some_slow: bool, noise: Noise, fault: float) -> dict[str, float]:
    """For each node that is not taken for slow, how likely the data make it slow after all (logarithm of the ratio),
    alone or with others.

    Where slow nodes were found and what is left has no part without the node, it sets the level itself: then nothing
    but its runs speaks, for it.
    """
    suspects = clean.slowest()
    doubts = {}
    for name in names:
        doubt = _gain(clean, (name,), noise, fault)
        if doubt is None:
            runs = clean.by_node.get(name, (0.0, 0))[1]
            doubt = -fault * fault * runs / (2 * noise.sigma**2) if some_slow else 0.0
        elif doubt <= LITTLE_DOUBT:
            others = [other for other in suspects if other != name]
            for size in range(1, LARGEST_SET):
                for group in itertools.combinations(others, size):
                    gain = _gain(clean, (name, *group), noise, fault)
                    if gain is not None:
                        doubt = max(doubt, gain - PRIOR * size)
        doubts[name] = doubt
    return doubts


def _mean(totals: t.Sequence[PairTotal]) -> float:
    return sum(total.total for total in totals) / sum(total.runs for total in totals)


def _pair_shift(total: PairTotal, level: float, noise: Noise) -> Shift:
    return Shift(
        total.total / total.runs - level, noise.sigma / math.sqrt(total.runs), total.runs, total.tries, total.failed
    )


def _shifts(
    kept: t.Mapping[Pair, PairTotal], meets: t.Mapping[str, t.Mapping[str, PairTotal]], slow: set[str], noise: Noise
) -> dict[str, Shift]:
    """Every node's shift: its pairs with nodes that are not slow, against the pairs between nodes that are not slow
    without it.
    """
    clean = [total for pair, total in kept.items() if not (pair[0] in slow or pair[1] in slow)]
    whole, count = sum(total.total for total in clean), sum(total.runs for total in clean)
    shifts = {}
    for name, met in meets.items():
        own = [total for partner, total in met.items() if partner not in slow]
        runs = sum(total.runs for total in own)
        tries, failed = sum(total.tries for total in met.values()), sum(total.failed for total in met.values())
        if not runs:
            shifts[name] = Shift(0.0, math.inf, 0, tries, failed)
            continue
        total = sum(total.total for total in own)
        others, rest = (count, whole) if name in slow else (count - runs, whole - total)
        if others:
            error = math.sqrt(noise.sigma**2 * (1 / runs + 1 / others) + noise.spread**2)
            shifts[name] = Shift(total / runs - rest / others, error, runs, tries, failed)
        elif name in slow or len(kept) == 1:
            shifts[name] = Shift(0.0, math.inf, runs, tries, failed)
        else:  # its pairs are the only clean ones: it sets the level
            shifts[name] = Shift(0.0, math.sqrt(noise.sigma**2 / runs + noise.spread**2), runs, tries, failed)
    return shifts


def _odd_links(totals: t.Mapping[Pair, PairTotal], noise: Noise, fault: float) -> set[Pair]:
    """Pairs that are far slower than all else that either of their nodes did: a matter of the link (or of chance), not
    of a node.
    """
    sums: dict[str, tuple[float, int]] = {}
    for pair, total in totals.items():
        for name in pair:
            old = sums.get(name, (0.0, 0))
            sums[name] = (old[0] + total.total, old[1] + total.runs)
    odd = set()
    for pair, total in totals.items():
        mean = total.total / total.runs
        for name in pair:
            rest, runs = sums[name][0] - total.total, sums[name][1] - total.runs
            if not runs:
                break
            gap = mean - rest / runs
            error = math.sqrt(noise.sigma**2 * (1 / total.runs + 1 / runs) + noise.spread**2)
            if gap > -OUTLIER * error or gap > -fault / 2:
                break
        else:
            odd.add(pair)
    return odd


def is_healthy(doubt: float, shift: Shift, noise: Noise, fault: float, bars: Bars) -> bool:
    """Whether the data speak against the node being slow strongly enough that a slow one is cleared in at most about
    missed_fault of fleets.

    Either by the ratio of likelihoods (Wald's bound, over all looks; with few degrees of freedom Student's), or, with
    little doubt left, because a slow node's
    shift would be this high at one look in a tenth of that.
    """
    if doubt > LITTLE_DOUBT:
        return False
    if noise.freedom / 2 * math.log1p(-2 * doubt / noise.freedom) >= -math.log(bars.missed_fault):
        return True
    return looks_healthy(shift, noise, fault, bars.missed_fault / 10)


def looks_healthy(shift: Shift, noise: Noise, fault: float, missed: float) -> bool:
    """Whether a node or pair that has lost `fault` would look this good in at most `missed` of cases."""
    return bool(shift.runs) and tail((shift.log_ratio + fault) / shift.error, noise.freedom) <= missed


def chance(shift: Shift, noise: Noise, suspects: int, bars: Bars) -> float:
    """Probability that any of `suspects` healthy nodes (or pairs) shows a shift this low at any of the looks
    (Bonferroni), at most 1.
    """
    if not shift.runs or math.isinf(shift.error):
        return 1.0
    return min(1.0, tail(-shift.log_ratio / shift.error, noise.freedom) * suspects * bars.looks)


def chance_of_failures(failed: int, tries: int, fleet: Fleet, bars: Bars) -> float:
    """Probability that any healthy node fails `failed` of `tries` times, at the rate at which healthy pairs fail (at
    least half a failure), at most 1.
    """
    rate = min(1.0, (fleet.failed + 0.5) / (fleet.tries + 1))
    tails = sum(math.comb(tries, k) * rate**k * (1 - rate) ** (tries - k) for k in range(failed, tries + 1))
    return min(1.0, tails * fleet.nodes * bars.looks)


@dataclasses.dataclass(frozen=True)
class Fleet:
    """What an accusation is made against: how many nodes could be accused, and how often pairs of nodes that are not
    slow failed.
    """

    nodes: int
    tries: int
    failed: int


def fleet_of(nodes: int, weighed: t.Iterable[tuple[t.Mapping[Pair, PairTotal], Weighing]]) -> Fleet:
    """Add up the healthy pairs of all blocks."""
    healthy = [
        total
        for totals, weighing in weighed
        for pair, total in totals.items()
        if pair not in weighing.links and not weighing.slow.intersection(pair)
    ]
    return Fleet(nodes, sum(total.tries for total in healthy), sum(total.failed for total in healthy))


@dataclasses.dataclass(frozen=True)
class Accusation:
    """A verdict on one node. kind: slow or fails. false: probability that any healthy node of the fleet would be
    accused on such evidence.
    """

    kind: str
    shift: Shift
    false: float
    partners: tuple[tuple[str, Shift], ...]


def accuse(
    name: str,
    weighing: Weighing,
    known_good: t.Container[str],
    noise: Noise,
    fault: float,
    fleet: Fleet,
    bars: Bars,
) -> Accusation | None:
    """Judge one suspect: bad with at least two known-good partners, contradicted by none, and surer than the bars
    ask; else None.

    Bad means failing with them, or slow against the pairs of its rack and, where `bars.least` is set, slower than
    that too.
    """
    shift = weighing.shifts[name]
    partners = {partner: seen for partner, seen in weighing.partners[name].items() if partner in known_good}
    if weighing.level is None:
        return None
    lost = {partner: seen for partner, seen in partners.items() if seen.failed}
    failed, tries = sum(seen.failed for seen in lost.values()), sum(seen.tries for seen in partners.values())
    if len(lost) >= 2 and failed * 2 > tries:
        false = chance_of_failures(failed, tries, fleet, bars)
        if false <= bars.false_accusation:
            return Accusation("fails", shift, false, tuple(sorted(partners.items())))
        return None
    if shift.log_ratio > -fault / 2:
        return None
    bad = [partner for partner, seen in partners.items() if seen.log_ratio <= -fault / 3]
    if len(bad) < 2 or any(
        seen.log_ratio > shift.log_ratio + CONTRADICTION * math.hypot(seen.error, shift.error)
        for seen in partners.values()
    ):
        return None
    if bars.least is not None and math.exp(weighing.level + shift.log_ratio) >= bars.least:
        return None
    false = chance(shift, noise, fleet.nodes, bars)
    return Accusation("slow", shift, false, tuple(sorted(partners.items()))) if false <= bars.false_accusation else None
