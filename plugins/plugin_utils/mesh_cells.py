# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The mesh as matrices: for each path and test, which directed pairs work, from what fabric_probe found on each node. Pure.

Tests are in layers: where a lower one fails, a higher one says nothing, so one fault shows in one test.
"""

from __future__ import annotations

import collections
import dataclasses
import statistics
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.culprits import Cell

Mesh = t.Mapping[str, t.Any]

CONTROL = "control"

#: tests of a path, lowest layer first
TESTS = ("reach", "mtu", "tcp", "rdma", "loss", "latency", "bandwidth")

#: those that are numbers, which a disturbance can make bad
NUMBERS = ("loss", "latency", "bandwidth")

#: lost echo requests below which a share says nothing
FEWEST_LOST = 2
#: milliseconds by which a round trip may be longer in any case: the kernel's own jitter
JITTER_MS = 0.1


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """slow_ratio: bandwidth of an HCA below this share of the others' is bad; slow_ratio_software: the same for TCP and Soft-RoCE,
    which are as fast as the processors are idle; loss_percent: lost packets from which on a path is bad; latency_ratio: a round
    trip that many times as long as the others' is bad."""

    slow_ratio: float = 0.5
    slow_ratio_software: float = 0.2
    loss_percent: float = 1.0
    latency_ratio: float = 5.0

    @classmethod
    def of(cls, settings: t.Mapping[str, t.Any]) -> Thresholds:
        names = [field.name for field in dataclasses.fields(cls)]
        given = {name: settings.get(f"diagnose_{name}") for name in names}
        return cls(**{name: float(value) for name, value in given.items() if value is not None})


@dataclasses.dataclass
class Path:
    """One path of the whole mesh. tests: {test: {(prober, probed): works}}, only what was tested.

    numbers: {quantity: {(prober, probed): value}}, of loss_percent, rtt_ms, stream_gbs, write_gbs, pingpong_us.
    usual: what a quantity is on most nodes. said: {(prober, probed): the tool's words about the lowest test that failed}.
    down: pairs that were not tried, since an end was known to be down. software: whether processors move the data.
    """

    name: str
    software: bool = True
    tests: dict[str, dict[Cell, bool]] = dataclasses.field(default_factory=lambda: {test: {} for test in TESTS})
    numbers: dict[str, dict[Cell, float]] = dataclasses.field(default_factory=lambda: collections.defaultdict(dict))
    usual: dict[str, float] = dataclasses.field(default_factory=dict)
    said: dict[Cell, str] = dataclasses.field(default_factory=dict)
    down: set[Cell] = dataclasses.field(default_factory=set)

    def first_failed(self, cell: Cell) -> str:
        """The lowest test that fails between two, "" where all that was tested works."""
        return next((test for test in TESTS if self.tests[test].get(cell) is False), "")


def read_paths(meshes: t.Mapping[str, Mesh], thresholds: Thresholds) -> dict[str, Path]:
    """{path: its matrices} of all nodes' rows; the control network first. O(cells)."""
    paths: dict[str, Path] = {CONTROL: Path(CONTROL)}
    for node, mesh in meshes.items():
        for peer, found in mesh["peers"].items():
            for name, cell in found["paths"].items():
                path = paths.setdefault(name, Path(name))
                _read_cell(path, (node, peer), cell)
    for path in paths.values():
        _judge_loss(path, thresholds)
        _judge_latency(path, thresholds)
        _note_usual_bandwidth(path)
    kinds = _usual_of_kind(paths, meshes)
    soft = {rail for mesh in meshes.values() for rail, end in mesh["rails"].items() if end.get("virtual", True)}
    for path in paths.values():
        path.software = path.name == CONTROL or path.name in soft
        rdma = thresholds.slow_ratio_software if path.software else thresholds.slow_ratio
        ratios = {"write_gbs": rdma, "stream_gbs": thresholds.slow_ratio_software}
        _judge_bandwidth(path, kinds[path.name], ratios)
    return paths


def suspects(meshes: t.Mapping[str, Mesh], thresholds: Thresholds) -> dict[str, dict[str, list[str]]]:
    """{prober: {probed: paths}} on which a number is bad: measured again, before anybody is accused of it."""
    found: dict[str, dict[str, list[str]]] = {}
    for path in read_paths(meshes, thresholds).values():
        for node, peer in {cell for test in NUMBERS for cell, works in path.tests[test].items() if not works}:
            found.setdefault(node, {}).setdefault(peer, []).append(path.name)
    return found


