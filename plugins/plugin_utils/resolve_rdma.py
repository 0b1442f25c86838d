# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NCCL's settings that follow from a node's HCAs: which ones, by which GID, in which traffic class."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import Version
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.requirements import lazy

if t.TYPE_CHECKING:
    import netaddr
else:
    netaddr = lazy("netaddr")

ROCE_V2 = "RoCE v2"

#: since this release NCCL looks for the GID itself, by family, RoCE version and range
AUTOMATIC_SINCE = (2, 21, 5)


@dataclasses.dataclass(frozen=True)
class Gid:
    index: int
    type: str
    ipv4: str
    netdev: str

    @property
    def is_v2(self) -> bool:
        return self.type == ROCE_V2

    def __str__(self) -> str:
        return (
            f"{self.type or 'a GID of unknown type'}, {self.ipv4 or 'no IPv4 address'}, {self.netdev or 'no interface'}"
        )


@dataclasses.dataclass(frozen=True)
class Port:
    """One port of an HCA that NCCL may use. netdev: its interface, "" on InfiniBand without IPoIB."""

    device: str
    port: int
    roce: bool
    netdev: str
    gids: tuple[Gid, ...]

    def __str__(self) -> str:
        return f"{self.device}:{self.port}"

    def intended(self, network: netaddr.IPNetwork | None = None) -> Gid | None:
        """The GID that traffic should leave by: RoCE v2, IPv4, on the port's own interface and in *network* if one is given."""
        for gid in self.gids:
            own = not self.netdev or not gid.netdev or gid.netdev == self.netdev
            if gid.is_v2 and gid.ipv4 and own and (network is None or netaddr.IPAddress(gid.ipv4) in network):
                return gid
        return None

    def at(self, index: int) -> Gid | None:
        return next((gid for gid in self.gids if gid.index == index), None)


def ports_of(hcas: t.Iterable[t.Mapping[str, t.Any]], active_only: bool = True) -> list[Port]:
    """The ports that hca_info observed; NCCL itself uses the active ones (ncclIbInit in net_ib)."""
    return [
        Port(
            device["name"],
            int(port["port"]),
            port.get("link_layer") == "Ethernet",
            port.get("netdev") or "",
            tuple(
                Gid(int(g["index"]), g.get("type", ""), g.get("ipv4") or "", g.get("netdev") or "")
                for g in port.get("gids", [])
            ),
        )
        for device in hcas
        for port in device.get("ports", [])
        if not active_only or str(port.get("state", "")).upper().endswith("ACTIVE")
    ]


def transport_of(ports: t.Sequence[Port]) -> frozenset[str]:
    return frozenset({"roce" if port.roce else "ib" for port in ports}) or frozenset({"socket"})


def exact(ports: t.Iterable[Port]) -> str:
    """NCCL_IB_HCA for exactly these ports."""
    return "=" + ",".join(str(port) for port in ports)


@dataclasses.dataclass(frozen=True)
class GidChoice:
    """variables: {name: (value, reason)} to write; problem: one sentence if no setting is right, "" otherwise; fix for it."""

    variables: t.Mapping[str, tuple[str, str]]
    reason: str = ""
    problem: str = ""
    fix: str = ""


def choose_gids(
    ports: t.Sequence[Port],
    version: Version,
    networks: t.Mapping[str, netaddr.IPNetwork],
    network: netaddr.IPNetwork | None = None,
) -> GidChoice:
    """What makes every RoCE port leave by its intended GID in this NCCL; nothing where NCCL gets it right by itself.

    networks: {interface: network of its IPv4 address}; network: the fabric's, if the user named it.
    """
    roce = [port for port in ports if port.roce]
    meant = {port: port.intended(network) for port in roce}
    without = [str(port) for port, gid in meant.items() if gid is None]
    if without:
        where = f" in {network}" if network is not None else ""
        return GidChoice(
            {},
            problem=f"{', '.join(without)} has no RoCE v2 GID with an IPv4 address{where}",
            fix="give the HCA's interface an IPv4 address: ip address add ADDRESS/PREFIX dev INTERFACE",
        )
    gids = {port: gid for port, gid in meant.items() if gid is not None}
    if not gids:
        return GidChoice({}, reason="no RoCE port")
    if version >= AUTOMATIC_SINCE:
        chosen = _automatic(gids, networks, network)
        if chosen is not None:
            return chosen
    indexes = {gid.index for gid in gids.values()}
    listed = ", ".join(f"{port} {gid.index}" for port, gid in gids.items())
    if len(indexes) == 1:
        index = str(indexes.pop())
        if index == "0" and version < AUTOMATIC_SINCE:
            return GidChoice({}, reason="index 0, this NCCL's default, is right on every HCA")
        return GidChoice({"NCCL_IB_GID_INDEX": (index, f"the RoCE v2 GID with the HCA's IPv4 address ({listed})")})
    return GidChoice(
        {},
        problem=f"the HCAs need different GID indexes ({listed}), and NCCL {_text(version)} takes one for all",
        fix="update NCCL to 2.21 or later, which looks for the GID itself"
        if version < AUTOMATIC_SINCE
        else "give each HCA's interface one IPv4 address that no other interface has",
    )


