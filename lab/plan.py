# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans a lab: which networks, NICs, MAC and IP addresses each node has. A pure function of a few numbers."""

from __future__ import annotations

import dataclasses
import typing as t

import netaddr

from lab.errors import LabError

MAXIMUM_NODES = 64
MAXIMUM_HCAS = 8
RELEASES = ("bookworm", "trixie")
CONTROL = "control"

# Private and unlikely to be anybody's own: they exist only inside the user-space switches.
_RAIL_SUPERNET = netaddr.IPNetwork("10.77.0.0/16")
_CONTROL_SUBNET = netaddr.IPNetwork("10.76.0.0/24")
# What QEMU's user-mode network hands to its one guest; the same on every node, reachable from the controller only.
_MANAGEMENT_SUBNET = netaddr.IPNetwork("10.0.2.0/24")
_MANAGEMENT_HOST = 15
# Locally administered; the fifth byte is the network, the last one the node.
_MAC_PREFIX = 0x026770_660000
_MANAGEMENT_MAC_NETWORK = 0xFE
_CONTROL_MAC_NETWORK = 0xFD
_RAIL_MTU = 9000
_ORDINARY_MTU = 1500
_RAIL_MBPS = 100_000
_ORDINARY_MBPS = 10_000


@dataclasses.dataclass(frozen=True)
class Network:
    """A switched network of the lab. mtu in bytes of IP packet, speed in Mbit/s as the NICs report it."""

    name: str
    subnet: netaddr.IPNetwork
    mtu: int
    speed_mbps: int


@dataclasses.dataclass(frozen=True)
class Link:
    """One NIC of a node. rdma_device is the Soft-RoCE device on it, or None."""

    network: Network
    interface: str
    mac: str
    address: netaddr.IPAddress
    rdma_device: str | None = None

    @property
    def cidr(self) -> str:
        """Address with prefix length, as `ip address add` takes it."""
        return f"{self.address}/{self.network.subnet.prefixlen}"


@dataclasses.dataclass(frozen=True)
class Node:
    """A virtual machine: its number from 1, its name, its release and its NICs."""

    number: int
    name: str
    release: str
    management: Link
    rails: tuple[Link, ...]
    control: Link

    @property
    def links(self) -> tuple[Link, ...]:
        """Every NIC, in the order in which the kernel finds them."""
        return (self.management, *self.rails, self.control)

    @property
    def switched_links(self) -> tuple[Link, ...]:
        """The NICs whose other end is one of the lab's switches."""
        return (*self.rails, self.control)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The whole lab."""

    nodes: tuple[Node, ...]
    networks: tuple[Network, ...]
    soft_roce: bool = True

    def node(self, name: str) -> Node:
        """The node of that name. Raises LabError that lists the names there are."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise LabError(f"there is no node '{name}' in this lab: it has {', '.join(n.name for n in self.nodes)}")


def _mac(network: int, node: int) -> str:
    return str(netaddr.EUI(_MAC_PREFIX + (network << 8) + node, dialect=netaddr.mac_unix_expanded))


def _release_of(releases: t.Sequence[str], position: int) -> str:
    return releases[position % len(releases)]


def make_plan(nodes: int, hcas: int, releases: t.Sequence[str] = RELEASES[:1], soft_roce: bool = True) -> Plan:
    """Plan `nodes` nodes with `hcas` rails each, with Soft-RoCE devices or bare; several releases are dealt out in turn.

    Raises LabError on bad input.
    """
    if not 1 <= nodes <= MAXIMUM_NODES:
        raise LabError(f"--nodes is {nodes}, expected 1 to {MAXIMUM_NODES}")
    if not 0 <= hcas <= MAXIMUM_HCAS:
        raise LabError(f"--hcas is {hcas}, expected 0 to {MAXIMUM_HCAS}")
    unknown = [release for release in releases if release not in RELEASES]
    if unknown or not releases:
        raise LabError(f"--release is '{','.join(releases)}', expected one or more of {', '.join(RELEASES)}")

    subnets = _RAIL_SUPERNET.subnet(24)
    rails = [Network(f"rail{rail}", next(subnets), _RAIL_MTU, _RAIL_MBPS) for rail in range(hcas)]
    control = Network(CONTROL, _CONTROL_SUBNET, _ORDINARY_MTU, _ORDINARY_MBPS)
    management = Network("management", _MANAGEMENT_SUBNET, _ORDINARY_MTU, _ORDINARY_MBPS)
    planned = tuple(
        Node(
            number=number,
            name=f"n{number}",
            release=_release_of(releases, number - 1),
            management=Link(
                management, "eth0", _mac(_MANAGEMENT_MAC_NETWORK, number), _MANAGEMENT_SUBNET[_MANAGEMENT_HOST]
            ),
            rails=tuple(
                Link(
                    network,
                    f"eth{rail + 1}",
                    _mac(rail, number),
                    network.subnet[number],
                    f"mlx5_{rail}" if soft_roce else None,
                )
                for rail, network in enumerate(rails)
            ),
            control=Link(control, "ctl0", _mac(_CONTROL_MAC_NETWORK, number), _CONTROL_SUBNET[number]),
        )
        for number in range(1, nodes + 1)
    )
    return Plan(planned, (*rails, control), soft_roce)
