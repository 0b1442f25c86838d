# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What it takes to accuse a node, and how often such an accusation would be wrong. Pure."""

from __future__ import annotations

import dataclasses
import math
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.pair_statistics import (
    Bars,
    PairTotal,
    Shift,
    chance,
    looks_healthy,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.pairing import Pair
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.slow_nodes import Weighing

CONTRADICTION = 4.0
LINK_RUNS = 3


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
    fleet: Fleet,
    bars: Bars,
) -> Accusation | None:
    """Judge one suspect: bad with at least two known-good partners, contradicted by none, and surer than the bars
    ask; else None.

    Bad means failing with them, or slow against the pairs of its rack and, where `bars.least` is set, slower than
    that too.
    """
    shift, noise = weighing.shifts[name], weighing.noise
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
    if shift.log_ratio > -noise.fault / 2:
        return None
    bad = [partner for partner, seen in partners.items() if seen.log_ratio <= -noise.fault / 3]
    if len(bad) < 2 or any(
        seen.log_ratio > shift.log_ratio + CONTRADICTION * math.hypot(seen.error, shift.error)
        for seen in partners.values()
    ):
        return None
    if bars.least is not None and math.exp(weighing.level + shift.log_ratio) >= bars.least:
        return None
    false = chance(shift, noise, fleet.nodes, bars)
    return Accusation("slow", shift, false, tuple(sorted(partners.items()))) if false <= bars.false_accusation else None


def accuse_link(
    total: PairTotal, weighing: Weighing, measured: Fleet, bars: Bars
) -> Accusation | t.Literal["good", "open"]:
    """Judge a pair whose nodes are good, against the level of its rack.

    Its lowest run drew the attention and may have been a mishap, so only the others count, LINK_RUNS of them at least.
    measured: as many pairs as could be accused, and how often healthy ones failed.
    """
    level, noise = weighing.level or 0.0, weighing.noise
    if total.failed == total.tries:
        shift = Shift(total.lowest - level, noise.sigma, total.runs, total.tries, total.failed)
        false = chance_of_failures(total.failed, total.tries, measured, bars)
        return Accusation("fails", shift, false, ()) if false <= bars.false_accusation else "open"
    counted, runs = (total.total, total.runs) if total.failed else (total.total - total.lowest, total.runs - 1)
    if not runs:
        return "open"
    shift = Shift(counted / runs - level, noise.sigma / math.sqrt(runs), total.runs, total.tries, total.failed)
    if looks_healthy(shift, noise, bars.missed_fault):
        return "good"
    false = chance(shift, noise, measured.nodes, bars)
    sure = false <= bars.false_accusation and shift.log_ratio <= -noise.fault / 2
    return Accusation("slow", shift, false, ()) if sure and runs >= LINK_RUNS else "open"
