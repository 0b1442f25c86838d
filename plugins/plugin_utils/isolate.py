# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which node, link, rack or rail is at fault, in the fewest launches: a state machine of pure functions.

``state = begin(nodes, settings)``, then until plan(state) is empty: run what it lists (side by side: nothing in it
overlaps) and ``state = observe(state, measurements, vanished)``. isolate_verdict.verdict(state) says at any time what
is known.
"""

from __future__ import annotations

import dataclasses
import math
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import pairing
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.isolate_conclude import conclude
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.isolate_stages import STAGES
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.isolate_state import (
    DONE,
    Group,
    Row,
    Settings,
    State,
    demand,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.pairing import Launch, Node


def begin(nodes: t.Mapping[str, t.Mapping[str, t.Any]], settings: t.Mapping[str, t.Any] | None = None) -> State:
    """A fresh state. nodes: {name: {<locality>: rack, ranks: processes, hcas: [HCA of rail 0, ...]}}, all keys
    optional, in inventory order.

    Raises ValueError, one sentence, for settings or nodes that make no sense.
    """
    given = dict(settings or {})
    known = {field.name for field in dataclasses.fields(Settings)}
    strange = sorted(set(given) - known)
    if strange:
        raise ValueError(f"isolate: {strange[0]} is not a setting; the settings are {', '.join(sorted(known))}")
    chosen = Settings(**given)
    if not nodes:
        raise ValueError("isolate: no node was given, at least one is needed")
    made = {name: _node(name, data, chosen.locality) for name, data in nodes.items()}
    return _advance(State(made, chosen, pairing.blocks(made.values())))


def plan(state: State) -> list[Launch]:
    """The next launches, which share no node and so can run side by side; [] when the verdict is final."""
    if state.open_launches:
        return [launch for launch in (_still_there(state, old) for old in state.open_launches) if launch.groups]
    return STAGES[state.stage](state) if state.stage != DONE else []


def observe(state: State, measurements: t.Iterable[t.Mapping[str, t.Any]], vanished: t.Iterable[str] = ()) -> State:
    """The state after the planned launches ran.

    measurements: {launch: id, group: [nodes], busbw: GB/s or None where it hung or failed, seconds: wall time of the
    launch, notes: [str]}, a row a group; a group without a row has failed. A launch in which no group has a result is
    run again in smaller parts, side by side, so that what made it hang costs its timeout once a level. vanished:
    nodes that could no longer be reached: what they and their partners of that moment gave counts for nobody. Raises
    ValueError for a row that was not planned.
    """
    planned = {launch.id: launch for launch in plan(state)}
    gone = state.gone | frozenset(vanished)
    for name in gone - set(state.nodes):
        raise ValueError(f"isolate: vanished names {name}, which is not among the nodes")
    found = _sort_rows(planned, measurements)
    rows: list[Row] = []
    again: list[Launch] = []
    wall, slowest = 0.0, state.slowest_s
    for launch in planned.values():
        results = found.get(launch.id, {})
        took = max((seconds for _busbw, seconds, _notes in results.values()), default=0.0)
        wall = max(wall, took)
        present = [group for group in launch.groups if not gone.intersection(group)]
        dead = all(results.get(group, (None,))[0] is None for group in present)
        if dead and len(launch.groups) > 1:
            again += _parts(launch, present, 1 if len(present) < len(launch.groups) else state.settings.fan_out)
            continue
        slowest = slowest if dead else max(slowest, took)
        for group in present:
            busbw, seconds, notes = results.get(group, (None, took, ()))
            rows.append(Row(launch.stage, launch.round, launch.rail, group, busbw, seconds, notes))
    by_stage = dict(state.by_stage)
    for launch in planned.values():
        by_stage[launch.stage] = by_stage.get(launch.stage, 0) + 1
    state = dataclasses.replace(
        state,
        rows=state.rows + tuple(rows),
        runs=_add_runs(state, rows),
        gone=gone,
        failing=state.failing | {name for row in rows if row.busbw is None for name in row.group},
        open_launches=tuple(again),
        launches=state.launches + len(planned),
        by_stage=by_stage,
        seconds=state.seconds + wall,
        slowest_s=slowest,
    )
    if plan(state) and state.open_launches:
        return state
    return _advance(conclude(dataclasses.replace(state, open_launches=(), step=state.step + 1)))


def _node(name: str, data: t.Mapping[str, t.Any], locality: str) -> Node:
    ranks = data.get("ranks", 1)
    demand(isinstance(ranks, int) and ranks > 0, f"isolate: ranks of {name}", ranks, "a whole number above 0")
    where = data.get(locality)
    return Node(name, "" if where is None else str(where), ranks, tuple(str(hca) for hca in data.get("hcas", ())))


def _still_there(state: State, launch: Launch) -> Launch:
    """The launch without what has vanished since it was made, and with the timeout that is known by now."""
    groups = tuple(group for group in launch.groups if not state.gone.intersection(group))
    return dataclasses.replace(launch, groups=groups, timeout_s=state.timeout_s)


def _sort_rows(
    planned: t.Mapping[str, Launch], measurements: t.Iterable[t.Mapping[str, t.Any]]
) -> dict[str, dict[Group, tuple[float | None, float, tuple[str, ...]]]]:
    found: dict[str, dict[Group, tuple[float | None, float, tuple[str, ...]]]] = {}
    for given in measurements:
        launch, group = str(given["launch"]), tuple(given["group"])
        if launch not in planned or group not in planned[launch].groups:
            raise ValueError(f"isolate: a measurement of {'+'.join(group)} in {launch} came, which was not planned")
        speed = given["busbw"]
        usable = isinstance(speed, (int, float)) and math.isfinite(speed) and speed > 0
        result = (float(speed) if usable else None, float(given.get("seconds", 0.0)), tuple(given.get("notes", ())))
        found.setdefault(launch, {})[group] = result
    return found


def _parts(launch: Launch, groups: t.Sequence[Group], parts: int) -> list[Launch]:
    return [
        dataclasses.replace(launch, id=f"{launch.id}.{number}", groups=tuple(part))
        for number, part in enumerate(pairing.portions(groups, parts), 1)
    ]


def _add_runs(state: State, rows: t.Sequence[Row]) -> dict[str, tuple[tuple[str, str, float | None], ...]]:
    where = state.block_of
    added: dict[str, list[tuple[str, str, float | None]]] = {}
    for row in rows:
        if row.stage in ("pairs", "retest"):
            added.setdefault(where[row.group[0]], []).append((row.group[0], row.group[1], row.busbw))
    return {**state.runs, **{block: state.runs.get(block, ()) + tuple(new) for block, new in added.items()}}


def _advance(state: State) -> State:
    """Go on to the first stage that has something to run."""
    order = [*STAGES, DONE]
    while state.stage != DONE and not plan(state):
        state = dataclasses.replace(state, stage=order[order.index(state.stage) + 1], step=0)
    return state
