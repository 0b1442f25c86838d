# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges the rails of a group: GUIDs and addresses that should be unique, subnets, crossed neighbours, cabling."""

from __future__ import annotations

import collections
import fnmatch
import itertools
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import listed, majority
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.requirements import lazy
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.select_hcas import (
    Observation,
    Port,
    Selection,
    Settings,
    network,
)

if t.TYPE_CHECKING:
    import netaddr
else:
    netaddr = lazy("netaddr")

#: prefix lengths of a link between two: on such rails every node has a subnet of its own, by design
POINT_TO_POINT = {4: 30, 6: 126}

#: arp_ignore and arp_announce that keep several interfaces in one subnet from answering for each other
ARP_IGNORE, ARP_ANNOUNCE = 1, 2


def bad_subnet_setting(settings: Settings) -> Finding | None:
    """The one sentence about a subnet that is none, None where all are."""
    named = [("rdma_select_subnets", subnet) for subnet in settings.get("rdma_select_subnets") or []]
    for rail, subnets in (settings.get("rdma_rail_subnets") or {}).items():
        named += [(f"rdma_rail_subnets[{rail}]", subnet) for subnet in _as_list(subnets)]
    for variable, subnet in named:
        try:
            network(str(subnet))
        except (netaddr.AddrFormatError, ValueError):
            return Finding(
                id="bad_subnet",
                severity="error",
                node="",
                subject=variable,
                evidence=f"{subnet!r} is no subnet, so no HCA was judged",
                expected="a subnet such as 10.20.0.0/24",
                fix=f"correct {variable}",
            )
    return None


