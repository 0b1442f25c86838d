# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From a matrix of what works between nodes to who is at fault: everybody, a group that is cut off, a node, or a pair. Pure.

A node is accused only by several partners, and only where these do well without it. Where that cannot be told, as between two
nodes alone, the pair is named and neither end.
"""

from __future__ import annotations

import collections
import dataclasses
import typing as t

#: directed: (who probed, who was probed)
Cell = tuple[str, str]

OUT, IN, BOTH = "out", "in", "both"

#: share of a node's cells that must be bad before it is the node's fault: one partner may be at fault as well
MOSTLY = 0.75

#: partners that have to agree on it
ACCUSERS = 2


@dataclasses.dataclass(frozen=True)
class Accused:
    """A node whose row (OUT), column (IN) or both are bad. partners: those with whom; good: those with whom it works."""

    node: str
    direction: str
    partners: tuple[str, ...]
    good: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """everyone: hardly a node does well with any other; groups: nodes that reach each other and not the rest;
    nodes: those at fault; pairs: what no single node explains, as (one, other, whether both directions are bad)."""

    everyone: bool = False
    groups: tuple[tuple[str, ...], ...] = ()
    nodes: tuple[Accused, ...] = ()
    pairs: tuple[tuple[str, str, bool], ...] = ()


def find_culprits(cells: t.Mapping[Cell, bool]) -> Verdict:
    """cells: {(prober, probed): whether it works}, of what was tested. O(cells) for each node accused."""
    left = {cell for cell, works in cells.items() if not works}
    if not left:
        return Verdict()
    names = sorted({name for cell in cells for name in cell})
    if len(names) > 2 and _is_everyone(cells, names):
        return Verdict(everyone=True)
    groups = _cut_off(cells, names)
    home = {name: number for number, group in enumerate(groups, start=1) for name in group}
    left = {(one, other) for one, other in left if home.get(one, 0) == home.get(other, 0)}
    accused: list[Accused] = []
    blamed: dict[str, set[str]] = collections.defaultdict(set)
    while left:
        found = _worst(cells, left, names, blamed)
        if found is None:
            break
        accused.append(found)
        blamed[found.node].add(found.direction)
        left = {cell for cell in left if not _explains(found, cell)}
    both = {(one, other) for one, other in left if (other, one) in left}
    pairs = sorted({(min(cell), max(cell)) if cell in both else cell for cell in left})
    return Verdict(False, groups, tuple(accused), tuple((one, other, (one, other) in both) for one, other in pairs))


def _is_everyone(cells: t.Mapping[Cell, bool], names: t.Sequence[str]) -> bool:
    """Whether for most nodes nothing goes out, or nothing comes in."""
    good_out = {one for (one, _unused), works in cells.items() if works}
    good_in = {other for (_unused, other), works in cells.items() if works}
    probers, probed = {one for one, _unused in cells}, {other for _unused, other in cells}
    return len(probers - good_out) * 2 > len(names) or len(probed - good_in) * 2 > len(names)


def _cut_off(cells: t.Mapping[Cell, bool], names: t.Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Groups of at least two nodes that do well among themselves and with no other, but for the largest such group."""
    above = {name: name for name in names}

    def top(name: str) -> str:
        while above[name] != name:
            above[name] = above[above[name]]
            name = above[name]
        return name

    for (one, other), works in cells.items():
        if works:
            above[top(one)] = top(other)
    members: dict[str, list[str]] = collections.defaultdict(list)
    for name in names:
        members[top(name)].append(name)
    large = sorted((group for group in members.values() if len(group) > 1), key=lambda group: (-len(group), group))
    return tuple(tuple(group) for group in large[1:])


def _worst(
    cells: t.Mapping[Cell, bool], left: t.Collection[Cell], names: t.Sequence[str], blamed: t.Mapping[str, set[str]]
) -> Accused | None:
    """The node that explains most of what is left, None where no node has enough accusers."""
    tested: dict[tuple[str, str], list[Cell]] = collections.defaultdict(list)
    for one, other in cells:
        # What a partner that was accused before would spoil anyway says nothing about a node.
        if BOTH not in blamed[other] and IN not in blamed[other]:
            tested[one, OUT].append((one, other))
        if BOTH not in blamed[one] and OUT not in blamed[one]:
            tested[other, IN].append((one, other))
    best: tuple[tuple[int, float, bool], Accused] | None = None
    for name in names:
        for direction in (BOTH, OUT, IN):
            mine = [c for way in (OUT, IN) if direction in (BOTH, way) for c in tested[name, way]]
            bad = [cell for cell in mine if cell in left]
            partners = {one if other == name else other for one, other in bad}
            if len(partners) < ACCUSERS or len(bad) < MOSTLY * len(mine):
                continue
            good = {one if other == name else other for one, other in mine if cells[one, other]}
            accused = Accused(name, direction, tuple(sorted(partners)), tuple(sorted(good)))
            rank = (len(bad), len(bad) / len(mine), direction != BOTH)
            if best is None or rank > best[0]:
                best = (rank, accused)
    return best[1] if best else None


def _explains(accused: Accused, cell: Cell) -> bool:
    one, other = cell
    return (one == accused.node and accused.direction != IN) or (other == accused.node and accused.direction != OUT)
