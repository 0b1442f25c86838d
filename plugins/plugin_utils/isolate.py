# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which node, link, rack or rail is at fault, in the fewest launches: a state machine of pure functions.

``state = begin(nodes, settings)``, then until plan(state) is empty: run what it lists (side by side: nothing in it
overlaps) and
``state = observe(state, measurements, vanished)``. judge_isolation.verdict(state) says at any time what is known.

Stages: ``alone`` (each node by itself), ``pairs`` (rounds within each rack), ``retest`` (suspects with known-good
partners until sure),
``across`` (between racks), ``rails`` (one HCA at a time), ``nvlink`` and ``nic`` (the guilty by themselves, with and
without NVLink).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import accuse, pair_statistics, pairing, slow_nodes
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.pairing import Launch, Node, Pair

Group = tuple[str, ...]
ALONE_RUNS = 3
ACROSS_ROUNDS = 3
CONTROLS = 8
PATIENCE = 5.0
EXHAUSTED = 1.1
STAGES = ("alone", "pairs", "retest", "across", "rails", "nvlink", "nic", "done")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the caller decides. The shares (smallest_fault, false_accusation, missed_fault, noise) are
    pair_statistics.Bars'.

    rounds: rounds of pairs. retests: launches of the retest at most. size: message bytes. split: one launch a round
    (NCCL_TESTS_SPLIT) or one a pair.
    locality: which key of a node names what it hangs on (``rack``, ``switch``, ``rail`` ...). alone, across: whether
    to run these stages.
    rails: ``auto`` (for the guilty, or where all is slow), ``always`` or ``never``. expectation: GB/s that a pair
    should reach, or None.
    tolerance: share below its peers (racks, rails) or the expectation at which a rack, a rail or the whole fleet is
    at fault.
    timeout_s: how long a launch may take before anything is known of it; later PATIENCE times the slowest good one,
    but never below least_timeout_s.
    rack_spread: share by which healthy racks may differ either way, assumed of racks too small to show it.
    fan_out: launches that a hung launch of many groups is split into.
    """

    rounds: int = 3
    retests: int = 30
    size: int = 1 << 30
    split: bool = True
    locality: str = "rack"
    alone: bool = True
    across: bool = True
    rails: str = "auto"
    rail_runs: int = 3
    expectation: float | None = None
    tolerance: float = 0.15
    smallest_fault: float = 0.08
    false_accusation: float = 1e-4
    missed_fault: float = 1e-3
    noise: float = 0.03
    rack_spread: float = 0.05
    timeout_s: float = 300.0
    least_timeout_s: float = 30.0
    fan_out: int = 8

    def __post_init__(self) -> None:
        shares = ("smallest_fault", "false_accusation", "missed_fault", "noise", "tolerance", "rack_spread")
        for name in shares:
            _demand(0 < getattr(self, name) < 1, name, getattr(self, name), "a share between 0 and 1")
        for name in ("rounds", "size", "rail_runs", "timeout_s", "least_timeout_s"):
            _demand(getattr(self, name) > 0, name, getattr(self, name), "a number above 0")
        _demand(self.retests >= 0, "retests", self.retests, "a number of launches, 0 or more")
        _demand(self.fan_out >= 2, "fan_out", self.fan_out, "2 or more")
        _demand(self.rails in ("auto", "always", "never"), "rails", self.rails, "auto, always or never")
        if self.expectation is not None:
            _demand(self.expectation > 0, "expectation", self.expectation, "GB/s above 0")

    @property
    def bars(self) -> pair_statistics.Bars:
        return pair_statistics.Bars(
            self.smallest_fault,
            self.false_accusation,
            self.missed_fault,
            self.noise,
            looks=self.retests + 1,
            least=self.expectation,
        )


class Row(t.NamedTuple):
    """One group's measurement. busbw: GB/s, None where it hung or failed. notes: what the caller saw beside it
    (counters, transport).
    """

    stage: str
    round: int
    rail: int | None
    group: Group
    busbw: float | None
    seconds: float
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class State:
    """Everything known so far. status: good, suspect or bad, for nodes judged by pairs. links: open, good or bad.

    open_launches: launches that hung or lost a node, cut smaller, to be run before the plan goes on. slowest_s: the
    longest good launch.
    """

    nodes: dict[str, Node]
    settings: Settings
    members: dict[str, list[str]]
    stage: str = "alone"
    step: int = 0
    rows: tuple[Row, ...] = ()
    gone: frozenset[str] = frozenset()
    failing: frozenset[str] = frozenset()
    open_launches: tuple[Launch, ...] = ()
    status: dict[str, str] = dataclasses.field(default_factory=dict)
    links: dict[Pair, str] = dataclasses.field(default_factory=dict)
    runs: dict[str, tuple[tuple[str, str, float | None], ...]] = dataclasses.field(default_factory=dict)
    totals: dict[str, dict[Pair, pair_statistics.PairTotal]] = dataclasses.field(default_factory=dict)
    weighings: dict[str, slow_nodes.Weighing] = dataclasses.field(default_factory=dict)
    noise: pair_statistics.Noise | None = None
    accused: dict[str, accuse.Accusation] = dataclasses.field(default_factory=dict)
    accused_links: dict[Pair, accuse.Accusation] = dataclasses.field(default_factory=dict)
    launches: int = 0
    by_stage: dict[str, int] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    slowest_s: float = 0.0

    @property
    def block_of(self) -> dict[str, str]:
        return {name: block for block, names in self.members.items() for name in names}

    def alive(self, block: str) -> list[str]:
        """The block's nodes that are still there and not found guilty by themselves."""
        return [name for name in self.members[block] if name not in self.gone and not self._out(name)]

    def _out(self, name: str) -> bool:
        return name in self.accused and self.accused[name].kind.endswith("alone")


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
    return _STEPS[state.stage](state) if state.stage != "done" else []


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
    return _advance(_judge(dataclasses.replace(state, open_launches=(), step=state.step + 1)))