def _read_cell(path: Path, at: Cell, cell: t.Mapping[str, t.Any]) -> None:
    if cell.get("down"):
        path.down.add(at)
        return
    pinged, opened = cell.get("ping"), cell.get("tcp")
    reached = True
    if pinged is not None:
        reached = bool(pinged["received"]) or bool(opened and opened["ok"])
        _note(path, "reach", at, reached, pinged["problem"])
    if not reached:
        return
    if cell.get("mtu"):
        _note(path, "mtu", at, bool(cell["mtu"]["received"]), cell["mtu"]["problem"])
    if opened is not None:
        _note(path, "tcp", at, opened["ok"], opened["problem"])
    if "pingpong" in cell:
        _note(path, "rdma", at, cell["pingpong"]["us"] is not None, cell["pingpong"]["problem"])
        _number(path, "pingpong_us", at, cell["pingpong"]["us"])
    lost = cell.get("loss") or {}
    if lost.get("sent"):
        _number(path, "loss_percent", at, 100.0 * (lost["sent"] - lost["received"]) / lost["sent"])
        _number(path, "rtt_ms", at, lost["min_ms"])
        path.tests["loss"][at] = lost["sent"] - lost["received"] < FEWEST_LOST
    whole = not any(path.tests[test].get(at) is False for test in ("mtu", "tcp", "rdma"))
    for quantity, probe in (("stream_gbs", "stream"), ("write_gbs", "write")):
        measured = cell.get(probe)
        if measured and whole:
            # A measurement that got nothing through, where everything below works, is the slowest there is.
            _number(path, quantity, at, measured["gbs"] or 0.0)
            if measured["gbs"] is None:
                path.said.setdefault(at, measured["problem"])


def _note(path: Path, test: str, at: Cell, works: bool, said: str) -> None:
    path.tests[test][at] = works
    if not works and said:
        path.said.setdefault(at, said)


def _number(path: Path, quantity: str, at: Cell, value: float | None) -> None:
    if value is not None:
        path.numbers[quantity][at] = value


def _judge_loss(path: Path, thresholds: Thresholds) -> None:
    """More than one packet, and more than the threshold."""
    for at, percent in path.numbers["loss_percent"].items():
        path.tests["loss"][at] = path.tests["loss"][at] or percent < thresholds.loss_percent


def _judge_latency(path: Path, thresholds: Thresholds) -> None:
    quick = {at: -ms for at, ms in path.numbers["rtt_ms"].items()}
    usual = usual_best(quick)
    if usual is None:
        return
    usual_ms = abs(usual)
    path.usual["rtt_ms"] = usual_ms
    for at, ms in path.numbers["rtt_ms"].items():
        path.tests["latency"][at] = ms <= usual_ms * thresholds.latency_ratio + JITTER_MS


def usual_best(values: t.Mapping[Cell, float]) -> float | None:
    """The middle one of the nodes' best values: holds while fewer than half of the nodes are bad, whoever their partners are.

    The middle of all values would not: with one bad node of three, four of six values are bad.
    """
    best: dict[str, float] = {}
    for at, value in values.items():
        for node in at:
            best[node] = max(best.get(node, value), value)
    return statistics.median_high(best.values()) if best else None


def _note_usual_bandwidth(path: Path) -> None:
    for quantity in ("stream_gbs", "write_gbs"):
        usual = usual_best(path.numbers[quantity])
        if usual:
            path.usual[quantity] = usual


def _usual_of_kind(paths: t.Mapping[str, Path], meshes: t.Mapping[str, Mesh]) -> dict[str, dict[str, float]]:
    """{path: {quantity: the middle one of what paths of its kind (link layer, rate) have}}: so a rail that is slow on all
    nodes is held against the other rails."""
    kind: dict[str, t.Any] = {}
    for mesh in meshes.values():
        for rail, end in mesh["rails"].items():
            kind.setdefault(rail, (end.get("link_layer"), end.get("rate_gbps")))
    usual: dict[str, dict[str, float]] = {name: {} for name in paths}
    for quantity in ("stream_gbs", "write_gbs"):
        by_kind: dict[t.Any, list[float]] = collections.defaultdict(list)
        for name, path in paths.items():
            if quantity in path.usual:
                by_kind[kind.get(name)].append(path.usual[quantity])
        for name in paths:
            if by_kind[kind.get(name)]:
                usual[name][quantity] = statistics.median_high(by_kind[kind.get(name)])
    return usual


def _judge_bandwidth(path: Path, kind: t.Mapping[str, float], ratios: t.Mapping[str, float]) -> None:
    """A pair is slow if RDMA or TCP is below its share of what is usual. ratios: {quantity: that share}."""
    for quantity, ratio in ratios.items():
        usual = max(path.usual.get(quantity, 0.0), kind.get(quantity, 0.0))
        if not usual:
            continue
        path.usual[quantity] = usual
        for at, gbs in path.numbers[quantity].items():
            # Loss and delay cost bandwidth too: they are the fault then.
            if path.tests["loss"].get(at, True) and path.tests["latency"].get(at, True):
                fast = gbs >= usual * ratio
                path.tests["bandwidth"][at] = fast and path.tests["bandwidth"].get(at, True)
