# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What an isolate state amounts to: the guilty with their evidence, and what could not be told. Pure."""

from __future__ import annotations

import math
import statistics
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import isolate_levels, pair_statistics, pairing
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.isolate_state import DONE, Row, State

SURE = 3.0
MOST_NOTES = 10


def verdict(state: State) -> dict[str, t.Any]:
    """Everything a report needs, as JSON: ratios to the median of a node's peers, speeds in GB/s, probabilities as
    numbers.

    accused, links, racks, uplinks, paths, rails: lists, worst first, each with ratio, runs and, where it was tested
    for, false_accusation (how often a fleet without that fault would see it named). undecided: nodes that look bad
    and could not be convicted. untold: groups too small to say who it is.
    unmeasured, vanished: nodes. cleared: how many were. good: up to two of those, to try a guilty one
    with. resolution: the smallest slowdown (share) that could be named here.
    """
    guilty = set(state.accused)
    weighed = {block: w for block, w in state.weighings.items() if w.shifts}
    here = [name for name in state.nodes if name not in state.gone]
    met = {name for row in state.rows for name in row.group if row.stage != "alone" or state.nodes[name].ranks > 1}
    undecided = _undecided(state)
    untold = _untold(state)
    level = isolate_levels.fleet_level(state)
    doubtful = {*guilty, *(entry["node"] for entry in undecided), *(name for group in untold for name in group)}
    return {
        "complete": state.stage == DONE,
        "nodes": len(state.nodes),
        "accused": sorted((_accused(state, name) for name in state.accused), key=lambda entry: float(entry["ratio"])),
        "links": [_link(state, pair) for pair in state.accused_links],
        "racks": _racks(state),
        **dict(zip(("uplinks", "paths"), _across(state), strict=True)),
        "rails": _slow_rails(state),
        "fleet": {
            "busbw": level,
            "expectation": state.settings.expectation,
            "below": isolate_levels.below_expectation(state),
        },
        "all_failed": len(here) > 2 and bool(state.runs) and all(_all_failed(state, block) for block in state.runs),
        "undecided": undecided,
        "untold": untold,
        "unjudged": _unjudged(state),
        "vanished": sorted(state.gone),
        "unmeasured": [name for name in here if name not in met],
        "good": [name for name in here if name in met and name not in doubtful][:2],
        "cleared": len(set(here) & met) - len(guilty - state.gone) - len(undecided) - sum(map(len, untold)),
        "launches": state.launches,
        "launches_by_stage": dict(state.by_stage),
        "seconds": state.seconds,
        "noise": state.noise.sigma if state.noise else None,
        "spread": max((w.noise.spread for w in weighed.values()), default=None),
        "resolution": max((-math.expm1(-w.noise.fault) for w in weighed.values()), default=None),
        "false_accusation": state.settings.false_accusation,
        "missed_fault": state.settings.missed_fault,
        "launches_of_all_pairs": len(state.nodes) * (len(state.nodes) - 1) // 2,
        "launches_of_the_full_circle": pairing.full_rounds(len(state.nodes)),
    }


def _ratio(shift: pair_statistics.Shift) -> dict[str, t.Any]:
    return {"ratio": round(shift.ratio, 4), "runs": shift.tries, "failed": shift.failed}


def _accused(state: State, name: str) -> dict[str, t.Any]:
    found = state.accused[name]
    block = state.block_of[name]
    level = state.weighings[block].level if block in state.weighings else None
    notes = dict.fromkeys(note for row in state.rows if name in row.group for note in row.notes)
    return {
        "node": name,
        "kind": found.kind,
        "rack": state.nodes[name].locality,
        "subjects": _subjects(state, name),
        **_ratio(found.shift),
        "busbw": math.exp(level + found.shift.log_ratio) if level is not None and found.partners else None,
        "peers_busbw": math.exp(level) if level is not None else None,
        "false_accusation": found.false,
        "partners": [{"node": partner, **_ratio(shift)} for partner, shift in found.partners],
        "notes": list(notes)[:MOST_NOTES],
    }


def _link(state: State, pair: pairing.Pair) -> dict[str, t.Any]:
    found = state.accused_links[pair]
    return {"nodes": list(pair), "kind": found.kind, **_ratio(found.shift), "false_accusation": found.false}


def _mean_log(rows: t.Sequence[Row], lost: float) -> float:
    return statistics.fmean(lost if row.busbw is None else math.log(row.busbw) for row in rows)


def _beside(state: State, stage: str, rail: int | None) -> tuple[dict[str, list[Row]], list[Row]]:
    """(rows of each guilty node, rows of the good ones beside it) of one of the last stages."""
    own: dict[str, list[Row]] = {}
    controls: list[Row] = []
    for row in state.rows:
        if row.stage == stage and row.rail == rail:
            guilty = next((name for name in row.group if name in state.accused), None)
            if guilty is None:
                controls.append(row)
            else:
                own.setdefault(guilty, []).append(row)
    return own, controls


def _rails_of(state: State) -> range:
    return range(max(len(node.hcas) for node in state.nodes.values()))