def _as_list(value: t.Any) -> list[t.Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def judge_rails(nodes: t.Mapping[str, Observation], selection: Selection, settings: Settings) -> list[Finding]:
    """Findings that only show when a group's nodes are seen together."""
    ports = [port for ports in selection.compute.values() for port in ports]
    addressed = [port for port in ports if port.ethernet and port.active and port.addresses]
    guids = _duplicate_guids(ports)
    return [
        *guids,
        *_duplicate_addresses(addressed, {finding.node for finding in guids}),
        *_subnets(addressed, settings),
        *_overlaps(addressed),
        *_crossed_neighbours(nodes, addressed),
        *_cabling(ports, settings.get("rdma_cabling") or []),
    ]


# ---- what should be unique


def _duplicate_guids(ports: t.Iterable[Port]) -> list[Finding]:
    hcas = {(port.node, port.hca["name"]): port for port in ports if port.hca["node_guid"].strip("0:")}
    return [
        Finding(
            id="hca_guid_duplicate",
            severity="error",
            node=node,
            subject=listed([port.hca["name"] for port, _other in twins], 12),
            evidence=f"node GUID {twins[0][0].hca['node_guid']} is also that of {other} {twins[0][1].hca['name']}"
            + (f", and {len(twins) - 1} more are shared" if len(twins) > 1 else ""),
            expected="a GUID of its own for each HCA",
            cause="one machine under two names, a cloned virtual machine or firmware image, or a GUID set by hand; "
            "subnet managers drop one of them",
            fix="flint -d DEVICE -guid NEW sg (hardware), or recreate the device; remove one of two inventory names",
        )
        for (node, other), twins in _twins((port.hca["node_guid"], port) for port in hcas.values()).items()
    ]


def _duplicate_addresses(ports: t.Iterable[Port], clones: t.Collection[str]) -> list[Finding]:
    """clones: nodes that share GUIDs with others; that they share addresses too is a consequence."""
    pairs = _twins((address.split("/")[0], port) for port in ports for address in port.addresses)
    return [
        Finding(
            id="rail_address_duplicate",
            severity="error",
            node=node,
            subject=port.subject,
            evidence=f"an address of {port.port['netdev']} ({listed(port.addresses)}) is also on {other} "
            f"{twin.port['netdev']} ({listed(twin.addresses)})",
            expected="an address of its own for each port",
            cause="copied network configuration; packets reach whichever answered ARP last",
            fix=f"give {port.port['netdev']} another address",
        )
        for (node, other), twins in pairs.items()
        if node not in clones
        for port, twin in twins
        if (node, port.port["netdev"]) != (other, twin.port["netdev"])
    ]


def _twins(values: t.Iterable[tuple[str, Port]]) -> dict[tuple[str, str], list[tuple[Port, Port]]]:
    """{(node, node of the first owner): [(port, first owner of the same value)]} of values that occur again."""
    first: dict[str, Port] = {}
    pairs: dict[tuple[str, str], list[tuple[Port, Port]]] = collections.defaultdict(list)
    for value, port in values:
        owner = first.setdefault(value, port)
        if owner is not port:
            pairs[port.node, owner.node].append((port, owner))
    return pairs


# ---- subnets


def _networks(port: Port) -> list[netaddr.IPNetwork]:
    return [network(address).cidr for address in port.addresses]


def _subnets(ports: t.Sequence[Port], settings: Settings) -> list[Finding]:
    """Ports outside the subnet of their rail: as given, else as most of the rail's nodes have it, else of all rails."""
    given = settings.get("rdma_rail_subnets") or {}
    of_all = [network(str(subnet)) for subnet in settings.get("rdma_select_subnets") or []]
    by_rail: dict[str, list[Port]] = collections.defaultdict(list)
    for port in ports:
        by_rail[port.rail].append(port)
    usual = {rail: common for rail, members in by_rail.items() if (common := _usual_network(members))}
    findings = []
    for rail, members in by_rail.items():
        if rail in given:
            wanted, told = [network(str(subnet)) for subnet in _as_list(given[rail])], "as rdma_rail_subnets says"
        elif rail in usual:
            common = usual[rail]
            wanted, told = [common[0]], f"as on {common[1]} of {common[2]} nodes of rail {rail}"
        elif of_all:
            wanted, told = of_all, "as rdma_select_subnets says"
        else:
            continue
        for port in members:
            if not any(network(address).ip in subnet for address in port.addresses for subnet in wanted):
                other = next((r for r, c in usual.items() if r != rail and c[0] in _networks(port)), "")
                findings.append(_wrong_subnet(port, wanted, told, other))
    return findings


def _usual_network(members: t.Sequence[Port]) -> tuple[netaddr.IPNetwork, int, int] | None:
    networks = [n for port in members for n in _networks(port)[:1] if n.prefixlen < POINT_TO_POINT[n.version]]
    common = majority(networks)
    return common if common and common[1] > 1 else None


def _wrong_subnet(port: Port, wanted: t.Sequence[netaddr.IPNetwork], told: str, other: str) -> Finding:
    return Finding(
        id="rail_subnet",
        severity="error",
        node=port.node,
        subject=port.subject,
        evidence=f"{port.port['netdev']} has {listed(port.addresses)}"
        + (f", the subnet of rail {other}" if other else ""),
        expected=f"an address in {listed([str(subnet) for subnet in wanted])}, {told}",
        cause="addresses or cables of two rails are swapped" if other else "a wrong address or prefix length",
        fix=f"ip address replace ADDRESS dev {port.port['netdev']}; make it last in the network configuration",
    )


def _overlaps(ports: t.Sequence[Port]) -> list[Finding]:
    """Rails that share a subnet on a node, said once for each pair of rails."""
    by_node: dict[str, list[Port]] = collections.defaultdict(list)
    for port in ports:
        by_node[port.node].append(port)
    pairs: dict[tuple[str, str], list[tuple[Port, Port]]] = collections.defaultdict(list)
    for members in by_node.values():
        for one, other in itertools.combinations(members, 2):
            if one.port["netdev"] != other.port["netdev"] and _share(one, other):
                pairs[one.rail, other.rail].append((one, other))
    if not pairs:
        return []
    rails = sorted({rail for pair in pairs for rail in pair})
    first = next(iter(pairs.values()))[0]
    guarded = all(
        (port.netdev.get("arp_ignore") or 0) >= ARP_IGNORE and (port.netdev.get("arp_announce") or 0) >= ARP_ANNOUNCE
        for both in pairs.values()
        for pair in both
        for port in pair
    )
    nodes = sorted({one.node for both in pairs.values() for one, _other in both})
    return [
        Finding(
            id="rail_subnets_overlap",
            severity="notice" if guarded else "warning",
            node=nodes[0] if len(nodes) == 1 else "",
            subject=listed(rails, 12),
            evidence=f"on {len(nodes)} node(s) several rails lie in one subnet (on {first[0].node}: "
            f"{first[0].addresses[0]} and {first[1].addresses[0]})",
            expected="a subnet for each rail",
            cause="replies leave by whichever interface the route names, and interfaces answer ARP for each other"
            + ("; arp_ignore and arp_announce hold that off here" if guarded else ""),
            fix="a subnet a rail; or kernel_tuning with arp_ignore=1, arp_announce=2 on these interfaces and source routes",
        )
    ]


def _share(one: Port, other: Port) -> bool:
    return any(a.version == b.version and (a in b or b in a) for a in _networks(one) for b in _networks(other))


def _crossed_neighbours(nodes: t.Mapping[str, Observation], ports: t.Sequence[Port]) -> list[Finding]:
    """ARP entries that lead to another interface of the peer than the one that owns the address."""
    owner_of = {address.split("/")[0]: port for port in ports for address in port.addresses}
    by_mac = {port.netdev["mac"].lower(): port for port in ports if port.netdev.get("mac")}
    findings = []
    reported: set[tuple[str, str]] = set()
    for node, observed in nodes.items():
        for entry in observed["neighbours"]:
            owner, answering = owner_of.get(entry["ip"]), by_mac.get(entry["mac"])
            if owner is None or answering is None or owner.node != answering.node:
                continue
            if owner.port["netdev"] != answering.port["netdev"] and (owner.node, owner.subject) not in reported:
                reported.add((owner.node, owner.subject))
                findings.append(
                    Finding(
                        id="rail_crossed_arp",
                        severity="warning",
                        node=owner.node,
                        subject=owner.subject,
                        evidence=f"{node} reaches {entry['ip']} by {entry['mac']}, which is {answering.port['netdev']} "
                        f"({answering.subject}) and not {owner.port['netdev']}",
                        expected=f"{owner.netdev['mac']} of {owner.port['netdev']}",
                        cause="interfaces of the node answer ARP for each other, so one rail carries two rails' traffic",
                        fix="sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2; "
                        "ip neighbour flush all on its peers",
                    )
                )
    return findings


# ---- cabling


def _cabling(ports: t.Iterable[Port], rules: t.Sequence[t.Mapping[str, t.Any]]) -> list[Finding]:
    """Ports at another switch than the map says. rules: [{rail, switch, node, switch_port}], shell patterns; first match."""
    findings = []
    unknown: list[Port] = []
    for port in ports:
        rule = next((rule for rule in rules if _applies(rule, port)), None)
        if rule is None or not port.active:
            continue
        if not port.port.get("peer"):
            unknown.append(port)
            continue
        peer = port.port["peer"]
        wanted = [str(rule.get("switch") or "*"), str(rule.get("switch_port") or "*")]
        have = [str(peer["switch"]), str(peer["port"])]
        if not all(map(fnmatch.fnmatchcase, have, wanted)):
            findings.append(_wrong_cable(port, peer["by"], have, wanted))
    return findings + _unknown_cables(unknown)


def _wrong_cable(port: Port, by: str, have: t.Sequence[str], wanted: t.Sequence[str]) -> Finding:
    return Finding(
        id="rail_cabling",
        severity="error",
        node=port.node,
        subject=port.subject,
        evidence=f"{by}: the cable leads to {have[0]} port {have[1]}",
        expected=f"switch {wanted[0]}" + ("" if wanted[1] == "*" else f" port {wanted[1]}") + " (rdma_cabling)",
        cause="a cable is in the wrong switch, or two are swapped",
        fix=f"move the cable of {port.subject} at {port.node}, or correct rdma_cabling",
    )


def _unknown_cables(ports: t.Sequence[Port]) -> list[Finding]:
    """A map was given and nothing tells where these cables lead: not proven is not right."""
    if not ports:
        return []
    nodes = sorted({port.node for port in ports})
    tool = "iblinkinfo" if ports[0].port["link_layer"] == "InfiniBand" else "lldpcli"
    return [
        Finding(
            id="rail_cabling_unknown",
            severity="warning",
            node=nodes[0] if len(nodes) == 1 else "",
            subject="cabling",
            evidence=f"{tool} names no neighbour of {len(ports)} port(s) on {listed(nodes)}",
            expected="the switch at the other end, to hold it against rdma_cabling",
            cause="the tool is missing or needs root, or the switch sends no LLDP",
            fix=f"install {'infiniband-diags' if tool == 'iblinkinfo' else 'lldpd, and enable LLDP on the switches'}",
        )
    ]


def _applies(rule: t.Mapping[str, t.Any], port: Port) -> bool:
    return fnmatch.fnmatchcase(port.rail, str(rule.get("rail") or "*")) and fnmatch.fnmatchcase(
        port.node, str(rule.get("node") or "*")
    )
