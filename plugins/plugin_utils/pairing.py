# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who is measured with whom: disjoint pairs in rounds, within racks and across them, and how a round becomes
launches. Pure.
"""

from __future__ import annotations

import dataclasses
import typing as t

SMALLEST_BLOCK = 4
"""With fewer nodes in a rack there are no two pairs to compare, so the rack cannot be told from its nodes."""

REST = ""
"""The block of all nodes whose rack is unknown or too small; no rack is named so."""

Pair = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Node:
    """What the inventory says of one node, as far as pairing needs it.

    locality: the rack, leaf switch or rail that the node hangs on, "" where the inventory does not say.
    ranks: processes that nccl-tests runs on the node (usually its GPUs). hcas: HCA per rail, in rail order, "" where
    a rail is missing.
    """

    name: str
    locality: str = ""
    ranks: int = 1
    hcas: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Launch:
    """One start of nccl-tests: disjoint groups of nodes that are measured at the same time.

    Nodes of one group stand side by side in the host file, in the order given: that is what NCCL_TESTS_SPLIT's DIV
    counts on.
    size: message bytes; timeout_s: after that long the launch counts as hung. rail: the one rail in use, or None for
    all.
    """

    id: str
    stage: str
    round: int
    groups: tuple[tuple[str, ...], ...]
    env: tuple[tuple[str, str], ...] = ()
    size: int = 0
    timeout_s: float = 0.0
    rail: int | None = None
    node_env: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()

    def as_dict(self) -> dict[str, t.Any]:
        """The launch as a task can loop over it: env a mapping, node_env a mapping of node to mapping."""
        return {
            "id": self.id,
            "stage": self.stage,
            "round": self.round,
            "groups": [list(group) for group in self.groups],
            "env": dict(self.env),
            "size": self.size,
            "timeout_s": self.timeout_s,
            "rail": self.rail,
            "node_env": {node: dict(env) for node, env in self.node_env},
        }


def circle_round(names: t.Sequence[str], number: int) -> list[Pair]:
    """Round `number` of the circle method over `names`: n // 2 disjoint pairs; with an odd count one name sits out,
    another each round.

    Over full_rounds(n) rounds each pair comes exactly once; a number beyond that begins again.
    """
    count = len(names) + len(names) % 2
    if len(names) < 2:
        return []
    turn = number % (count - 1)
    seats = [(count - 1, turn)] + [((turn + k) % (count - 1), (turn - k) % (count - 1)) for k in range(1, count // 2)]
    return [(names[min(seat)], names[max(seat)]) for seat in seats if max(seat) < len(names)]


def full_rounds(count: int) -> int:
    """Rounds until each of `count` names has met each other: count - 1, or count where it is odd."""
    return 0 if count < 2 else count - 1 + count % 2


def blocks(nodes: t.Iterable[Node]) -> dict[str, list[str]]:
    """Nodes that are fair to compare with each other: one block a rack (locality), in inventory order.

    Racks of fewer than SMALLEST_BLOCK nodes, and nodes without a rack, share the block REST; if that too is that
    small, it joins the largest rack.
    """
    by_locality: dict[str, list[str]] = {}
    for node in nodes:
        by_locality.setdefault(node.locality, []).append(node.name)
    whole = {name: names for name, names in by_locality.items() if name and len(names) >= SMALLEST_BLOCK}
    rest = [name for locality, names in by_locality.items() if locality not in whole for name in names]
    if not rest:
        return whole
    if whole and len(rest) < SMALLEST_BLOCK:
        largest = max(whole, key=lambda name: len(whole[name]))
        return {**whole, largest: whole[largest] + rest}
    return {**whole, REST: rest}


def local_round(members: t.Mapping[str, t.Sequence[str]], number: int) -> list[Pair]:
    """Round `number` within every block at once. A block with fewer rounds than that begins again, so that all go on
    being measured.
    """
    return [pair for names in members.values() for pair in circle_round(names, number)]


def across_round(members: t.Mapping[str, t.Sequence[str]], number: int) -> dict[Pair, list[Pair]]:
    """Round `number` between blocks: {(block, block): pairs of a node of the one with a node of the other}, blocks by
    the circle method.

    What is slow here and fast within both blocks is the path between them.
    """
    names = [block for block, nodes in members.items() if nodes]
    return {(one, two): list(zip(members[one], members[two], strict=False)) for one, two in circle_round(names, number)}


def least_met(
    left: t.Sequence[str], right: t.Sequence[str], met: t.Mapping[Pair, int], most: int | None = None
) -> list[Pair]:
    """Pair each of `left`, in order, with the one of `right` it has met least (the first of equals); nobody twice.

    left and right may share names: then a name is used once, on whichever side comes first. At most `most` pairs.
    """
    free = dict.fromkeys(right)
    taken: set[str] = set()
    pairs: list[Pair] = []
    for name in left:
        if most is not None and len(pairs) >= most:
            break
        if name in taken:
            continue
        free.pop(name, None)
        if not free:
            continue
        strangers = (other for other in free if ordered(name, other) not in met)
        partner = next(strangers, "") or min(free, key=lambda other, one=name: met[ordered(one, other)])  # type: ignore[misc]
        del free[partner]
        taken.update((name, partner))
        pairs.append((name, partner))
    return pairs


def ordered(one: str, two: str) -> Pair:
    """The pair by name, whichever way it was launched."""
    return (one, two) if one <= two else (two, one)


def by_ranks(groups: t.Iterable[t.Sequence[str]], nodes: t.Mapping[str, Node]) -> dict[int, list[tuple[str, ...]]]:
    """Groups by their number of ranks: only groups of equal size can share a launch split by DIV."""
    sized: dict[int, list[tuple[str, ...]]] = {}
    for group in groups:
        sized.setdefault(sum(nodes[name].ranks for name in group), []).append(tuple(group))
    return sized


def split_env(ranks: int) -> dict[str, str]:
    """The environment that makes one launch run every `ranks` neighbouring ranks as a communicator of its own
    (nccl-tests >= 2.14.0, MPI build).

    nccl-tests colours a process by its MPI rank divided by the number (src/common.cu).
    """
    return {"NCCL_TESTS_SPLIT": f"DIV{ranks}"}


def portions(items: t.Sequence[t.Any], parts: int) -> list[list[t.Any]]:
    """`items` in order, in at most `parts` portions whose sizes differ by at most one; no portion is empty."""
    parts = min(parts, len(items))
    edges = [len(items) * k // parts for k in range(parts + 1)] if parts else []
    return [list(items[start:end]) for start, end in zip(edges, edges[1:], strict=False)]
