# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Latency by size where the program cannot time single iterations: from runs that were made several times."""

from __future__ import annotations

import math
import statistics
import typing as t

Run = dict[str, t.Any]

HALVES = ("out_of_place", "in_place")


def add_repeat_latency(runs: t.Sequence[Run]) -> None:
    """Give each half of a row that has no latency of its own that of its repeats: least, median, 99 % (nearest rank), most, in µs.

    With two repeats or more; ``repeats`` says how many it is from. Single iterations, where they were timed, say more and stay.
    """
    for alike in _groups(runs):
        for half in HALVES:
            times: dict[tuple[t.Any, ...], list[float]] = {}
            rows = [row for run in alike for row in run["rows"] if row.get(half) and row[half]["time_us"] is not None]
            for row in rows:
                times.setdefault(_size(row), []).append(row[half]["time_us"])
            for row in rows:
                if len(times[_size(row)]) > 1 and "latency" not in row[half]:
                    row[half]["latency"] = _spread(times[_size(row)])


def _groups(runs: t.Sequence[Run]) -> list[list[Run]]:
    groups: dict[tuple[t.Any, ...], list[Run]] = {}
    for run in runs:
        key = (run["collective"], run["stage"], run["rail"], run["transport"]["claimed"], tuple(run["nodes"]))
        groups.setdefault(key, []).append(run)
    return [alike for alike in groups.values() if len(alike) > 1]


def _size(row: t.Mapping[str, t.Any]) -> tuple[t.Any, ...]:
    return (row["size_bytes"], row["dtype"], row["redop"], row["root"])


def _spread(times: t.Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "min_us": ordered[0],
        "p50_us": statistics.median(ordered),
        "p99_us": ordered[math.ceil(0.99 * len(ordered)) - 1],
        "max_us": ordered[-1],
        "repeats": len(ordered),
    }
