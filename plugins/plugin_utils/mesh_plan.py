# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who probes whom in a mesh, by which paths, and how long that may take. Pure.

Up to a size every node probes every other one; above it, a few, by the circle method: each node is then probed by as many as
it probes itself, and no two have the same partners. Bandwidth takes both nodes for itself, so it is measured with a few partners.
"""

from __future__ import annotations

import collections
import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.launch_nodes import LaunchNode
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import majority
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.pairing import circle_round, full_rounds
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.requirements import lazy
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_rdma import Gid, ports_of
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.select_hcas import Port, select_hcas

if t.TYPE_CHECKING:
    import netaddr
else:
    netaddr = lazy("netaddr")

#: how often a suspect bandwidth is measured again
SECOND_LOOK = 2


@dataclasses.dataclass(frozen=True)
class Limits:
    """full_mesh_nodes: up to so many nodes everyone probes everyone; sampled_rounds: partners of each node above that;
    bandwidth_rounds: partners of each node for bandwidth; passes: how often each bandwidth is measured; budget_s: for
    one node's probes."""

    full_mesh_nodes: int = 32
    sampled_rounds: int = 8
    bandwidth_rounds: int = 3
    passes: int = 1
    budget_s: float = 240.0


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One node that may take part. rdma: hca_info's observation, None where there is none; responder: what fabric_probe
    returned at its start, empty where it did not start; busy: why no load may be put on it, "" where it may."""

    node: LaunchNode
    facts: t.Mapping[str, t.Any]
    rdma: t.Mapping[str, t.Any] | None
    rdma_settings: t.Mapping[str, t.Any]
    responder: t.Mapping[str, t.Any]
    busy: str = ""


def plan_mesh(
    candidates: t.Sequence[Candidate], left_out: t.Mapping[str, str], limits: Limits
) -> dict[str, dict[str, t.Any]]:
    """{node: its part of the plan}, as module_utils/_probe_mesh.py carries it out; {"left_out": why} for the others.

    A part: node, hostname, port (of its own responder), control {address, netdev}, rails {rail: {device, port, gid_index,
    netdev, address, mtu, link_layer, up}}, rdma (whether the tools are there), passes, peers. A peer: node, hostname, port,
    control, rails, rdma, load (whether bandwidth is measured).
    """
    started = [c for c in candidates if c.responder.get("port")]
    plans: dict[str, dict[str, t.Any]] = {node: {"left_out": why} for node, why in left_out.items()}
    for candidate in candidates:
        if candidate not in started:
            why = str(candidate.responder.get("msg") or "its responder did not start")
            plans[candidate.node.name] = {"left_out": why}
    rails = rails_of(started)
    ends = {c.node.name: _end(c, rails[c.node.name]) for c in started}
    names = list(ends)
    partners = _partners(
        names, limits.sampled_rounds if len(names) > limits.full_mesh_nodes else full_rounds(len(names))
    )
    loaded = _partners(names, limits.bandwidth_rounds)
    busy = {c.node.name for c in started if c.busy}
    peers = {name: {key: value for key, value in end.items() if key != "addresses"} for name, end in ends.items()}
    for name in names:
        plans[name] = {
            **ends[name],
            "passes": limits.passes,
            "peers": [
                {**peers[peer], "load": peer in loaded[name] and not {name, peer} & busy} for peer in partners[name]
            ],
        }
        if len(names) == 1:
            plans[name]["left_out"] = "it is the only node"
    return plans


def plan_again(
    plans: t.Mapping[str, t.Mapping[str, t.Any]], suspects: t.Mapping[str, t.Mapping[str, t.Sequence[str]]]
) -> dict[str, dict[str, t.Any]]:
    """{node: its part of a second look, of SECOND_LOOK passes}: what mesh_cells.suspects() names, and no node without any."""
    return {
        node: {
            **plans[node],
            "passes": SECOND_LOOK,
            "peers": [
                {**peer, "only": list(suspected[peer["node"]]), "load": True}
                for peer in plans[node]["peers"]
                if peer["node"] in suspected
            ],
        }
        for node, suspected in suspects.items()
    }


def _partners(names: t.Sequence[str], rounds: int) -> dict[str, list[str]]:
    """{name: its partners in the order of the rounds}; a round more than there are begins again and adds nobody."""
    met: dict[str, dict[str, None]] = {name: {} for name in names}
    for number in range(min(rounds, full_rounds(len(names)))):
        for one, other in circle_round(names, number):
            met[one][other] = None
            met[other][one] = None
    return {name: list(partners) for name, partners in met.items()}


def _end(candidate: Candidate, rails: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    node = candidate.node
    tools = ((candidate.rdma or {}).get("stack") or {}).get("tools") or {}
    netdev = next(
        (
            name
            for network, name in node.networks.items()
            if netaddr.IPAddress(node.address) in netaddr.IPNetwork(network)
        ),
        "",
    )
    return {
        "node": node.name,
        "hostname": node.hostname or node.name,
        "port": candidate.responder["port"],
        "control": {"address": node.address, "netdev": netdev},
        "rails": rails,
        "rdma": bool(tools.get("ib_write_bw")),
        "addresses": [
            address.split("/")[0]
            for netdev, entries in sorted(candidate.facts.get("addresses", {}).items())
            for address in entries
            if netdev != "lo"
        ],
    }


def rails_of(candidates: t.Sequence[Candidate]) -> dict[str, dict[str, dict[str, t.Any]]]:
    """{node: {rail: its end}}: the compute ports, as the role rdma chooses them; without any HCA, the networks that nodes share."""
    groups: dict[str, list[Candidate]] = collections.defaultdict(list)
    for candidate in candidates:
        groups[repr(sorted(candidate.rdma_settings.items(), key=str))].append(candidate)
    found: dict[str, dict[str, dict[str, t.Any]]] = {c.node.name: {} for c in candidates}
    for members in groups.values():
        observed = {c.node.name: c.rdma for c in members if c.rdma}
        selection = select_hcas(observed, members[0].rdma_settings)
        for name, ports in selection.compute.items():
            found[name] = {port.rail: _rail_end(port) for port in ports}
    if not any(found.values()):
        found = _shared_networks(candidates)
    _agree_on_mtu(found, {c.node.name: c.rdma_settings for c in candidates})
    return found


def _rail_end(port: Port) -> dict[str, t.Any]:
    gid = _gid(port)
    address = gid.ipv4 if gid and gid.ipv4 else port.addresses[0].split("/")[0] if port.addresses else ""
    return {
        "device": port.hca["name"],
        "port": port.port["port"],
        "gid_index": gid.index if gid and port.ethernet else None,
        "netdev": port.port["netdev"],
        "address": address,
        "own_mtu": port.netdev.get("mtu"),
        "link_layer": port.port["link_layer"],
        "rate_gbps": port.port["rate_gbps"],
        "virtual": port.hca["virtual"],
        "up": port.active,
    }


def _gid(port: Port) -> Gid | None:
    """The GID that traffic of this port should leave by."""
    known = ports_of([{"name": port.hca["name"], "ports": [port.port]}], active_only=False)
    return known[0].intended() if known else None


def _shared_networks(candidates: t.Sequence[Candidate]) -> dict[str, dict[str, dict[str, t.Any]]]:
    """Nodes without HCAs: a rail is a network, other than the control network, in which at least two have an address."""
    members: dict[str, list[tuple[Candidate, str]]] = collections.defaultdict(list)
    for candidate in candidates:
        for network, netdev in candidate.node.networks.items():
            if netaddr.IPAddress(candidate.node.address) not in netaddr.IPNetwork(network):
                members[network].append((candidate, netdev))
    found: dict[str, dict[str, dict[str, t.Any]]] = {c.node.name: {} for c in candidates}
    for network, having in members.items():
        addresses = {c.node.name: _address_in(c, network) for c, _unused in having}
        # One address on several nodes is that of a NAT or a bridge of each, and no way between them.
        if len(having) > 1 and len(set(addresses.values())) == len(having):
            for candidate, netdev in having:
                name = candidate.node.name
                found[name][network] = {"netdev": netdev, "address": addresses[name], "own_mtu": None, "up": True}
    return found


def _address_in(candidate: Candidate, network: str) -> str:
    every = (address for entries in candidate.facts.get("addresses", {}).values() for address in entries)
    return str(next(a.split("/")[0] for a in every if str(netaddr.IPNetwork(a).cidr) == network))


def _agree_on_mtu(found: t.Mapping[str, dict[str, dict[str, t.Any]]], settings: t.Mapping[str, t.Any]) -> None:
    """Set ``mtu`` of every end: what the rail should have, by setting, else by majority; 0 (the interface's own) without one."""
    seen: dict[str, list[int]] = collections.defaultdict(list)
    for rails in found.values():
        for rail, end in rails.items():
            if end["own_mtu"]:
                seen[rail].append(end["own_mtu"])
    usual = {rail: most[0] for rail, values in seen.items() if (most := majority(values))}
    for name, rails in found.items():
        for rail, end in rails.items():
            wanted = int(settings[name].get("rdma_expected_mtu") or 0)
            ethernet = end.get("link_layer", "Ethernet") == "Ethernet"
            end["mtu"] = (wanted if ethernet else 0) or usual.get(rail, 0)
