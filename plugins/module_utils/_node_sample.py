# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a node's NICs, HCAs and processors did between two moments, from the kernel's counters. PRIVATE to the collection."""

from __future__ import annotations

import time
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._netdevs import NET
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_sysfs import INFINIBAND, read_counters
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs


class Sample(t.NamedTuple):
    """Counters of one moment. hcas: {"mlx5_0/1": {counter: value}}; netdevs: {"eth1": {statistic: value}};
    processors: (busy, all) time since boot in clock ticks."""

    at: float
    hcas: dict[str, dict[str, int]]
    netdevs: dict[str, dict[str, int]]
    processors: tuple[int, int]


def take(fs: RootedFs) -> Sample:
    """Read every counter once: some hundred short files, no tool, no root."""
    hcas = {}
    for device in fs.listdir(INFINIBAND):
        for port in fs.listdir(f"{INFINIBAND}/{device}/ports"):
            counters = read_counters(fs, f"{INFINIBAND}/{device}/ports/{port}")
            hcas[f"{device}/{port}"] = {name: value for name, value in counters.items() if value is not None}
    netdevs = {name: _statistics(fs, name) for name in fs.listdir(NET) if name != "lo"}
    return Sample(time.monotonic(), hcas, netdevs, _processor_time(fs))


def _statistics(fs: RootedFs, name: str) -> dict[str, int]:
    directory = f"{NET}/{name}/statistics"
    texts = {entry: fs.read_value(f"{directory}/{entry}") for entry in fs.listdir(directory)}
    return {entry: int(text) for entry, text in texts.items() if text and text.isdigit()}


def _processor_time(fs: RootedFs) -> tuple[int, int]:
    """(busy, all) from the first line of /proc/stat, proc(5): guest time is already in user time, so it is left out."""
    fields = [int(field) for field in (fs.read_value("/proc/stat") or "cpu 0").splitlines()[0].split()[1:9]]
    idle = sum(fields[3:5])
    return sum(fields) - idle, sum(fields)


def difference(before: Sample, after: Sample) -> dict[str, t.Any]:
    """{seconds, cpu_busy: share of all processors, hcas, netdevs}: only counters that moved.

    A counter that went back was reset or belongs to a device that was made anew: it counts from 0.
    """

    def moved(old: t.Mapping[str, t.Mapping[str, int]], new: t.Mapping[str, t.Mapping[str, int]]) -> dict[str, t.Any]:
        changes = {}
        for device, counters in new.items():
            known = old.get(device, {})
            deltas = {n: v - known.get(n, 0) if v >= known.get(n, 0) else v for n, v in counters.items()}
            changes[device] = {name: delta for name, delta in deltas.items() if delta}
        return changes

    busy, total = (new - old for new, old in zip(after.processors, before.processors))
    return {
        "seconds": round(after.at - before.at, 3),
        "cpu_busy": round(busy / total, 4) if total > 0 else None,
        "hcas": moved(before.hcas, after.hcas),
        "netdevs": moved(before.netdevs, after.netdevs),
    }
