# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet that answers isolate's launches as a real one would. It shares no code with what it tests: only the
launches' form.
"""

from __future__ import annotations

import dataclasses
import random
import typing as t


@dataclasses.dataclass
class Fleet:
    """speed: {node: capability in GB/s}. rack: {node: rack}, bias: {rack: factor on all pairs that touch it}. noise:
    relative deviation of a measurement.

    hangs: nodes whose every group hangs. links: {frozenset of two nodes: factor, 0 for a hang}. rails: {node: {rail:
    factor}}, rail_fault: {rail: factor} for all nodes.
    uplinks: {rack: factor on pairs that leave it}. alone: {node: factor on what the node reaches by itself}. vanish:
    {launch count: nodes that go before that launch}.
    combine: "min" (a pair is as fast as its slower end, rack included) or "product" (rack biases of both ends
    multiply).
    """

    speed: dict[str, float]
    rack: dict[str, str] = dataclasses.field(default_factory=dict)
    bias: dict[str, float] = dataclasses.field(default_factory=dict)
    noise: float = 0.03
    hangs: frozenset[str] = frozenset()
    links: dict[frozenset[str], float] = dataclasses.field(default_factory=dict)
    rails: dict[str, dict[int, float]] = dataclasses.field(default_factory=dict)
    rail_fault: dict[int, float] = dataclasses.field(default_factory=dict)
    rail_count: int = 1
    uplinks: dict[str, float] = dataclasses.field(default_factory=dict)
    alone: dict[str, float] = dataclasses.field(default_factory=dict)
    vanish: dict[int, list[str]] = dataclasses.field(default_factory=dict)
    combine: str = "min"
    glitches: float = 0.0
    seed: int = 0
    good_s: float = 12.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.count = 0
        self.gone: set[str] = set()

    def end(self, node: str, rail: int | None) -> float:
        """What one node contributes to a pair: its slowest rail in use decides, as NCCL spreads evenly."""
        rails = range(self.rail_count) if rail is None else [rail]
        worst = min(self.rails.get(node, {}).get(k, 1.0) * self.rail_fault.get(k, 1.0) for k in rails)
        return self.speed[node] * worst * self.bias.get(self.rack.get(node, ""), 1.0)

    def busbw(self, group: t.Sequence[str], rail: int | None) -> float | None:
        """GB/s of one group, None where it hangs."""
        if self.hangs.intersection(group) and len(group) > 1:
            return None
        if len(group) == 1:
            return 300.0 * self.alone.get(group[0], 1.0) * self.shake() or None
        one, two = group
        speed = min(self.end(one, rail), self.end(two, rail))
        racks = {self.rack.get(one, ""), self.rack.get(two, "")}
        if self.combine == "product" and len(racks) == 2:
            speed = min(self.speed[one], self.speed[two])
            for rack in racks:
                speed *= self.bias.get(rack, 1.0)
        if len(racks) == 2:
            speed *= min(self.uplinks.get(rack, 1.0) for rack in racks)
        speed *= self.links.get(frozenset(group), 1.0)
        if self.glitches and self.random.random() < self.glitches:
            speed *= self.random.uniform(0.3, 0.9)
        return speed * self.shake() or None

    def shake(self) -> float:
        return max(0.05, self.random.gauss(1.0, self.noise))

    def run(self, launches: t.Iterable[t.Any]) -> tuple[list[dict[str, t.Any]], list[str]]:
        """(measurements, nodes that vanished): one hung group hangs its whole launch until the timeout, as one mpirun
        does.
        """
        rows: list[dict[str, t.Any]] = []
        lost: set[str] = set()
        for launch in launches:
            self.count += 1
            self.gone.update(self.vanish.get(self.count, ()))
            members = {node for group in launch.groups for node in group}
            lost |= self.gone & members
            speeds = [self.busbw(group, launch.rail) for group in launch.groups]
            dead = any(speed is None for speed in speeds) or bool(self.gone & members)
            for group, speed in zip(launch.groups, speeds):
                rows.append(
                    {
                        "launch": launch.id,
                        "group": list(group),
                        "busbw": None if dead else speed,
                        "seconds": launch.timeout_s if dead else self.good_s,
                    }
                )
        return rows, sorted(lost)


def racked(nodes: int, rack_size: int, seed: int, spread: float = 0.05, **more: t.Any) -> Fleet:
    """`nodes` nodes of 100 GB/s in racks of `rack_size`, each rack with a bias drawn from 1 ± spread."""
    chance = random.Random(seed)
    names = [f"n{k:04d}" for k in range(nodes)]
    rack = {name: f"r{k // rack_size:03d}" for k, name in enumerate(names)}
    bias = {name: chance.uniform(1 - spread, 1 + spread) for name in dict.fromkeys(rack.values())}
    return Fleet(speed=dict.fromkeys(names, 100.0), rack=rack, bias=bias, seed=seed + 1, **more)
