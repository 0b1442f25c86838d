# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What each stage of isolate runs next, as launches of disjoint groups. Pure.

``alone`` (each node by itself), ``pairs`` (rounds within each rack), ``retest`` (suspects with known-good partners
until sure), ``across`` (between racks), ``rails`` (one HCA at a time), ``nvlink`` and ``nic`` (the guilty by
themselves, with and without NVLink).
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import pairing
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.isolate_levels import (
    below_expectation,
    low_alone,
    slow_paths,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.isolate_state import Group, State
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.pairing import Launch, Pair

ALONE_RUNS = 3
ACROSS_ROUNDS = 3
CONTROLS = 8
EXHAUSTED = 1.1
SMALL_FLEET_RETESTS = 8


def _launches(
    state: State,
    groups: t.Sequence[Group],
    env: t.Mapping[str, str] | None = None,
    rail: int | None = None,
    node_env: t.Mapping[str, t.Mapping[str, str]] | None = None,
) -> list[Launch]:
    """Make launches of disjoint groups: nodes that have failed before get their own, so that they spoil nobody's run."""
    settings = state.settings
    risky = [group for group in groups if any(n in state.failing and state.status.get(n) != "good" for n in group)]
    together: list[tuple[int, list[Group]]] = [(0, [group]) for group in risky]
    for ranks, sized in pairing.by_ranks([group for group in groups if group not in risky], state.nodes).items():
        together += [(ranks, sized)] if settings.split else [(ranks, [group]) for group in sized]
    base = {"NCCL_ALGO": "Ring", **(env or {})}
    return [
        Launch(
            id=f"{state.stage}-{state.step + 1}" + (f"-{number}" if len(together) > 1 else ""),
            stage=state.stage,
            round=state.step,
            groups=tuple(sized),
            env=tuple(sorted({**base, **(pairing.split_env(ranks) if len(sized) > 1 else {})}.items())),
            size=settings.size,
            timeout_s=state.timeout_s,
            rail=rail,
            node_env=tuple((node, tuple(sorted(own.items()))) for node, own in sorted((node_env or {}).items())),
        )
        for number, (ranks, sized) in enumerate(together, 1)
    ]


def _alone(state: State) -> list[Launch]:
    if not state.settings.alone or state.step >= ALONE_RUNS:
        return []
    names = [name for name, node in state.nodes.items() if node.ranks > 1 and name not in state.gone]
    if state.step:
        low = [name for name in names if low_alone(state).get(name)]
        names = low + [name for name in names if name not in low][: len(low) + 1] if low else []
    return _launches(state, [(name,) for name in names])


def _pairs(state: State) -> list[Launch]:
    if state.step >= state.settings.rounds:
        return []
    return _launches(state, pairing.local_round({block: state.alive(block) for block in state.members}, state.step))


def _retest(state: State) -> list[Launch]:
    if state.step >= state.settings.retests or _proved_enough(state):
        return []
    groups: list[Pair] = []
    for block in state.members:
        groups += _retest_block(state, block)
    return _launches(state, groups)


def _proved_enough(state: State) -> bool:
    """Whether a small fleet has been measured often enough, and nobody left in doubt looks slow. Its noise is known too
    badly for health to be proved as in a large one, however long it runs.
    """
    if state.noise is None or state.noise.settled or state.step < SMALL_FLEET_RETESTS or "open" in state.links.values():
        return False
    return not any(
        state.status.get(name) == "suspect" and shift.log_ratio <= -weighing.noise.fault / 3
        for weighing in state.weighings.values()
        for name, shift in weighing.shifts.items()
    )


def _retest_block(state: State, block: str) -> list[Pair]:
    """Suspects with known-good partners they have met least, open links, and pairs of other good nodes to compare
    with.
    """
    alive = state.alive(block)
    if block not in state.weighings or state.weighings[block].level is None:  # where every run failed, more would too
        return []
    shifts = state.weighings[block].shifts
    suspects = [name for name in alive if state.status.get(name) == "suspect" and not _exhausted(state, block, name)]
    links = [pair for pair, status in state.links.items() if status == "open" and set(pair) <= set(alive)]
    if len(alive) < 3 or not (suspects or links):
        return []
    suspects.sort(key=lambda name: shifts[name].log_ratio if name in shifts else 0.0)
    good = [name for name in alive if state.status.get(name) == "good"]
    if len(good) < max(2, len(suspects)):
        return pairing.circle_round(
            [name for name in alive if state.status.get(name) != "bad"], state.settings.rounds + state.step
        )
    met = {pair: total.tries for pair, total in state.totals.get(block, {}).items()}
    if (
        len(good) - len(suspects) < 2 and state.step % 2
    ):  # no good pair is left beside the suspects: good pairs take turns with them
        return pairing.least_met(good, good, met)
    pairs = pairing.least_met(suspects, good, met)
    busy = {name for pair in pairs for name in pair}
    for link in links:
        if not busy.intersection(link):
            pairs.append(link)
            busy.update(link)
    idle = [name for name in suspects if name not in busy]
    pairs += pairing.least_met(idle, idle, met)
    idle = [name for name in good if name not in busy]
    few = len(suspects) // 2 or 1
    return pairs + pairing.least_met(idle, idle, met, max(CONTROLS, len(suspects)) if state.settings.split else few)


def _exhausted(state: State, block: str, name: str) -> bool:
    """Whether more runs would tell nothing more: how much healthy nodes differ is all that is left of the error."""
    weighing = state.weighings[block]
    return name in weighing.shifts and weighing.shifts[name].error < EXHAUSTED * weighing.noise.spread


def _across(state: State) -> list[Launch]:
    """One round between racks; two more where some path between racks is slow, to see with whom."""
    if not state.settings.across or len(state.members) < 2 or state.step >= ACROSS_ROUNDS:
        return []
    if state.step and not slow_paths(state):
        return []
    good = {block: [name for name in state.alive(block) if state.status.get(name) == "good"] for block in state.members}
    return _launches(state, [p for pairs in pairing.across_round(good, state.step).values() for p in pairs])


def _company(state: State) -> tuple[list[Group], list[Group]]:
    """(guilty nodes with a good partner each, pairs of good nodes of their racks to compare with), all disjoint."""
    good = {block: [n for n in state.alive(block) if state.status.get(n) == "good"] for block in state.members}
    where = state.block_of
    guilty = [name for name in state.accused if name not in state.gone and state.accused[name].kind.startswith("slow")]
    pairs: list[Group] = []
    for name in guilty:
        pool = good[where[name]] or max(good.values(), key=len, default=[])
        if pool:
            pairs.append((name, pool.pop()))
    blocks = {where[name] for name in guilty} or set(good)
    controls = [(names[0], names[1]) for block, names in good.items() if block in blocks and len(names) > 1]
    return pairs, list(controls[:CONTROLS])


def _rails(state: State) -> list[Launch]:
    """One rail after the other, rail_runs times, for the guilty and for good pairs beside them."""
    pairs, controls = _company(state)
    wanted = state.settings.rails == "always" or (
        state.settings.rails == "auto" and (bool(pairs) or below_expectation(state))
    )
    count = max(len(node.hcas) for node in state.nodes.values())
    if not wanted or count < 2 or state.step >= count * state.settings.rail_runs:
        return []
    rail = state.step % count
    named = {
        name: state.nodes[name].hcas[rail]
        for group in pairs + controls
        for name in group
        if len(state.nodes[name].hcas) > rail and state.nodes[name].hcas[rail]
    }
    groups = [group for group in pairs + controls if all(name in named for name in group)]
    env = {name: {"NCCL_IB_HCA": f"={hca}"} for name, hca in named.items()}
    if len(set(named.values())) == 1:
        return _launches(state, groups, next(iter(env.values())), rail)
    return _launches(state, groups, None, rail, env)


def _inside(state: State, env: t.Mapping[str, str]) -> list[Launch]:
    pairs, controls = _company(state)
    guilty = [pair[0] for pair in pairs if state.nodes[pair[0]].ranks > 1]
    if not guilty or state.settings.rails == "never" or state.step >= state.settings.rail_runs:
        return []
    beside = [group[0] for group in controls if state.nodes[group[0]].ranks > 1]
    return _launches(state, [(name,) for name in guilty + beside], env)


def _nvlink(state: State) -> list[Launch]:
    return _inside(state, {})


def _nic(state: State) -> list[Launch]:
    return _inside(state, {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"})


STAGES: dict[str, t.Callable[[State], list[Launch]]] = {
    "alone": _alone,
    "pairs": _pairs,
    "retest": _retest,
    "across": _across,
    "rails": _rails,
    "nvlink": _nvlink,
    "nic": _nic,
}
