# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NCCL_SOCKET_IFNAME from the network that is meant, on nodes whose interfaces have other names."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.requirements import lazy

if t.TYPE_CHECKING:
    import netaddr
else:
    netaddr = lazy("netaddr")


Addresses = t.Mapping[str, t.Sequence[str]]


def parse_network(text: str) -> netaddr.IPNetwork:
    """A network in CIDR notation; ValueError in one sentence for anything else."""
    try:
        if "/" not in str(text):
            raise ValueError
        return netaddr.IPNetwork(str(text)).cidr
    except (netaddr.AddrFormatError, ValueError):
        raise ValueError(f"a network looks like 10.0.0.0/16, not {text!r}") from None


def interfaces_in(network: netaddr.IPNetwork, addresses: Addresses) -> list[str]:
    """Interfaces with an address in *network*, by name."""
    return sorted(
        name
        for name, assigned in addresses.items()
        if any(netaddr.IPNetwork(address).ip in network for address in assigned)
    )


def ipv4_networks(addresses: Addresses) -> dict[str, netaddr.IPNetwork]:
    """{interface: network of its first IPv4 address}."""
    networks = {}
    for name, assigned in addresses.items():
        own = [netaddr.IPNetwork(address) for address in assigned]
        first = next((network for network in own if network.version == 4), None)
        if first is not None:
            networks[name] = first.cidr
    return networks


def unmatched(text: str, addresses: Addresses) -> list[str]:
    """Entries of a NCCL_SOCKET_IFNAME that match no interface with an address; nothing for exclusions."""
    if text.startswith("^"):
        return []
    present = [name for name, assigned in addresses.items() if assigned]
    exact = text.startswith("=")
    entries = text.lstrip("=").split(",")
    return [e for e in entries if not any(name == e or (not exact and name.startswith(e)) for name in present)]


def make_exact(text: str, addresses: Addresses) -> str:
    """A list of whole interface names marked as such, so that eth1 does not take eth10; any other list as it is."""
    if text.startswith(("^", "=")) or not all(entry in addresses for entry in text.split(",")):
        return text
    return f"={text}"
