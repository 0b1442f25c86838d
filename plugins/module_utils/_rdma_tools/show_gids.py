# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the script `show_gids` prints (mlnx-tools): the GID tables of all devices, and which index RoCE v2 should use."""

from __future__ import annotations

import ipaddress
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._captured_text import unpacked
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.text import SHELL, Leftovers, streams

_GID = re.compile(r"(?=[^:]{0,4}:[^:]{0,4}:)[0-9a-fA-FxX*:.]{2,64}$")  # x and *: digits that somebody blackened
_IPV4 = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}$")
_VERSION = re.compile(r"[vV][0-9](?:\.[0-9])?$")
_ANCHOR = re.compile(
    r"\bDEV\s{1,8}PORT\b|n_gids_found|" + SHELL + r"show_gids: "
    r"|(?<![\w.-])[\w.-]{1,128}\s{1,16}[0-9]{1,3}\s{1,16}[0-9]{1,6}\s{1,16}[0-9a-fA-FxX*]{1,4}:"
)
_HEADER = re.compile(r"DEV\s{1,16}PORT\b|-{2,}\s")
_FOUND = re.compile(r"n_gids_found\s?=\s?([0-9]{1,9})")
_KINDS = frozenset({"roce", "ib/roce", "ib"})  # `RoCE v2`, where a version of the script prints the type whole


def _row(words: t.Sequence[str]) -> dict[str, t.Any] | None:
    """One GID: DEV PORT INDEX GID [IPv4] [VER] [netdev]; None for a line that is none."""
    if len(words) < 4 or not (words[1].isdecimal() and words[2].isdecimal() and _GID.match(words[3])):
        return None
    if len(words[1] + words[2]) > 12:
        return None
    rest = [word for word in words[4:] if word.lower() not in _KINDS]
    ipv4 = rest.pop(0) if rest and _IPV4.match(rest[0]) else ""
    version = rest.pop(0).lower() if rest and _VERSION.match(rest[0]) else ""
    return {
        "dev": words[0],
        "port": int(words[1]),
        "index": int(words[2]),
        "gid": words[3],
        "ipv4": ipv4,
        "version": version,
        "netdev": rest[0] if rest else "",
    }


def _address(gid: t.Mapping[str, t.Any]) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a GID stands for; blackened digits count as zeros, for its kind is in the first ones."""
    try:
        address = ipaddress.IPv6Address(re.sub("[xX*]", "0", gid["gid"]))
    except ValueError:
        return None
    return address.ipv4_mapped or address


def _choose(gids: t.Sequence[t.Mapping[str, t.Any]]) -> int | None:
    """The index of one device's GID that RoCE v2 traffic should use, None where no GID is routable.

    The netdev that also holds the device's default (link-local) GID is the port itself; the same address may stand on a
    vxlan or a container's device as well. Where no default GID is visible (a pod), every netdev counts. Within a netdev
    IPv4 comes before IPv6, an address of 169.254.0.0/16 last, and the lowest index wins.
    """
    of = [(gid, address) for gid, address in ((gid, _address(gid)) for gid in gids) if address is not None]
    homes: dict[str, int] = {}
    for gid, address in of:
        if address.version == 6 and address.is_link_local:
            homes.setdefault(gid["netdev"], len(homes))
    ranked = [
        (homes.get(gid["netdev"], 0), 2 if address.is_link_local else int(address.version == 6), gid["index"])
        for gid, address in of
        if gid["version"] == "v2"
        and (not homes or gid["netdev"] in homes)
        and not (address.version == 6 and address.is_link_local)
        and not address.is_unspecified
    ]
    return min(ranked)[2] if ranked else None


def parse_show_gids(text: str) -> dict[str, t.Any]:
    """Read the answer of show_gids.

    Returns gids (dev, port, index, gid, ipv4, version, netdev, host where the text names one; a column that is empty is the
    empty text), right_gid_index ({device: the index for RoCE v2}), no_routable_gid (devices that have none), n_gids_found
    (as the script counted, None where its last line is missing), errors, unparsed. Never raises.
    """
    left = Leftovers()
    gids: list[dict[str, t.Any]] = []
    counted: int | None = None
    for host, lines in streams(unpacked(text), _ANCHOR):
        for line in lines:
            row = _row(line.replace("|", " ").split())
            found = _FOUND.search(line)
            if row is not None:
                gids.append({**row, "host": host} if host else row)
            elif found:
                counted = (counted or 0) + int(found.group(1))
            elif not _HEADER.match(line.strip()):
                left.add(line)
    if counted is not None and counted != len(gids):
        left.errors.append(f"show_gids counted {counted} GIDs, the text holds {len(gids)}")
    tables: dict[str, list[dict[str, t.Any]]] = {}
    for gid in gids:
        tables.setdefault(gid["dev"], []).append(gid)
    chosen = {dev: _choose(table) for dev, table in tables.items()}
    return {
        "gids": gids,
        "right_gid_index": {dev: index for dev, index in chosen.items() if index is not None},
        "no_routable_gid": [dev for dev, index in chosen.items() if index is None],
        "n_gids_found": counted,
        "errors": left.errors,
        "unparsed": left.unparsed,
    }
