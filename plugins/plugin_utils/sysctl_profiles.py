# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Profiles of kernel parameters: data/sysctl_profiles.json, and a user's wishes on top of one."""

from __future__ import annotations

import difflib
import functools
import json
import math
import pathlib
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._sysctl import RDMA_INTERFACE, normal_value
from ansible_collections.gpufabric.cluster.plugins.module_utils._sysctl_conf import dotted, key_name

DATA = pathlib.Path(__file__).parent / "data" / "sysctl_profiles.json"

#: a profile without any key, for those who want only their own
NONE = "none"

#: bounds of a computed buffer, in bytes: the kernel's own tcp_rmem maximum, and what a sysctl of type int can hold
SMALLEST_BUFFER = 6 * 2**20
LARGEST_BUFFER = 2**31 - 1

#: where each computed maximum goes: {key: what stands before it}
_BUFFERS = {
    "net.core.rmem_max": "",
    "net.core.wmem_max": "",
    "net.ipv4.tcp_rmem": "4096 131072 ",
    "net.ipv4.tcp_wmem": "4096 65536 ",
}


@functools.lru_cache(maxsize=1)
def load() -> dict[str, t.Any]:
    """The data file: {sources: {name: text}, profiles: {name: {title, summary, settings: [...]}}}."""
    return t.cast("dict[str, t.Any]", json.loads(DATA.read_text(encoding="utf-8")))


def names() -> list[str]:
    """What kernel_tuning_profile may say."""
    return [*load()["profiles"], NONE]


def resolve(
    profile: str,
    overrides: t.Mapping[str, t.Any] | None = None,
    qdisc: str = "",
    link_gbps: float = 0,
    rtt_us: float = 0,
) -> list[dict[str, str]]:
    """The settings of *profile* with a user's wishes on top: [{key, value, reason}], a key once, in the order of setting.

    overrides: {key: value, or None to leave the key alone}; they win over everything. qdisc: net.core.default_qdisc.
    link_gbps (Gb/s) and rtt_us (µs), both or none: the buffers' maxima are computed from them.
    Raises ValueError with one sentence for what cannot be meant.
    """
    if profile not in names():
        near = difflib.get_close_matches(profile, names(), n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"kernel_tuning_profile is {profile!r}{hint}; it must be one of {', '.join(names())}")
    chosen: dict[str, tuple[str, str]] = {}
    for setting in load()["profiles"].get(profile, {"settings": []})["settings"]:
        chosen[_spelling(setting["key"])] = (setting["value"], f"{setting['reason']} [profile {profile}]")
    for key, value, reason in _computed(link_gbps, rtt_us, chosen):
        chosen[key] = (value, reason)
    if qdisc:
        chosen["net.core.default_qdisc"] = (
            normal_value(qdisc, "kernel_tuning_qdisc"),
            "paces each flow, for interfaces that come up from now on [kernel_tuning_qdisc]",
        )
    for key, value in (overrides or {}).items():
        spelling = _spelling(str(key))
        chosen.pop(spelling, None)
        if value is not None:
            chosen[spelling] = (normal_value(value, f"kernel_tuning_sysctl: {key}"), "[kernel_tuning_sysctl]")
    return [{"key": key, "value": value, "reason": reason} for key, (value, reason) in chosen.items()]


def buffer_for(link_gbps: float, rtt_us: float) -> int:
    """Bytes that a TCP buffer must hold for a path: twice rate x round trip, rounded up to a power of two.

    Twice, since bookkeeping takes up to half of a receive buffer (tcp_adv_win_scale, ip-sysctl).
    """
    in_flight = link_gbps * 1e9 / 8 * rtt_us * 1e-6
    return max(SMALLEST_BUFFER, min(LARGEST_BUFFER, int(2 ** math.ceil(math.log2(2 * in_flight)))))


def _computed(link_gbps: float, rtt_us: float, chosen: t.Mapping[str, tuple[str, str]]) -> list[tuple[str, str, str]]:
    for name, number, unit in (
        ("kernel_tuning_link_gbps", link_gbps, "Gb/s"),
        ("kernel_tuning_rtt_us", rtt_us, "µs"),
    ):
        if isinstance(number, bool) or not math.isfinite(number) or number < 0:
            raise ValueError(f"{name} is {number!r}; it must be a number of {unit}, or 0 for unknown")
    if not link_gbps and not rtt_us:
        return []
    if not link_gbps or not rtt_us:
        raise ValueError(
            "kernel_tuning_link_gbps and kernel_tuning_rtt_us must be given together: one alone says nothing"
        )
    size = buffer_for(link_gbps, rtt_us)
    reason = (
        f"twice {link_gbps:g} Gb/s x {rtt_us:g} µs, as a power of two [kernel_tuning_link_gbps, kernel_tuning_rtt_us]"
    )
    rows = []
    for key, default_head in _BUFFERS.items():
        present = chosen[key][0].split() if key in chosen else []
        head = " ".join(present[:-1]) + " " if len(present) > 1 else default_head
        rows.append((key, f"{head}{size}", reason))
    return rows


def _spelling(key: str) -> str:
    """One spelling for each key, however a user writes it; <rdma> stays."""
    return dotted(key_name(key.replace(RDMA_INTERFACE, _STAND_IN), "kernel_tuning_sysctl")).replace(
        _STAND_IN, RDMA_INTERFACE
    )


#: an interface name that nobody has, while a key with <rdma> is checked
_STAND_IN = "RDMA-INTERFACE"
