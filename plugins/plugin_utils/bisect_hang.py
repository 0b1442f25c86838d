# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who makes a run of the whole cluster hang: bisection, as a state machine of pure functions.

Used as isolate is: ``state = begin(nodes)``, then until plan(state) is empty run what it lists, side by side, and
``state = observe(state, measurements, vanished)``; verdict(state) says what is known. A hung set is halved and both
halves run at once, so a level of halving costs one timeout. No set is run twice, none that holds a set known to hang,
none that lies within a set known to pass. Where both halves pass and the whole does not, it is something between
them: halves of the halves are then combined crosswise down to the pair.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import isolate_state
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.pairing import Launch, portions

Names = frozenset[str]
PATIENCE = 5.0


@dataclasses.dataclass(frozen=True)
class State:
    """nodes: those still there, in inventory order. hung and passed: the sets that were run. launches, seconds: what
    it cost so far.

    timeouts: how often the whole of it waited for a hung launch. slowest_s: wall time of the slowest launch that
    passed.
    """

    nodes: tuple[str, ...]
    size: int
    timeout_s: float
    least_timeout_s: float
    hung: tuple[Names, ...] = ()
    passed: tuple[Names, ...] = ()
    gone: Names = frozenset()
    launches: int = 0
    timeouts: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0

    def outcome(self, names: Names) -> bool | None:
        """True if `names` together hang, False if not, None if that is not known yet."""
        if any(names <= good for good in self.passed):
            return False
        if any(bad <= names for bad in self.hung):
            return True
        return None


@dataclasses.dataclass
class _Search:
    """What one look at the state finds: sets to run next, and conclusions."""

    wanted: list[Names] = dataclasses.field(default_factory=list)
    guilty: list[str] = dataclasses.field(default_factory=list)
    links: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    untold: list[Names] = dataclasses.field(default_factory=list)
    unreproduced: list[Names] = dataclasses.field(default_factory=list)
    confirmed: bool = False


def begin(
    nodes: t.Iterable[str], size: int = 1 << 30, timeout_s: float = 300.0, least_timeout_s: float = 30.0
) -> State:
    """A fresh state over the nodes in inventory order (neighbours fall together, so that racks do). size: message
    bytes.

    timeout_s: when a launch counts as hung, until one has passed; then PATIENCE times the slowest that passed,
    least_timeout_s at least. Raises ValueError for fewer than two nodes.
    """
    names = tuple(dict.fromkeys(nodes))
    if len(names) < 2:
        raise ValueError(f"bisect: {len(names)} node was given, a hang between nodes needs at least two")
    return State(names, size, timeout_s, least_timeout_s)


def is_worth_it(said: t.Mapping[str, t.Any]) -> bool:
    """Whether all nodes should run at once after isolate's pairs, whose verdict this is: from three nodes on, and where no pair
    explains already why a job of all of them would hang.
    """
    explained = any(said[key] for key in ("accused", "links", "untold", "all_failed"))
    return not explained and said["nodes"] - len(said["vanished"]) > 2


def begin_after(pairs: isolate_state.State) -> State:
    """A fresh state over the nodes that isolate's pairs have left, with the same size and time limits."""
    left = [name for name in pairs.nodes if name not in pairs.gone]
    return begin(left, pairs.settings.size, pairs.settings.timeout_s, pairs.settings.least_timeout_s)


def plan(state: State) -> list[Launch]:
    """The next launches, each one communicator over its nodes, no node in two of them; [] when nothing more can be
    learnt.
    """
    chosen: list[Names] = []
    for names in _search(state).wanted:
        if not any(names & other for other in chosen):
            chosen.append(names)
    timeout = state.timeout_s
    if state.slowest_s:
        timeout = min(timeout, max(state.least_timeout_s, PATIENCE * state.slowest_s))
    return [
        Launch(
            id=f"hang-{state.launches + number}",
            stage="hang",
            round=state.launches + number,
            groups=(_in_order(state, names),),
            size=state.size,
            timeout_s=timeout,
        )
        for number, names in enumerate(chosen, 1)
    ]


def observe(state: State, measurements: t.Iterable[t.Mapping[str, t.Any]], vanished: t.Iterable[str] = ()) -> State:
    """The state after the planned launches ran: measurements {launch: id, busbw: GB/s or None where it hung or
    failed, seconds}.

    A launch without a row hung. What hung while one of its nodes vanished says nothing. Raises ValueError for a
    launch that was not planned.
    """
    planned = {launch.id: launch for launch in plan(state)}
    gone = frozenset(vanished)
    rows = {str(row["launch"]): row for row in measurements}
    for strange in set(rows) - set(planned):
        raise ValueError(f"bisect: a measurement of {strange} came, which was not planned")
    hung, passed, slowest, wall, waited = list(state.hung), list(state.passed), state.slowest_s, 0.0, 0
    for launch_id, launch in planned.items():
        names, row = frozenset(launch.groups[0]), rows.get(launch_id, {})
        took = float(row.get("seconds", launch.timeout_s))
        wall = max(wall, took)
        if row.get("busbw") is not None:
            passed.append(names)
            slowest = max(slowest, took)
        elif not names & gone:
            hung.append(names)
            waited = 1
    return dataclasses.replace(
        state,
        nodes=tuple(name for name in state.nodes if name not in gone),
        hung=tuple(names for names in hung if not names & gone),
        passed=tuple(names - gone for names in passed),
        gone=state.gone | gone,
        launches=state.launches + len(planned),
        timeouts=state.timeouts + waited,
        seconds=state.seconds + wall,
        slowest_s=slowest,
    )