def _subjects(state: State, name: str) -> list[dict[str, t.Any]]:
    """What inside the guilty node is slow, as far as the last stages tell: HCAs, NVLink, or the node through its own
    NICs.
    """
    found = []
    places = [("rails", rail, state.nodes[name].hcas[rail]) for rail in range(len(state.nodes[name].hcas))]
    places += [("nvlink", None, "NVLink"), ("nic", None, "GPU to NIC")]  # type: ignore[list-item]
    for stage, rail, subject in places:
        own, controls = _beside(state, stage, rail)
        if not own.get(name) or not controls or state.noise is None:
            continue
        speeds = [math.log(row.busbw) for row in controls if row.busbw is not None]
        if not speeds:
            continue
        middle = statistics.fmean(speeds)
        lost = middle + math.log(pair_statistics.FAILED_RATIO)
        shift = _mean_log(own[name], lost) - middle
        error = state.noise.sigma * math.sqrt(1 / len(own[name]) + 1 / len(speeds))
        half_fault = pair_statistics.log_fault(state.settings.bars) / 2
        found.append(
            {
                "subject": subject,
                "ratio": round(math.exp(shift), 4),
                "runs": len(own[name]),
                "slow": shift <= -half_fault and shift <= -SURE * error,
            }
        )
    return found


def _slow_rails(state: State) -> list[dict[str, t.Any]]:
    """Rails on which good pairs are slower than on the other rails by more than the tolerance."""
    levels: dict[int, float] = {}
    rows: dict[int, list[Row]] = {}
    for rail in _rails_of(state):
        _own, controls = _beside(state, "rails", rail)
        if controls:
            rows[rail] = controls
    speeds = [math.log(row.busbw) for controls in rows.values() for row in controls if row.busbw is not None]
    if len(rows) < 2 or not speeds:
        return []
    lost = statistics.median(speeds) + math.log(pair_statistics.FAILED_RATIO)
    levels = {rail: _mean_log(controls, lost) for rail, controls in rows.items()}
    return [
        {"rail": rail, "ratio": round(math.exp(shift), 4), "runs": len(rows[rail])}
        for rail, shift in _low(levels, state.settings.tolerance).items()
    ]


def _low(levels: t.Mapping[t.Any, float], tolerance: float) -> dict[t.Any, float]:
    """Those that are below the median of the others by more than the tolerance, with the logarithm of that ratio,
    worst first.
    """
    if len(levels) < 2:
        return {}
    shifts = {key: level - statistics.median(v for k, v in levels.items() if k != key) for key, level in levels.items()}
    low = {key: shift for key, shift in shifts.items() if shift <= math.log1p(-tolerance)}
    return dict(sorted(low.items(), key=lambda entry: entry[1]))


def _racks(state: State) -> list[dict[str, t.Any]]:
    """Racks whose pairs are slower than other racks' by more than the tolerance, or all fail, whoever they are
    between.
    """
    levels = {block: weighing.level for block, weighing in state.weighings.items() if weighing.level is not None}
    if not levels:
        return []
    lost = statistics.median(levels.values()) + math.log(pair_statistics.FAILED_RATIO)
    dead = {block for block, runs in state.runs.items() if runs and all(speed is None for _one, _two, speed in runs)}
    known = {
        block: lost if block in dead else level for block, level in {**dict.fromkeys(dead, lost), **levels}.items()
    }
    return [
        {"rack": block, "ratio": round(math.exp(shift), 4), "runs": len(state.runs[block]), "failed": block in dead}
        for block, shift in _low(known, state.settings.tolerance).items()
        if block != pairing.REST
    ]


def _across(state: State) -> tuple[list[dict[str, t.Any]], list[dict[str, t.Any]]]:
    """(racks whose every path to others is slow, single slow paths between racks), less what a slow rack explains."""
    slow = isolate_levels.slow_paths(state)
    levels = isolate_levels.path_levels(state)
    explained = {entry["rack"] for entry in _racks(state)}
    of: dict[str, list[pairing.Pair]] = {}
    for cell in levels:
        for block in cell:
            of.setdefault(block, []).append(cell)
    uplinks = {
        block
        for block, cells in of.items()
        if block not in explained
        and len(cells) > 1
        and all(cell in slow for cell in cells)
        and any(other not in slow for cell in cells for end in cell if end != block for other in of[end])
    }
    racks = [
        {
            "rack": block,
            "ratio": round(math.exp(statistics.fmean(slow[cell] for cell in of[block])), 4),
            "paths": len(of[block]),
        }
        for block in sorted(uplinks)
    ]
    paths = [
        {"racks": list(cell), "ratio": round(math.exp(shift), 4)}
        for cell, shift in sorted(slow.items(), key=lambda entry: entry[1])
        if not (uplinks | explained).intersection(cell)
    ]
    return racks, paths


def _undecided(state: State) -> list[dict[str, t.Any]]:
    """Nodes that still look bad and could not be convicted within the launches allowed."""
    entries = []
    for block, weighing in state.weighings.items():
        alive = state.alive(block)
        if len(alive) < 3 or _all_failed(state, block):
            continue
        for name in alive:
            shift = weighing.shifts.get(name)
            if shift is None or state.status.get(name) != "suspect":
                continue
            if shift.log_ratio <= -weighing.noise.fault / 2 or shift.failed * 2 > shift.tries:
                entries.append({"node": name, **_ratio(shift)})
    return sorted(entries, key=lambda entry: float(entry["ratio"]))


def _all_failed(state: State, block: str) -> bool:
    runs = state.runs.get(block, ())
    return bool(runs) and all(speed is None for _one, _two, speed in runs)


def _untold(state: State) -> list[list[str]]:
    """Groups that are bad, or failed, as a whole and too small to say who in them it is."""
    groups = []
    for block in state.members:
        alive = state.alive(block)
        bad = _all_failed(state, block) or isolate_levels.below_expectation(state)
        if len(alive) == 2 and bad and state.runs.get(block):
            groups.append(alive)
    return groups


def _unjudged(state: State) -> list[str]:
    """The two nodes of a fleet of two whose speed there is nothing to compare with."""
    here = [name for name in state.nodes if name not in state.gone]
    measured = any(row.busbw is not None for row in state.rows if row.stage == "pairs")
    return here if len(here) == 2 and measured and state.settings.expectation is None else []
