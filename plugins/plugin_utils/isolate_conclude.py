# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What isolate concludes of nodes and links after each step. Pure."""

from __future__ import annotations

import dataclasses
import math
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import accuse, pair_statistics, slow_nodes
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.isolate_levels import alone_shifts, low_alone
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.isolate_stages import ALONE_RUNS, STAGES
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.isolate_state import State

KNOWN_GOOD = 0.01
"""How often a slow node may pass for a known-good partner: an accusation wants two, so their errors multiply."""

SMALL_FLEET = 10
"""How many times likelier a slow node may be missed where a small fleet's noise stays uncertain: else it takes too long."""


def conclude(state: State) -> State:
    """Draw what can be drawn from the rows so far: called after each step."""
    if state.stage == "alone" and (state.step >= ALONE_RUNS or not STAGES["alone"](state)):
        return _judge_alone(state)
    if state.stage == "pairs" and state.step >= state.settings.rounds:
        return _judge_pairs(state, list(state.members))
    if state.stage == "retest":
        where = state.block_of
        touched = {where[name] for name, status in state.status.items() if status == "suspect"}
        touched |= {where[pair[0]] for pair, status in state.links.items() if status == "open"}
        return _judge_pairs(state, [block for block in state.members if block in touched])
    return state


def _judge_alone(state: State) -> State:
    """Name the nodes that were low in each of ALONE_RUNS runs by themselves."""
    shifts, low = alone_shifts(state), low_alone(state)
    bars = state.settings.bars
    healthy = [shift for name, shift in shifts.items() if not low[name]]
    fleet = accuse.Fleet(len(shifts), sum(s.tries for s in healthy), sum(s.failed for s in healthy))
    accused = dict(state.accused)
    for name, shift in shifts.items():
        if not low[name] or shift.tries < ALONE_RUNS:
            continue
        if shift.failed == shift.tries:
            false = accuse.chance_of_failures(shift.failed, shift.tries, fleet, bars)
            accused[name] = accuse.Accusation("fails alone", shift, false, ())
        elif not shift.failed:
            false = min(1.0, len(shifts) * pair_statistics.tail(-shift.log_ratio / shift.error, math.inf))
            if false <= bars.false_accusation:
                accused[name] = accuse.Accusation("slow alone", shift, false, ())
    return dataclasses.replace(state, accused=accused)


def _judge_pairs(state: State, blocks: t.Sequence[str]) -> State:
    bars = state.settings.bars
    noise = state.noise
    if noise is None or not noise.settled:
        noise = pair_statistics.estimate_noise(list(state.runs.values()), bars)
    missed = bars.missed_fault * (1 if noise.settled else SMALL_FLEET)
    totals = {**state.totals, **{block: pair_statistics.pair_totals(state.runs.get(block, ())) for block in blocks}}
    doubted = {name for name in state.nodes if state.status.get(name, "suspect") == "suspect"}
    weighings = {
        **state.weighings,
        **{block: slow_nodes.weigh(totals[block], _noise_of(state, block, noise), doubted) for block in blocks},
    }
    state = dataclasses.replace(state, noise=noise, totals=totals, weighings=weighings)
    status = dict(state.status)
    partners: set[str] = set()
    for block in blocks:
        for name in state.alive(block):
            if status.get(name, "suspect") == "suspect":
                status[name] = "good" if slow_nodes.is_healthy(name, weighings[block], missed) else "suspect"
            if status[name] == "good" or slow_nodes.is_healthy(name, weighings[block], KNOWN_GOOD):
                partners.add(name)
    fleet = accuse.fleet_of(len(state.nodes), ((totals[block], weighings[block]) for block in state.members))
    accused = dict(state.accused)
    if state.stage == "retest":
        for block in blocks:
            for name in state.alive(block):
                if status[name] == "suspect" and name in weighings[block].shifts:
                    verdict = accuse.accuse(name, weighings[block], partners, fleet, bars)
                    if verdict is not None:
                        accused[name] = verdict
                        status[name] = "bad"
    return _judge_links(dataclasses.replace(state, status=status, accused=accused), blocks, fleet)


def _noise_of(state: State, block: str, noise: pair_statistics.Noise) -> pair_statistics.Noise:
    """The noise within one block. Where small racks had to be pooled, they may differ as racks do, and few nodes
    cannot show by how much.
    """
    settings = state.settings
    racks = {state.nodes[name].locality for name in state.members[block]}
    pooled = settings.rack_spread / math.sqrt(3) if len(racks) > 1 else 0.0
    return pair_statistics.with_fault(
        noise, len(state.nodes), settings.rounds + settings.retests, settings.bars, pooled
    )


def _judge_links(state: State, blocks: t.Sequence[str], fleet: accuse.Fleet) -> State:
    """Open, clear or accuse the links that stand out against both of their nodes."""
    bars = state.settings.bars
    links, accused = dict(state.links), dict(state.accused_links)
    measured = accuse.Fleet(sum(map(len, state.totals.values())), fleet.tries, fleet.failed)
    for block in blocks:
        weighing = state.weighings[block]
        for pair in weighing.links:
            links.setdefault(pair, "open")
        for pair in [pair for pair in state.totals[block] if links.get(pair) == "open"]:
            ends = {state.status.get(name) for name in pair}
            found = accuse.accuse_link(state.totals[block][pair], weighing, measured, bars)
            if "bad" in ends or found == "good":
                links[pair] = "good"
            elif ends == {"good"} and isinstance(found, accuse.Accusation):
                links[pair] = "bad"
                accused[pair] = found
    return dataclasses.replace(state, links=links, accused_links=accused)
