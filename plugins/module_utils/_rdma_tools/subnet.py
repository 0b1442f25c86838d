# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the subnet tools (iblinkinfo, ibnetdiscover) have in common: node descriptions, link widths and lane speeds."""

from __future__ import annotations

import re
import typing as t

_LANE_GBPS: dict[str, float] = {  # nominal Gbit/s of a lane, by its name
    "SDR": 2.5,
    "DDR": 5,
    "QDR": 10,
    "FDR10": 10,
    "FDR": 14,
    "EDR": 25,
    "HDR": 50,
    "NDR": 100,
    "XDR": 200,
}
# iblinkinfo prints a lane's signalling rate, 25.78125 for EDR, which some round: up to 6.25 % above the nominal rate.
_ABOVE_NOMINAL = 1.07
_SWITCH = re.compile(r"M[FT][0-9];([^:;]{1,128}):")  # managed switches: MF0;name:model/unit
_AGGREGATION = "Aggregation Node"  # SHARP's own port on a switch is a CA by type and no host


def _lane_gbps(speed: str) -> float | None:
    """Nominal rate of a lane from its name or its signalling rate; None for any other word."""
    if speed in _LANE_GBPS:
        return _LANE_GBPS[speed]
    try:
        signalled = float(speed)
    except ValueError:
        return None
    return next((lane for lane in _LANE_GBPS.values() if lane <= signalled < lane * _ABOVE_NOMINAL), None)


def rate_gbps(width: str, speed: str) -> float | None:
    """Nominal rate of a link in Gbit/s from `4X` and `25.78125 Gbps` or `EDR`; None where either is not known."""
    lanes = width.rstrip("xX")
    lane = _lane_gbps(speed.split(" ")[0])
    return int(lanes) * lane if lane is not None and lanes.isdecimal() and len(lanes) < 4 else None


def short_name(kind: str, description: str) -> str:
    """The host of a CA (`gpu-1` of `gpu-1 HCA-3` or `gpu-1 mlx5_3`), the name of a switch; empty for an aggregation node."""
    if kind.upper() == "CA":
        words = description.split()
        return words[0] if words and _AGGREGATION not in description else ""
    managed = _SWITCH.match(description)
    return managed.group(1) if managed else description


def unique(names: t.Iterable[str]) -> list[str]:
    """Names in the order of their first mention, empty ones left out."""
    return list(dict.fromkeys(filter(None, names)))


def hosts_and_switches(
    links: t.Iterable[t.Mapping[str, t.Any]], nodes: t.Iterable[t.Mapping[str, t.Any]]
) -> dict[str, list[str]]:
    """The hosts and switches that nodes and both ends of links name."""
    named: list[tuple[str, str]] = []
    for node in nodes:
        named.append((node["type"], node["name"]))
    for link in links:
        named.append((link["node_type"], link["node"]))
        named.append((link["peer_type"], link["peer"]))
    return {
        "hosts": unique(short_name(kind, name) for kind, name in named if kind == "CA"),
        "switches": unique(short_name(kind, name) for kind, name in named if kind == "Switch"),
    }
