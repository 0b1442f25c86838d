# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which nodes a launch may use, from where it starts, and by which addresses it reaches them."""

from __future__ import annotations

import dataclasses
import datetime
import ipaddress
import secrets
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.requirements import lazy

if t.TYPE_CHECKING:
    import netaddr
else:
    netaddr = lazy("netaddr")


Variables = t.Mapping[str, t.Any]

#: by which a launch on one machine alone reaches it
LOOPBACK = "127.0.0.1"
#: sshd reads no longer line of authorized_keys than 8 KiB in old versions; the key and the other options need some of it
SOURCES_LIMIT = 6000


@dataclasses.dataclass(frozen=True)
class LaunchNode:
    """One node of a launch. address: on the control network; networks: {network in CIDR form: interface}."""

    name: str
    address: str
    port: int
    host_keys: tuple[str, ...]
    machine: str
    hostname: str
    networks: t.Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class LaunchNodes:
    """needed: whether the launch crosses machines, so that trust between them is needed.

    sources: for sshd's from=; control_networks: in CIDR form; left_out: [{node, why}].
    """

    run_id: str
    launcher: str
    nodes: tuple[LaunchNode, ...]
    left_out: tuple[t.Mapping[str, str], ...]
    sources: tuple[str, ...]
    control_networks: tuple[str, ...]
    needed: bool

    def as_dict(self) -> dict[str, t.Any]:
        result = dataclasses.asdict(self)
        result["names"] = [node.name for node in self.nodes]
        result["peers"] = [
            {"address": node.address, "port": node.port, "host_keys": list(node.host_keys)} for node in self.nodes
        ]
        return result


def new_run_id(now: datetime.datetime | None = None) -> str:
    """Sorts by time; short, because it is a part of Unix socket paths, which end after 107 bytes (unix(7))."""
    now = now or datetime.datetime.now(datetime.timezone.utc)
    return f"{now:%y%m%d%H%M%S}-{secrets.token_hex(3)}"


def plan(
    hosts: t.Sequence[str],
    alive: t.Collection[str],
    variables: t.Mapping[str, Variables],
    settings: Variables,
    run_id: str = "",
) -> LaunchNodes:
    """Choose nodes and launcher.

    hosts: all of the play; alive: those still in it; variables: {node: its variables}; settings: ``launcher`` (a node's
    name or ""), ``respect_busy``. A node that is gone, busy, or has no usable address is left out with a sentence.
    """
    nodes: list[LaunchNode] = []
    left_out: list[Variables] = []
    wanted = {host: str(_setting(variables[host], "address") or "") for host in hosts}
    answering = [variables[host] for host in hosts if host in alive]
    machines = {_machine(variables[host], host) for host in hosts if host in alive}
    shared = _shared_networks(answering)
    for host in hosts:
        facts = facts_of(variables[host])
        why = _unfit(host in alive, variables[host], bool(settings.get("respect_busy", True)))
        address = ""
        if not why and len(machines) == 1 and not wanted[host]:
            address = LOOPBACK
        elif not why:
            address = control_address(facts, wanted[host], str(variables[host].get("ansible_host", "")), shared)
        if not why and not address:
            why = _without_address(facts, wanted[host])
        if why:
            left_out.append({"node": host, "why": why})
            continue
        nodes.append(
            LaunchNode(
                name=host,
                address=address,
                port=int(_setting(variables[host], "port") or 22),
                host_keys=tuple(facts.get("ssh_host_keys", [])),
                machine=_machine(variables[host], host),
                hostname=str(facts.get("hostname", "")),
                networks=networks_of(facts),
            )
        )
    launcher = str(settings.get("launcher") or (nodes[0].name if nodes else ""))
    chosen = next((node for node in nodes if node.name == launcher), None)
    if nodes and chosen is None:
        why = next((entry["why"] for entry in left_out if entry["node"] == launcher), "it is no node of this play")
        raise ValueError(f"launch_trust_launcher is {launcher!r}, which cannot launch: {why}")
    launcher_facts = facts_of(variables[launcher]) if chosen else {}
    return LaunchNodes(
        run_id=run_id or new_run_id(),
        launcher=launcher,
        nodes=tuple(nodes),
        left_out=tuple(left_out),
        sources=sources([node.address for node in nodes], _global_addresses(launcher_facts)),
        control_networks=control_networks(nodes),
        needed=len({node.machine for node in nodes}) > 1,
    )


def _machine(variables: Variables, host: str) -> str:
    """The same for two names of one running machine. A container has its host's boot id, but a network of its own."""
    facts = facts_of(variables)
    return f"{facts.get('boot_id') or host} {sorted(networks_of(facts).items())} {_global_addresses(facts)}"


