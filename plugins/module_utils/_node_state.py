# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What of a node's state stops or slows collectives and is no HCA and no kernel parameter. PRIVATE to the collection."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils import _netdevs
from ansible_collections.gpufabric.cluster.plugins.module_utils._firewall import read_firewall
from ansible_collections.gpufabric.cluster.plugins.module_utils._gpu_state import read_gpus
from ansible_collections.gpufabric.cluster.plugins.module_utils._kernel_log import read_kernel_log
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

SHM = "/dev/shm"
PORT_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"


def read_state(fs: RootedFs, tools: Tools) -> dict[str, t.Any]:
    """firewall: see _firewall; gpus: see _gpu_state; kernel_log: see _kernel_log; shm: {bytes, free_bytes}, None without one;
    interfaces: [{name, index, mtu, up, kind, addresses}] in the kernel's order; port_range: [first, last] ephemeral TCP port;
    clock: {synchronized: bool or None}; versions: {kernel, driver, cuda, toolkit}.
    """
    gpus = read_gpus(fs, tools)
    return {
        "firewall": read_firewall(tools),
        "gpus": gpus,
        "kernel_log": read_kernel_log(tools),
        "shm": _shm(fs),
        "interfaces": _interfaces(fs, tools),
        "port_range": [int(word) for word in (fs.read_value(PORT_RANGE) or "").split() if word.isdigit()],
        "clock": {"synchronized": _is_synchronized(tools)},
        "versions": {
            "kernel": fs.read_value("/proc/sys/kernel/osrelease") or "",
            "driver": gpus.get("driver", ""),
            "cuda": gpus.get("cuda", ""),
            "toolkit": gpus.get("toolkit", ""),
        },
    }


def _shm(fs: RootedFs) -> dict[str, int] | None:
    try:
        size = os.statvfs(fs.host_path(SHM))
    except OSError:
        return None
    return {"bytes": size.f_blocks * size.f_frsize, "free_bytes": size.f_bavail * size.f_frsize}


def _interfaces(fs: RootedFs, tools: Tools) -> list[dict[str, t.Any]]:
    """kind: bridge, tun, bond, veth, wireless, physical (with a device), virtual; in the order that NCCL sees them in."""
    addresses, _unused = _netdevs.read_addresses(tools)
    found = []
    for name in fs.listdir(_netdevs.NET):
        base = f"{_netdevs.NET}/{name}"
        index = fs.read_value(f"{base}/ifindex") or ""
        told = _netdevs.describe(fs, name, addresses.get(name, []))
        found.append(
            {
                "name": name,
                "index": int(index) if index.isdigit() else 0,
                "kind": _kind(fs, base),
                "up": told["admin_up"],
                "mtu": told["mtu"],
                "addresses": told["addresses"],
            }
        )
    return sorted(found, key=lambda link: t.cast(int, link["index"]))


def _kind(fs: RootedFs, base: str) -> str:
    for kind, mark in (("bridge", "bridge"), ("bond", "bonding"), ("tun", "tun_flags"), ("wireless", "wireless")):
        if fs.exists(f"{base}/{mark}"):
            return kind
    return "physical" if fs.exists(f"{base}/device") else "virtual"


def _is_synchronized(tools: Tools) -> bool | None:
    """What the system clock's own flag says (adjtimex(2)), as timedatectl(1) prints it; None where nobody says."""
    done = tools.run(["timedatectl", "show", "--property=NTPSynchronized", "--value"], timeout=10)
    return {"yes": True, "no": False}.get(done.stdout.strip()) if done.ok else None
