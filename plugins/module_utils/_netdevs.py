# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Network interfaces from sysfs, their addresses from ip(8), neighbours from procfs. PRIVATE to the collection."""

from __future__ import annotations

import ipaddress
import json
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

NET = "/sys/class/net"
CONF = "/proc/sys/net/ipv4/conf"
ARP = "/proc/net/arp"

#: /proc/net/arp's flag of an entry that was answered (ATF_COM, <linux/if_arp.h>)
ANSWERED = 0x2

#: IFF_UP, <linux/if.h>
UP = 0x1

#: neighbours kept of one node: enough to see crossed rails, little enough to move from 2,000 nodes
NEIGHBOURS = 128


def read_addresses(tools: Tools) -> tuple[dict[str, list[str]], str]:
    """{interface: [address/prefix length]} by ``ip -json address show``, and one sentence about why there are none."""
    done = tools.run(["ip", "-json", "address", "show"], timeout=10)
    try:
        links = json.loads(done.stdout or "[]")
    except ValueError:
        return {}, done.problem or "ip -json address show printed no JSON"
    addresses = {
        link["ifname"]: [address for entry in link.get("addr_info") or [] for address in _address(entry)]
        for link in (links if isinstance(links, list) else [])
        if isinstance(link, dict) and "ifname" in link
    }
    return addresses, "" if addresses else done.problem


def _address(entry: t.Any) -> list[str]:
    """The address of an entry of ip(8)'s addr_info; none where it is no address."""
    try:
        return [str(ipaddress.ip_interface(f"{entry['local']}/{entry['prefixlen']}"))]
    except (KeyError, TypeError, ValueError):
        return []


def describe(fs: RootedFs, name: str, addresses: t.Sequence[str]) -> dict[str, t.Any]:
    """One interface.

    mtu in bytes; speed_mbps None where the driver does not say (-1); admin_up: IFF_UP, None where unreadable; carrier None where the
    interface is down; arp_ignore, arp_announce, rp_filter: the value in force, the higher one of `all` and the interface.
    """
    base = f"{NET}/{name}"
    flags = _number(fs.read_value(f"{base}/flags"))
    speed = _number(fs.read_value(f"{base}/speed"))
    return {
        "mtu": _number(fs.read_value(f"{base}/mtu")),
        "mac": fs.read_value(f"{base}/address") or "",
        "operstate": fs.read_value(f"{base}/operstate") or "",
        "speed_mbps": speed if speed and speed > 0 else None,
        "admin_up": None if flags is None else bool(flags & UP),
        "carrier": {"1": True, "0": False}.get(fs.read_value(f"{base}/carrier") or ""),
        "master": (fs.readlink(f"{base}/master") or "").rpartition("/")[2],
        "addresses": list(addresses),
        **{key: _in_force(fs, name, key) for key in ("arp_ignore", "arp_announce", "rp_filter")},
    }


def _in_force(fs: RootedFs, name: str, key: str) -> int | None:
    values = [_number(fs.read_value(f"{CONF}/{where}/{key}")) for where in ("all", name)]
    known = [value for value in values if value is not None]
    return max(known) if known else None


def neighbours(fs: RootedFs, names: t.Collection[str]) -> list[dict[str, str]]:
    """Answered ARP entries on the interfaces *names*: {ip, mac, netdev}.

    At most NEIGHBOURS, those first whose MAC answers for several addresses: that is how crossed rails show.
    """
    entries = []
    for line in (fs.read_value(ARP) or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 6 and fields[5] in names and (_number(fields[2]) or 0) & ANSWERED:
            entries.append({"ip": fields[0], "mac": fields[3].lower(), "netdev": fields[5]})
    count: dict[str, int] = {}
    for entry in entries:
        count[entry["mac"]] = count.get(entry["mac"], 0) + 1
    entries.sort(key=lambda entry: -count[entry["mac"]])
    return entries[:NEIGHBOURS]


def _number(text: str | None) -> int | None:
    """A decimal or 0x number, None for anything else."""
    try:
        return int(text or "", 0)
    except ValueError:
        return None
