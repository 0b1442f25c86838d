# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Runs that belong together in a picture or a table: a thousand nodes that each ran alone are one line with its bounds."""

from __future__ import annotations

import dataclasses
import statistics
import typing as t

Run = t.Mapping[str, t.Any]

#: runs of one kind that are shown one by one
MOST_SHOWN = 8


@dataclasses.dataclass
class Group:
    """Runs of one collective, stage, rail and transport."""

    collective: str
    name: str
    runs: list[Run] = dataclasses.field(default_factory=list)

    @property
    def many(self) -> bool:
        return len(self.runs) > MOST_SHOWN


@dataclasses.dataclass(frozen=True)
class Bounds:
    """One size over many runs: busbw in GB/s, and the nodes of the slowest and the fastest."""

    size_bytes: int
    slowest_gbs: float
    slowest: str
    median_gbs: float
    fastest_gbs: float
    fastest: str
    runs: int


#: of a run's table: sizes in bytes, times in µs, bandwidths in GB/s, out-of-place first; then the spread of single iterations
COLUMNS = (
    "size", "type", "redop", "time", "algbw", "busbw", "#wrong", "in-place time", "algbw", "busbw", "#wrong", "least", "median", "99 %"
)  # fmt: skip


def cells_of(row: t.Mapping[str, t.Any]) -> list[t.Any]:
    """One size under COLUMNS; what was not measured is an empty text."""
    first, second = row["out_of_place"], row.get("in_place") or {}
    halves = [half.get(key) for half in (first, second) for key in ("time_us", "algbw_gbs", "busbw_gbs", "wrong")]
    spread = [first.get("latency", {}).get(key) for key in ("min_us", "p50_us", "p99_us")]
    cells = [row["size_bytes"], row.get("dtype"), row.get("redop"), *halves, *spread]
    return ["" if cell is None else cell for cell in cells]


class Load(t.NamedTuple):
    """What one node did during a run. processors: their busy share; counters: of its HCAs' ports, as text."""

    node: str
    processors: float | None
    counters: str


def loads_of(run: Run) -> list[Load]:
    """One line a node, for as many as anybody reads; run.json holds all."""
    return [
        Load(
            node,
            delta["cpu_busy"],
            "; ".join(
                f"{port}: " + ", ".join(f"{name} {value}" for name, value in sorted(counters.items()))
                for port, counters in sorted(delta["hcas"].items())
                if counters
            ),
        )
        for node, delta in list(run.get("deltas", {}).items())[: 2 * MOST_SHOWN]
    ]


def groups_of(record: t.Mapping[str, t.Any]) -> list[Group]:
    """The record's runs in their order, those of a kind together."""
    groups: dict[tuple[str, str], Group] = {}
    for run in record["benchmark"].get("runs", []):
        name = _kind(run)
        groups.setdefault((run["collective"], name), Group(run["collective"], name)).runs.append(run)
    return list(groups.values())


def _kind(run: Run) -> str:
    transport = run["transport"].get("claimed") or run["transport"].get("proven")
    return ", ".join(filter(None, [run["stage"], run.get("rail"), transport]))


def name_of(run: Run) -> str:
    """What tells a run from the others in its chart."""
    return _kind(run) + (f", {run['nodes'][0]}" if len(run["nodes"]) == 1 else "")


def bounds(group: Group) -> list[Bounds]:
    """Each size's slowest, median and fastest run, by out-of-place busbw."""
    by_size: dict[int, list[tuple[float, str]]] = {}
    for run in group.runs:
        for row in run["rows"]:
            busbw = row["out_of_place"]["busbw_gbs"]
            if busbw is not None:
                by_size.setdefault(row["size_bytes"], []).append((busbw, ", ".join(run["nodes"][:2])))
    told = []
    for size, values in sorted(by_size.items()):
        (slowest_gbs, slowest), (fastest_gbs, fastest) = min(values), max(values)
        median = statistics.median(busbw for busbw, _node in values)
        told.append(Bounds(size, slowest_gbs, slowest, median, fastest_gbs, fastest, len(values)))
    return told


def envelope(group: Group) -> dict[str, dict[int, float]]:
    """{slowest, median and fastest: {size in bytes: busbw in GB/s}}."""
    told = bounds(group)
    of = f"of {len(group.runs)}"
    return {
        f"slowest {of}": {b.size_bytes: b.slowest_gbs for b in told},
        f"median {of}": {b.size_bytes: b.median_gbs for b in told},
        f"fastest {of}": {b.size_bytes: b.fastest_gbs for b in told},
    }