def _setting(variables: Variables, name: str) -> t.Any:
    """A node's own knob: the role's name for it, else the collection's."""
    return variables.get(f"launch_trust_{name}") or variables.get(f"gpufabric_control_{name}")


def facts_of(variables: Variables) -> Variables:
    """What the role node_facts observed on the node; empty for a node that did not answer it."""
    return t.cast(Variables, variables.get("__node_facts_observed", {}).get("observed", {}))


def _unfit(alive: bool, variables: Variables, respect_busy: bool) -> str:
    facts = facts_of(variables)
    if not alive or not facts:
        said = str(variables.get("__node_facts_observed", {}).get("msg", "")).strip().splitlines()
        return f"it did not answer: {said[0]}" if said else "it did not answer or left the run earlier"
    if respect_busy and facts.get("busy"):
        return f"it is busy: {facts.get('busy_why', '')}"
    return ""


def _interfaces(facts: Variables) -> t.Iterator[tuple[str, ipaddress.IPv4Interface]]:
    """(interface, IPv4 address with its network): Open MPI's own connections are made over IPv4."""
    for name, entries in facts.get("addresses", {}).items():
        for text in entries:
            try:
                interface = ipaddress.ip_interface(text)
            except ValueError:
                continue
            if isinstance(interface, ipaddress.IPv4Interface) and not (
                interface.is_loopback or interface.is_link_local
            ):
                yield name, interface


def _global_addresses(facts: Variables) -> list[str]:
    return [str(interface.ip) for _unused, interface in _interfaces(facts)]


def networks_of(facts: Variables) -> dict[str, str]:
    """{network in CIDR form: interface} of a node."""
    return {str(interface.network): name for name, interface in _interfaces(facts)}


def _shared_networks(every: t.Sequence[Variables]) -> list[str]:
    """Networks by which nodes can meet, the one that most nodes are in first.

    An address that several machines have (each behind a NAT of its own) is none to meet by.
    """
    facts = [facts_of(variables) for variables in every]
    members: dict[str, set[tuple[str, str]]] = {}
    for number, each in enumerate(facts):
        for _unused, interface in _interfaces(each):
            machine = str(each.get("boot_id") or number)
            members.setdefault(str(interface.network), set()).add((machine, str(interface.ip)))
    meeting = {
        network: len({address for _unused, address in found})
        for network, found in members.items()
        if len({address for _unused, address in found}) >= len({machine for machine, _unused in found}) > 1
    }
    return sorted(meeting, key=lambda network: -meeting[network])


def control_address(facts: Variables, wanted: str, ansible_host: str, shared: t.Sequence[str]) -> str:
    """The address by which other nodes reach this one, "" where none can be told.

    In this order: the one that the inventory names; the one that Ansible connects to, if the node itself has it; the one
    in the network that most nodes share.
    """
    own = _global_addresses(facts)
    if wanted:
        return wanted if wanted in own else ""
    if ansible_host in own:
        return ansible_host
    by_network = {str(interface.network): str(interface.ip) for _unused, interface in _interfaces(facts)}
    meeting = next((by_network[network] for network in shared if network in by_network), "")
    return meeting or (own[0] if len(own) == 1 else "")


def _without_address(facts: Variables, wanted: str) -> str:
    """Why control_address() told none."""
    if not _global_addresses(facts):
        return (
            "it has no IPv4 address besides loopback and link-local ones, and Open MPI makes its connections over IPv4"
        )
    if not wanted:
        return "none of its addresses is one by which the other nodes reach it: set gpufabric_control_address for this node"
    try:
        ipaddress.IPv4Address(wanted)
    except ValueError:
        return f"gpufabric_control_address is {wanted}, and an IPv4 address of this node is expected"
    return f"gpufabric_control_address is {wanted}, which this node does not have"


def sources(addresses: t.Sequence[str], launcher: t.Sequence[str]) -> tuple[str, ...]:
    """For sshd's from=: exactly the cluster's own addresses, neighbours merged; where the line grew too long, the launcher's alone."""
    merged = _merged([*addresses, *launcher])
    return merged if len(",".join(merged)) <= SOURCES_LIMIT else _merged(launcher)


def _merged(addresses: t.Sequence[str]) -> tuple[str, ...]:
    networks = netaddr.cidr_merge([netaddr.IPNetwork(address) for address in addresses])
    return tuple(str(network.ip) if network.size == 1 else str(network) for network in networks)


def control_networks(nodes: t.Sequence[LaunchNode]) -> tuple[str, ...]:
    """The networks of the nodes' control addresses, in CIDR form."""
    found = {
        network
        for node in nodes
        for network in node.networks
        if netaddr.IPAddress(node.address) in netaddr.IPNetwork(network)
    }
    return tuple(str(network) for network in netaddr.cidr_merge(sorted(found)))
