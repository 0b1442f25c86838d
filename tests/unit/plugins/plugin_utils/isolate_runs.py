# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs isolate on a simulated fleet to its end, checking on the way what must hold of every plan."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import isolate, isolate_verdict, judge_isolation
from fleet_simulator import Fleet

MOST_STEPS = 120


def run(
    fleet: Fleet, settings: t.Mapping[str, t.Any] | None = None, racks: bool = True, **attributes: t.Any
) -> isolate.State:
    """Isolate on `fleet`, its racks in the inventory or not, every node with `attributes`."""
    nodes = {
        name: {**attributes, **({"rack": fleet.rack[name]} if racks and name in fleet.rack else {})}
        for name in fleet.speed
    }
    state = isolate.begin(nodes, settings)
    for _step in range(MOST_STEPS):
        launches = isolate.plan(state)
        if not launches:
            return state
        busy = [name for launch in launches for group in launch.groups for name in group]
        assert len(busy) == len(set(busy)), "launches side by side share a node"
        assert not set(busy) & state.gone, "a node that vanished is launched again"
        assert len({launch.id for launch in launches}) == len(launches)
        assert all(launch.groups and launch.timeout_s > 0 for launch in launches)
        rows, vanished = fleet.run(launches)
        state = isolate.observe(state, rows, vanished)
    raise AssertionError(f"isolate has not ended after {MOST_STEPS} steps")


def said(state: isolate.State) -> set[tuple[str, str, str]]:
    """(id, node, subject) of every finding."""
    return {(f.id, f.node, f.subject) for f in judge_isolation.findings(isolate_verdict.verdict(state))}
