# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Communication and computation of one training step, from the intervals that a profiler saw. Pure. PRIVATE to the collection.

An interval is (begin, end) in ns.
"""

from __future__ import annotations

import re
import typing as t

Interval = tuple[int, int]

#: kinds of device activities in which a GPU works, as Kineto calls them; PyTorch before 2.12 tells none ("")
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
#: names of what is no work, where the kind is not told: annotations, and waiting
_NO_WORK = re.compile(r"nccl:|ProfilerStep|.*(Sync|Wait Event)$")
_NCCL_KERNEL = re.compile(r"nccl(Dev)?Kernel")


class Activity(t.NamedTuple):
    """One entry of a trace. kind: Kineto's activity type. on_device: whether it stands in a GPU's timeline."""

    name: str
    kind: str
    on_device: bool
    begin: int
    end: int


def split(activities: t.Iterable[Activity]) -> tuple[list[Interval], list[Interval]]:
    """(communication, computation). With GPUs NCCL's kernels against all other work of the device; without, gloo's
    collectives against PyTorch's operators, each with time for which the other side waits within its own.
    """
    seen = list(activities)
    on_device = [one for one in seen if one.on_device and _works(one)]
    if on_device:
        nccl = [bool(_NCCL_KERNEL.match(one.name)) for one in on_device]
        return (
            [(one.begin, one.end) for one, is_nccl in zip(on_device, nccl) if is_nccl],
            [(one.begin, one.end) for one, is_nccl in zip(on_device, nccl) if not is_nccl],
        )
    return (
        [(one.begin, one.end) for one in seen if one.name.startswith("gloo:")],
        [(one.begin, one.end) for one in seen if one.name.startswith("aten::")],
    )


def _works(one: Activity) -> bool:
    return one.kind in DEVICE_WORK if one.kind else not _NO_WORK.match(one.name)


def union(intervals: t.Iterable[Interval]) -> list[Interval]:
    """The same stretches of time without overlaps, in order."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def length(intervals: t.Iterable[Interval]) -> int:
    """ns in which at least one of them lasts."""
    return sum(end - begin for begin, end in union(intervals))


def common(one: t.Iterable[Interval], other: t.Iterable[Interval]) -> int:
    """ns in which both last."""
    first, second = union(one), union(other)
    total = place = 0
    for begin, end in first:
        while place < len(second) and second[place][1] <= begin:
            place += 1
        ahead = place
        while ahead < len(second) and second[ahead][0] < end:
            total += min(end, second[ahead][1]) - max(begin, second[ahead][0])
            ahead += 1
    return total


def summary(activities: t.Iterable[Activity]) -> dict[str, t.Any]:
    """communication_s: in which messages were on their way (a rank that waits for another one waits in them); exposed_s:
    those of them in which nothing was computed; compute_s; messages_s: how long each message took, in their order.
    """
    communication, computation = split(activities)
    busy = length(communication)
    return {
        "communication_s": busy / 1e9,
        "exposed_s": (busy - common(communication, computation)) / 1e9,
        "compute_s": length(computation) / 1e9,
        "messages_s": [(end - begin) / 1e9 for begin, end in sorted(communication)],
    }


def transfers_s(ranks: t.Sequence[t.Sequence[float]]) -> list[float]:
    """Seconds that each message took by itself, from all ranks' messages_s; [] where ranks saw different numbers of them.

    The rank that comes last to a message waits for nobody, so each counts with its shortest time.
    """
    if len({len(times) for times in ranks}) != 1:
        return []
    return [min(times) for times in zip(*ranks)]


def transfer_s(ranks: t.Sequence[t.Mapping[str, t.Any]]) -> float:
    """Seconds that one step's messages took by themselves, from all ranks' summaries of it: transfers_s() in sum, or, where
    that cannot be told or messages overlapped, the communication of the rank that has least of it.
    """
    least = min(float(rank["communication_s"]) for rank in ranks)
    each = transfers_s([rank["messages_s"] for rank in ranks])
    return min(least, sum(each)) if each else least