def _demand(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ValueError(f"isolate: {name} is {value}, expected {wanted}")


def _node(name: str, data: t.Mapping[str, t.Any], locality: str) -> Node:
    ranks = data.get("ranks", 1)
    _demand(isinstance(ranks, int) and ranks > 0, f"ranks of {name}", ranks, "a whole number above 0")
    where = data.get(locality)
    return Node(name, "" if where is None else str(where), ranks, tuple(str(hca) for hca in data.get("hcas", ())))


def _still_there(state: State, launch: Launch) -> Launch:
    """The launch without what has vanished since it was made, and with the timeout that is known by now."""
    groups = tuple(group for group in launch.groups if not state.gone.intersection(group))
    return dataclasses.replace(launch, groups=groups, timeout_s=_timeout(state))


def _timeout(state: State) -> float:
    settings = state.settings
    if not state.slowest_s:
        return settings.timeout_s
    return min(settings.timeout_s, max(settings.least_timeout_s, PATIENCE * state.slowest_s))


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
    while state.stage != "done" and not plan(state):
        state = dataclasses.replace(state, stage=STAGES[STAGES.index(state.stage) + 1], step=0)
    return state


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
            timeout_s=_timeout(state),
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
        low = [name for name in names if _low_alone(state).get(name)]
        names = low + [name for name in names if name not in low][: len(low) + 1] if low else []
    return _launches(state, [(name,) for name in names])


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


def _low_alone(state: State) -> dict[str, bool]:
    fault = pair_statistics.log_fault(state.settings.bars)
    return {
        name: shift.failed > 0 or (shift.log_ratio <= -fault / 2 and shift.log_ratio <= -3 * shift.error)
        for name, shift in alone_shifts(state).items()
    }


def _judge_alone(state: State) -> State:
    """Name the nodes that were low in each of ALONE_RUNS runs by themselves."""
    shifts, low = alone_shifts(state), _low_alone(state)
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


def _pairs(state: State) -> list[Launch]:
    if state.step >= state.settings.rounds:
        return []
    return _launches(state, pairing.local_round({block: state.alive(block) for block in state.members}, state.step))


def _retest(state: State) -> list[Launch]:
    if state.step >= state.settings.retests:
        return []
    groups: list[Pair] = []
    for block in state.members:
        groups += _retest_block(state, block)
    return _launches(state, groups)


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


def _noise_of(state: State, block: str, noise: pair_statistics.Noise) -> pair_statistics.Noise:
    """The noise within one block. Where small racks had to be pooled, they may differ as racks do, and few nodes cannot
    show by how much.
    """
    settings = state.settings
    racks = {state.nodes[name].locality for name in state.members[block]}
    pooled = settings.rack_spread / math.sqrt(3) if len(racks) > 1 else 0.0
    return pair_statistics.with_fault(
        noise, len(state.nodes), settings.rounds + settings.retests, settings.bars, pooled
    )


def _judge(state: State) -> State:
    """Draw what can be drawn from the rows so far."""
    if state.stage == "alone" and (state.step >= ALONE_RUNS or not _alone(state)):
        return _judge_alone(state)
    if state.stage == "pairs" and state.step >= state.settings.rounds:
        return _judge_pairs(state, list(state.members))
    if state.stage == "retest":
        where = state.block_of
        touched = {where[name] for name, status in state.status.items() if status == "suspect"}
        touched |= {where[pair[0]] for pair, status in state.links.items() if status == "open"}
        return _judge_pairs(state, [block for block in state.members if block in touched])
    return state


def _judge_pairs(state: State, blocks: t.Sequence[str]) -> State:
    bars = state.settings.bars
    noise = state.noise
    if noise is None or not noise.settled:
        noise = pair_statistics.estimate_noise(list(state.runs.values()), bars)
    totals = {**state.totals, **{block: pair_statistics.pair_totals(state.runs.get(block, ())) for block in blocks}}
    weighings = {
        **state.weighings,
        **{block: slow_nodes.weigh(totals[block], _noise_of(state, block, noise)) for block in blocks},
    }
    state = dataclasses.replace(state, noise=noise, totals=totals, weighings=weighings)
    status = dict(state.status)
    for block in blocks:
        for name in state.alive(block):
            if status.get(name, "suspect") == "suspect":
                good = slow_nodes.is_healthy(name, weighings[block], bars)
                status[name] = "good" if good else "suspect"
    good_nodes = {name for name, is_now in status.items() if is_now == "good"}
    fleet = accuse.fleet_of(len(state.nodes), ((totals[block], weighings[block]) for block in state.members))
    accused = dict(state.accused)
    if state.stage == "retest":
        for block in blocks:
            for name in state.alive(block):
                if status[name] == "suspect" and name in weighings[block].shifts:
                    verdict = accuse.accuse(name, weighings[block], good_nodes, fleet, bars)
                    if verdict is not None:
                        accused[name] = verdict
                        status[name] = "bad"
    return _judge_links(dataclasses.replace(state, status=status, accused=accused), blocks, fleet)


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


def _across(state: State) -> list[Launch]:
    """One round between racks; two more where some path between racks is slow, to see with whom."""
    if not state.settings.across or len(state.members) < 2 or state.step >= ACROSS_ROUNDS:
        return []
    if state.step and not slow_paths(state):
        return []
    good = {block: [name for name in state.alive(block) if state.status.get(name) == "good"] for block in state.members}
    return _launches(state, [p for pairs in pairing.across_round(good, state.step).values() for p in pairs])


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
    bar = math.log1p(-state.settings.tolerance)
    return {cell: level - middle for cell, level in levels.items() if level - middle <= bar}


def fleet_level(state: State) -> float | None:
    """Median over racks of the speed of their healthy pairs in GB/s, None where nothing ran."""
    levels = [weighing.level for weighing in state.weighings.values() if weighing.level is not None]
    return math.exp(statistics.median(levels)) if levels else None


def below_expectation(state: State) -> bool:
    """Whether even the healthy pairs miss the expectation by more than the tolerance."""
    level, expectation = fleet_level(state), state.settings.expectation
    return level is not None and expectation is not None and level < expectation * (1 - state.settings.tolerance)


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


_STEPS: dict[str, t.Callable[[State], list[Launch]]] = {
    "alone": _alone,
    "pairs": _pairs,
    "retest": _retest,
    "across": _across,
    "rails": _rails,
    "nvlink": _nvlink,
    "nic": _nic,
}