def _text(version: Version) -> str:
    return ".".join(map(str, version))


def _automatic(
    gids: t.Mapping[Port, Gid], networks: t.Mapping[str, netaddr.IPNetwork], network: netaddr.IPNetwork | None
) -> GidChoice | None:
    """How NCCL's own search finds these GIDs, None if it cannot."""
    if all(nccl_choice(port.gids) == gid for port, gid in gids.items()):
        return GidChoice({}, reason="NCCL 2.21 and later finds the right GID itself on every HCA of this node")
    spans = [networks[port.netdev] for port in gids if port.netdev in networks]
    candidates = [network] if network is not None else []
    if len(spans) == len(gids):
        candidates.append(netaddr.spanning_cidr(spans) if len(spans) > 1 else spans[0])
    for candidate in candidates:
        if all(nccl_choice(port.gids, candidate) == gid for port, gid in gids.items()):
            reason = "without it NCCL would take the GID of another interface"
            return GidChoice({"NCCL_IB_ADDR_RANGE": (str(candidate.cidr), reason)})
    return None


def nccl_choice(gids: t.Sequence[Gid], network: netaddr.IPNetwork | None = None) -> Gid | None:
    """The GID that NCCL picks by itself from 2.21 on, with its defaults AF_INET and RoCE v2.

    It starts from index 0 and changes to a later one that fits family and range if the present one is of the other
    family, or of another RoCE version than the one that fits (ncclUpdateGidIndex in net_ib).
    """
    best = next((gid for gid in gids if gid.index == 0), None)
    for gid in gids:
        if gid.index == 0 or not gid.ipv4 or (network is not None and netaddr.IPAddress(gid.ipv4) not in network):
            continue
        other_family = best is None or not best.ipv4
        if other_family or (best is not None and best.type != gid.type and gid.is_v2):
            best = gid
    return best


@dataclasses.dataclass(frozen=True)
class HcaList:
    """A user's NCCL_IB_HCA made exact. absent: entries that match nothing here; widened: what a prefix takes besides."""

    value: str
    absent: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    was_prefix: bool = False


def make_exact(text: str, ports: t.Sequence[Port] | None) -> HcaList:
    """NCCL_IB_HCA as it was meant: the named devices, not all whose names begin so. Exclusions keep their mark."""
    mark = "^" if text.startswith("^") else ""
    body = text[len(mark) :]
    prefix = not body.startswith("=")
    entries = body.lstrip("=").split(",")
    if ports is None:
        return HcaList(f"{mark}={','.join(entries)}", was_prefix=prefix)
    names = {port.device for port in ports}
    written: list[str] = []
    absent: list[str] = []
    widened: list[str] = []
    for entry in entries:
        name, colon, rest = entry.partition(":")
        matching = [name] if name in names else sorted(n for n in names if prefix and n.startswith(name))
        if name in names and prefix:
            widened += sorted(n for n in names if n != name and n.startswith(name))
        if not matching:
            absent.append(entry)
        for device in matching:
            own = [str(port) for port in ports if port.device == device]
            written += [f"{device}:{rest}"] if colon else own if prefix and not mark else [device]
    if mark and absent:
        written += absent  # leaving out what is not there is no fault
        absent = []
    return HcaList(
        f"{mark}={','.join(dict.fromkeys(written))}" if written else "", tuple(absent), tuple(widened), prefix
    )
