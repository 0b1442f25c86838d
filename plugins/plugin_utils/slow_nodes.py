# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which set of slow nodes explains the pairs of one rack best, and who is left in doubt. Pure.

A pair is as fast as the slower of its two nodes, times what its rack does to all of its pairs, times noise. So in
logarithms a node's shift is the mean over its pairs with healthy partners minus the mean over the pairs of its rack
that it has no part in: the rack's own level falls out.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.pair_statistics import (
    Noise,
    PairTotal,
    Shift,
    looks_healthy,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.pairing import Pair, ordered

OUTLIER = 3.5
LITTLE_DOUBT = -3.0
CANDIDATES = 6
LARGEST_SET = 3
PRIOR = math.log(100)
"""One node in a hundred is taken to be slow before anything is measured."""


@dataclasses.dataclass(frozen=True)
class Weighing:
    """One block, weighed. level: logarithm of GB/s of its healthy pairs, None where nothing ran. slow: nodes that the
    level leaves out.

    partners: {node: {partner: shift}}. links: pairs that are slow although both ends are not, and so count for
    neither. doubts: for each node that is not slow, the logarithm of how much likelier the data make it slow than not.
    noise: what it was weighed against.
    """

    level: float | None
    shifts: dict[str, Shift]
    partners: dict[str, dict[str, Shift]]
    links: dict[Pair, Shift]
    slow: frozenset[str]
    doubts: dict[str, float]
    noise: Noise


def weigh(totals: t.Mapping[Pair, PairTotal], noise: Noise, doubted: t.Container[str] | None = None) -> Weighing:
    """Weigh one block's pairs: which set of slow nodes explains them best. noise.fault is what a slow node has lost.

    A set is scored by how much slower the pairs that touch it are than the others, less PRIOR for each of its nodes;
    the best sets of up to LARGEST_SET nodes are taken out one after the other until none explains anything more.
    Every node left is then doubted by the best set that it could be part of (of the nodes in `doubted`, or all).
    """
    if not totals:
        return Weighing(None, {}, {}, {}, frozenset(), {}, noise)
    links = _odd_links(totals, noise)
    kept = {pair: total for pair, total in totals.items() if pair not in links}
    slow: set[str] = set()
    clean = _Clean(kept, slow)
    while True:
        best = max(_sets(clean.slowest()), key=lambda names: _score(clean, names, noise), default=())
        if not best or _score(clean, best, noise) <= 0:
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
        _doubts(
            clean,
            [name for name in meets if name not in slow and (doubted is None or name in doubted)],
            bool(slow),
            noise,
        ),
        noise,
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


def _gain(clean: _Clean, names: t.Sequence[str], noise: Noise) -> float | None:
    """Logarithm of the likelihood ratio of `names` having lost noise.fault or more against nobody having lost anything."""
    seen = clean.contrast(names, noise)
    if seen is None:
        return None
    lost, variance = seen
    fault = noise.fault
    return (lost * lost if lost > fault else 2 * lost * fault - fault * fault) / (2 * variance)


def _score(clean: _Clean, names: t.Sequence[str], noise: Noise) -> float:
    gain = _gain(clean, names, noise)
    return -math.inf if gain is None else gain - PRIOR * len(names)


def _doubts(clean: _Clean, names: t.Sequence[str], some_slow: bool, noise: Noise) -> dict[str, float]:
    """For each node that is not taken for slow, how likely the data make it slow after all (logarithm of the ratio),
    alone or with others.

    Where slow nodes were found and what is left has no part without the node, it sets the level itself: then nothing
    but its runs speaks, for it.
    """
    suspects = clean.slowest()
    doubts = {}
    for name in names:
        doubt = _gain(clean, (name,), noise)
        if doubt is None:
            runs = clean.by_node.get(name, (0.0, 0))[1]
            doubt = -(noise.fault**2) * runs / (2 * noise.sigma**2) if some_slow else 0.0
        elif doubt <= LITTLE_DOUBT:
            others = [other for other in suspects if other != name]
            for size in range(1, LARGEST_SET):
                for group in itertools.combinations(others, size):
                    gain = _gain(clean, (name, *group), noise)
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


def _odd_links(totals: t.Mapping[Pair, PairTotal], noise: Noise) -> set[Pair]:
    """Pairs that are far slower than all else that either of their nodes did: a matter of the link (or of chance),
    not of a node.
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
            if gap > -OUTLIER * error or gap > -noise.fault / 2:
                break
        else:
            odd.add(pair)
    return odd


def is_healthy(name: str, weighing: Weighing, missed: float) -> bool:
    """Whether the data speak against the node being slow strongly enough that a slow one is cleared in at most about
    `missed` of fleets.

    Either by the ratio of likelihoods (Wald's bound, over all looks; with few degrees of freedom Student's), or, with
    little doubt left, because a slow node's shift would be this high at one look in a tenth of that.
    """
    doubt, noise = weighing.doubts.get(name, 0.0), weighing.noise
    if doubt > LITTLE_DOUBT:
        return False
    if noise.freedom / 2 * math.log1p(-2 * doubt / noise.freedom) >= -math.log(missed):
        return True
    return looks_healthy(weighing.shifts[name], noise, missed / 10)
