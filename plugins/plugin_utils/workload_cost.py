# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a step's messages cost on a fabric that was measured, and which sizes are worth measuring. Pure."""

from __future__ import annotations

import bisect
import collections
import math
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload_state import Message

KEPT_SHARE = 0.99
"""Sizes that together make up this share of the cost (or of the bytes, before anything is measured) are worth
measuring.
"""

SMALLEST_PLANNED = 8


class Curve:
    """The time of one collective among so many ranks, by message size: measured points and what lies between."""

    def __init__(self, points: t.Mapping[int, float]) -> None:
        """points: {bytes: µs}, at least one, all above 0."""
        self.sizes = sorted(points)
        self.times = [points[size] for size in self.sizes]

    def time_us(self, size: int) -> float:
        """Between two measured sizes: straight on logarithmic scales. Below the smallest: its time, which is latency.
        Above the largest: its bandwidth.
        """
        place = bisect.bisect_left(self.sizes, size)
        if place == 0:
            return self.times[0]
        if place == len(self.sizes):
            return self.times[-1] * size / self.sizes[-1]
        low, high = self.sizes[place - 1], self.sizes[place]
        share = math.log(size / low) / math.log(high / low)
        return math.exp((1 - share) * math.log(self.times[place - 1]) + share * math.log(self.times[place]))

    def bandwidth_us(self, size: int) -> float:
        """What the message would take at the best bandwidth measured: the part of its time that more bandwidth would
        shorten.
        """
        best = min(time / size for size, time in zip(self.sizes, self.times, strict=True))
        return min(size * best, self.time_us(size))

    @property
    def reach(self) -> tuple[int, int]:
        return self.sizes[0], self.sizes[-1]


Curves = t.Mapping[tuple[str, int], Curve]


def curves_of(runs: t.Iterable[t.Mapping[str, t.Any]]) -> dict[tuple[str, int], Curve]:
    """{(collective, ranks): curve} from runs of the record: {collective, ranks, rows: [{size_bytes, out_of_place:
    {time_us}, in_place}]}.

    Each size counts with its faster half, and its fastest run. Rows without a finite time above 0 are left out.
    """
    points: dict[tuple[str, int], dict[int, float]] = {}
    for run in runs:
        for row in run["rows"]:
            halves = (row.get(half) or {} for half in ("out_of_place", "in_place"))
            times = [half["time_us"] for half in halves if _usable(half.get("time_us"))]
            if not times or not row["size_bytes"]:
                continue
            known = points.setdefault((str(run["collective"]), int(run["ranks"])), {})
            size = int(row["size_bytes"])
            known[size] = min(known.get(size, math.inf), *times)
    return {key: Curve(known) for key, known in points.items()}


def _usable(time: object) -> bool:
    return isinstance(time, (int, float)) and not isinstance(time, bool) and math.isfinite(time) and time > 0


def price(messages: t.Iterable[Message], curves: Curves) -> dict[str, t.Any]:
    """Communication time of one step, were every message sent after the other and nothing overlapped.

    seconds; bandwidth_share: how much of that is bandwidth (the rest is latency), and rules: ``bandwidth`` or
    ``latency``, whichever is more; entries: [{collective, size, ranks, count, seconds, share, measured: whether the
    size lies within the measured ones}], dearest first; missing: collectives (with their ranks) that no run measured,
    which are not in the sum.
    """
    counted = collections.Counter((message.collective, message.ranks, message.size) for message in messages)
    entries: list[dict[str, t.Any]] = []
    missing: set[tuple[str, int]] = set()
    total = bandwidth = 0.0
    for (collective, ranks, size), count in counted.items():
        curve = curves.get((collective, ranks))
        if curve is None:
            missing.add((collective, ranks))
            continue
        seconds = count * curve.time_us(size) / 1e6
        total += seconds
        bandwidth += count * curve.bandwidth_us(size) / 1e6
        low, high = curve.reach
        entries.append(
            {
                "collective": collective,
                "size": size,
                "ranks": ranks,
                "count": count,
                "seconds": seconds,
                "measured": low <= size <= high,
            }
        )
    entries.sort(key=lambda entry: -float(entry["seconds"]))
    share = bandwidth / total if total else 0.0
    return {
        "seconds": total,
        "bandwidth_share": share,
        "rules": "bandwidth" if share >= 0.5 else "latency",
        "entries": [{**entry, "share": entry["seconds"] / total} for entry in entries],
        "missing": [{"collective": collective, "ranks": ranks} for collective, ranks in sorted(missing)],
    }


def compare(messages: t.Sequence[Message], before: Curves, after: Curves) -> dict[str, t.Any]:
    """The same step on two measured fabrics, or on one before and after tuning: both prices, and the share of time
    saved.

    Only collectives that both measured are compared; `missing` of either price names the others.
    """
    both = {key for key in before if key in after}
    comparable = [message for message in messages if (message.collective, message.ranks) in both]
    one, two = price(comparable, before), price(comparable, after)
    saved = 1 - two["seconds"] / one["seconds"] if one["seconds"] else 0.0
    return {"before": price(messages, before), "after": price(messages, after), "saved": saved}


def size_plan(messages: t.Sequence[Message], curves: Curves | None = None) -> list[dict[str, t.Any]]:
    """What nccl-tests should measure for these messages: [{collective, ranks, min_bytes, max_bytes, step_factor,
    share}].

    The sizes that matter make up KEPT_SHARE of the predicted time, or without curves half by bytes and half by
    number, since it is not known yet whether latency or bandwidth rules. Each range reaches from the power of two
    below the smallest to the one above the largest.
    """
    weights = _weights(messages, curves)
    kept: dict[tuple[str, int], list[int]] = {}
    shares: collections.Counter[tuple[str, int]] = collections.Counter()
    covered = 0.0
    for (collective, ranks, size), weight in sorted(weights.items(), key=lambda entry: (-entry[1], entry[0])):
        shares[collective, ranks] += weight  # type: ignore[assignment]
        if covered < KEPT_SHARE:
            kept.setdefault((collective, ranks), []).append(size)
        covered += weight
    return [
        {
            "collective": collective,
            "ranks": ranks,
            "min_bytes": max(SMALLEST_PLANNED, 1 << (min(sizes).bit_length() - 1)),
            "max_bytes": max(SMALLEST_PLANNED, 1 << (max(sizes) - 1).bit_length()),
            "step_factor": 2,
            "share": round(float(shares[collective, ranks]), 4),
        }
        for (collective, ranks), sizes in kept.items()
    ]


def _weights(messages: t.Sequence[Message], curves: Curves | None) -> dict[tuple[str, int, int], float]:
    counted = collections.Counter((message.collective, message.ranks, message.size) for message in messages)
    if curves is not None:
        priced = price(messages, curves)
        if not priced["missing"] and priced["seconds"]:
            return {(e["collective"], e["ranks"], e["size"]): e["share"] for e in priced["entries"]}
    total = sum(size * count for (_collective, _ranks, size), count in counted.items())
    number = sum(counted.values())
    return {key: (key[2] * count / total + count / number) / 2 for key, count in counted.items()} if total else {}