def verdict(state: State) -> dict[str, t.Any]:
    """What is known, as JSON. hangs: whether the whole cluster does, None before it ran. guilty: nodes that hang with
    a good partner.

    links: pairs of good nodes that hang together. untold: sets that hang and in which nobody could be tested with a
    good node. unreproduced: sets that hang as a whole while every smaller combination passes. confirmed: everybody
    else together passes.
    good: up to two nodes to try a guilty one with.
    """
    found = _search(state)
    return {
        "complete": not plan(state),
        "hangs": state.outcome(frozenset(state.nodes)) if state.nodes else None,
        "guilty": found.guilty,
        "links": [list(pair) for pair in found.links],
        "untold": [list(_in_order(state, names)) for names in found.untold],
        "unreproduced": [list(_in_order(state, names)) for names in found.unreproduced],
        "confirmed": found.confirmed,
        "good": [
            name for name in state.nodes if any(name in names for names in state.passed) and name not in found.guilty
        ][:2],
        "vanished": sorted(state.gone),
        "launches": state.launches,
        "timeouts": state.timeouts,
        "seconds": state.seconds,
    }


def _in_order(state: State, names: Names) -> tuple[str, ...]:
    return tuple(name for name in state.nodes if name in names)


def _search(state: State) -> _Search:
    """Bisect what hangs; then run everybody but the guilty, and bisect that too if it still hangs."""
    found = _Search()
    left = frozenset(state.nodes)
    while len(left) > 1:
        outcome = state.outcome(left)
        if outcome is None:
            found.wanted.append(left)
        if not outcome:
            found.confirmed = outcome is False
            break
        before = len(found.guilty) + len(found.links)
        _dig(state, left, found)
        if found.wanted or found.untold or found.unreproduced or len(found.guilty) + len(found.links) == before:
            break
        left -= {*found.guilty, *(link[0] for link in found.links)}
    found.untold = [names for names in found.untold if not any(names < other for other in found.untold)]
    return found


def _halves(state: State, names: Names) -> list[Names]:
    """Two halves in inventory order; one where there is but one name."""
    return [frozenset(part) for part in portions(_in_order(state, names), 2)]


def _dig(state: State, names: Names, found: _Search) -> None:
    """Conclude from a set that hangs, or want the launches that tell."""
    left, right = _halves(state, names)
    outcomes = [_look(state, part, names, found) for part in (left, right)]
    if outcomes == [False, False]:
        _cross(state, left, right, found)
    elif None in outcomes and not found.wanted:
        _without_good(state, names, found)


def _look(state: State, part: Names, around: Names, found: _Search) -> bool | None:
    """Whether a half of a set that hangs does so too; what that means for it is concluded here."""
    if len(part) == 1:
        return _look_at_one(state, part, around, found)
    outcome = state.outcome(part)
    if outcome is None:
        found.wanted.append(part)
    elif outcome:
        _dig(state, part, found)
    return outcome


def _look_at_one(state: State, single: Names, around: Names, found: _Search) -> bool | None:
    """A single node is tried with a good one. Hung with one from outside it is guilty: it hung without that one
    before. With one from `around`, a second good one must tell the node from the link between the two.
    """
    good = [name for names in state.passed for name in _in_order(state, names) if name not in single]
    outside = [name for name in good if name not in around]
    partners = list(dict.fromkeys(outside or good))
    busy = frozenset().union(*found.wanted)
    # what has been run already comes first, then who is free to run at once
    partners.sort(key=lambda name: (state.outcome(single | {name}) is None, name in busy))
    hung: list[str] = []
    for partner in partners[: 1 if outside else 2]:
        outcome = state.outcome(single | {partner})
        if outcome is None:
            found.wanted.append(single | {partner})
            return None
        if not outcome:
            if hung:
                found.links.append((min(single), hung[0]))
            return bool(hung)
        hung.append(partner)
    if outside or len(hung) == 2:
        found.guilty += single
    elif hung:
        found.untold.append(single | set(hung))
    return bool(hung) or None


def _without_good(state: State, names: Names, found: _Search) -> None:
    """A set that hangs while nobody anywhere passed: of three, each pair is tried; of two, it cannot be told."""
    if len(names) == 3:
        one, two, three = _in_order(state, names)
        pairs = [frozenset(pair) for pair in ((one, two), (one, three), (two, three))]
        unknown = [pair for pair in pairs if state.outcome(pair) is None]
        if unknown:
            found.wanted.append(unknown[0])
            return
    found.untold.append(names)


def _cross(state: State, left: Names, right: Names, found: _Search) -> None:
    """Both sides pass and their union hangs: find the pair across that does."""
    if len(left) == len(right) == 1:
        found.links.append((min(left), min(right)))
        return
    lefts, rights = _halves(state, left), _halves(state, right)
    straight = list(zip(lefts, rights, strict=False))
    rounds = [straight, [(one, two) for one in lefts for two in rights if (one, two) not in straight]]
    for combinations in rounds:
        outcomes = [state.outcome(one | two) for one, two in combinations]
        if None in outcomes:
            found.wanted += [one | two for (one, two), o in zip(combinations, outcomes, strict=True) if o is None]
            return
        for (one, two), outcome in zip(combinations, outcomes, strict=True):
            if outcome:
                _cross(state, one, two, found)
        if True in outcomes:
            return
    found.unreproduced.append(left | right)
