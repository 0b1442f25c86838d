# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How fast nodes alone, racks, paths between racks and the whole fleet are, from the rows of an isolate state. Pure."""

from __future__ import annotations

import math
import statistics

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import pair_statistics, pairing
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.isolate_state import State
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.pairing import Pair


def alone_shifts(state: State) -> dict[str, pair_statistics.Shift]:
    """Every node by itself against the median of nodes with as many ranks, from the stage `alone`."""
    speeds: dict[str, list[float | None]] = {}
    for row in state.rows:
        if row.stage == "alone":
            speeds.setdefault(row.group[0], []).append(row.busbw)
    shifts: dict[str, pair_statistics.Shift] = {}
    for ranks in {state.nodes[name].ranks for name in speeds}:
        alike = {name: values for name, values in speeds.items() if state.nodes[name].ranks == ranks}
        means = {
            name: statistics.fmean(math.log(value) for value in values if value is not None)
            for name, values in alike.items()
            if any(value is not None for value in values)
        }
        middle = statistics.median(means.values()) if means else 0.0
        off = [abs(mean - middle) for mean in means.values()]
        sigma = max(
            1.4826 * statistics.median(off) if len(off) >= pair_statistics.ENOUGH else 0.0, state.settings.noise
        )
        for name, values in alike.items():
            failed = sum(value is None for value in values)
            good = len(values) - failed
            log_ratio = means[name] - middle if good else math.log(pair_statistics.FAILED_RATIO)
            shifts[name] = pair_statistics.Shift(
                log_ratio, sigma / math.sqrt(good or failed), good, len(values), failed
            )
    return shifts


def low_alone(state: State) -> dict[str, bool]:
    """Which nodes failed or were slow by themselves, by more than chance and half the smallest fault."""
    fault = pair_statistics.log_fault(state.settings.bars)
    return {
        name: shift.failed > 0 or (shift.log_ratio <= -fault / 2 and shift.log_ratio <= -3 * shift.error)
        for name, shift in alone_shifts(state).items()
    }


def path_levels(state: State) -> dict[Pair, float]:
    """{(block, block): logarithm of the median GB/s between them}, with failed pairs as pair_statistics.FAILED_RATIO
    of the median of all.
    """
    where = state.block_of
    rows = [row for row in state.rows if row.stage == "across"]
    speeds = [math.log(row.busbw) for row in rows if row.busbw is not None]
    lost = (statistics.median(speeds) if speeds else 0.0) + math.log(pair_statistics.FAILED_RATIO)
    cells: dict[Pair, list[float]] = {}
    for row in rows:
        cell = pairing.ordered(where[row.group[0]], where[row.group[1]])
        cells.setdefault(cell, []).append(lost if row.busbw is None else math.log(row.busbw))
    return {cell: statistics.median(values) for cell, values in cells.items()}


def slow_paths(state: State) -> dict[Pair, float]:
    """Paths between racks that are slower than the median path by more than the tolerance, with the logarithm of
    their ratio to it.
    """
    levels = path_levels(state)
    if len(levels) < 2:
        return {}
    middle = statistics.median(levels.values())
    slowest = math.log1p(-state.settings.tolerance)
    return {cell: level - middle for cell, level in levels.items() if level - middle <= slowest}


def fleet_level(state: State) -> float | None:
    """Median over racks of the speed of their healthy pairs in GB/s, None where nothing ran."""
    levels = [weighing.level for weighing in state.weighings.values() if weighing.level is not None]
    return math.exp(statistics.median(levels)) if levels else None


def below_expectation(state: State) -> bool:
    """Whether even the healthy pairs miss the expectation by more than the tolerance."""
    level, expectation = fleet_level(state), state.settings.expectation
    return level is not None and expectation is not None and level < expectation * (1 - state.settings.tolerance)
