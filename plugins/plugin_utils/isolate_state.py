# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What isolate is told, what it measures and what it knows: settings, rows and the state. Pure data."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import accuse, pair_statistics, slow_nodes
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.pairing import Launch, Node, Pair

Group = tuple[str, ...]
PATIENCE = 5.0
DONE = "done"


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
    missed_fault: float = 1e-4
    noise: float = 0.03
    rack_spread: float = 0.05
    timeout_s: float = 300.0
    least_timeout_s: float = 30.0
    fan_out: int = 8

    def __post_init__(self) -> None:
        shares = ("smallest_fault", "false_accusation", "missed_fault", "noise", "tolerance", "rack_spread")
        for name in shares:
            demand(0 < getattr(self, name) < 1, f"isolate_{name}", getattr(self, name), "a share between 0 and 1")
        for name in ("rounds", "size", "rail_runs", "timeout_s", "least_timeout_s"):
            demand(getattr(self, name) > 0, f"isolate_{name}", getattr(self, name), "a number above 0")
        demand(self.retests >= 0, "isolate_retests", self.retests, "a number of launches, 0 or more")
        demand(self.fan_out >= 2, "isolate_fan_out", self.fan_out, "2 or more")
        demand(self.rails in ("auto", "always", "never"), "isolate_rails", self.rails, "auto, always or never")
        if self.expectation is not None:
            demand(self.expectation > 0, "isolate_expectation", self.expectation, "GB/s above 0")

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
    def timeout_s(self) -> float:
        """How long a launch may take now: what the settings say until one was good, then PATIENCE times the slowest."""
        if not self.slowest_s:
            return self.settings.timeout_s
        return min(self.settings.timeout_s, max(self.settings.least_timeout_s, PATIENCE * self.slowest_s))

    @property
    def block_of(self) -> dict[str, str]:
        return {name: block for block, names in self.members.items() for name in names}

    def alive(self, block: str) -> list[str]:
        """The block's nodes that are still there and not found guilty by themselves."""
        return [name for name in self.members[block] if name not in self.gone and not self._out(name)]

    def _out(self, name: str) -> bool:
        return name in self.accused and self.accused[name].kind.endswith("alone")


def demand(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value}, expected {wanted}")
