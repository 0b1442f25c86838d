# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tells a group's compute ports from storage and front-end ports, by rule and never by a fixed list.

The rules vote over the whole group, a rail at a time: a port that is down, has lost its address or trained at half its
rate on one node is still a compute port there, because its peers on the same rail are.
"""

from __future__ import annotations

import collections
import dataclasses
import fnmatch
import functools
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_sysfs import natural
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.requirements import lazy

if t.TYPE_CHECKING:
    import netaddr
else:
    netaddr = lazy("netaddr")

Observation = t.Mapping[str, t.Any]
Settings = t.Mapping[str, t.Any]

ACTIVE = "ACTIVE"

#: relations to a GPU (see module_utils/_pci_path.py) that mean: below the same PCIe switches
BESIDE_A_GPU = ("PIX", "PXB")


@dataclasses.dataclass(frozen=True)
class Port:
    """One port of one node. rail: the name that its peers on other nodes share, e.g. ``mlx5_3`` or ``mlx5_3/2``."""

    node: str
    rail: str
    hca: Observation
    port: Observation
    netdev: Observation

    @property
    def subject(self) -> str:
        return f"{self.hca['name']} port {self.port['port']}"

    @property
    def active(self) -> bool:
        return bool(self.port["state"] == ACTIVE)

    @property
    def ethernet(self) -> bool:
        return bool(self.port["link_layer"] == "Ethernet")

    @property
    def roce(self) -> bool:
        """Whether the port speaks RoCE: Ethernet, and a channel adapter rather than iWARP (RNIC) or EFA."""
        return self.ethernet and str(self.hca.get("node_type", "1")).startswith("1")

    @property
    def addresses(self) -> list[str]:
        """Routable addresses of the interface with their prefix lengths."""
        return [a for a in self.netdev.get("addresses", []) if not is_link_local(a)]


@dataclasses.dataclass(frozen=True)
class Selection:
    """compute: {node: its compute ports}; left_out: {node: [(port, why it is none)]}; rails: the compute rails' names."""

    compute: t.Mapping[str, list[Port]]
    left_out: t.Mapping[str, list[tuple[Port, str]]]
    rails: t.Collection[str]


@functools.lru_cache(maxsize=65536)
def network(address: str) -> netaddr.IPNetwork:
    """An address with a prefix length, or a network; AddrFormatError where it is neither."""
    return netaddr.IPNetwork(address)


def is_link_local(address: str) -> bool:
    return address.startswith(("fe80", "169.254."))


def select_hcas(nodes: t.Mapping[str, Observation], settings: Settings) -> Selection:
    """Choose the compute ports of one group of like nodes.

    nodes: {node: hca_info's ``observed``}. Settings read: rdma_allowed_drivers, rdma_select_names,
    rdma_select_exclude_names (shell patterns over device names), rdma_select_link_layer, rdma_select_min_rate_gbps,
    rdma_select_subnets, rdma_select_gpu_affinity (auto, required, ignored). Rules that are not set don't limit; without
    any, the ports of the kind (link layer and rate) that carries most of the group's bandwidth are taken.
    """
    ports = [port for ports in ports_of(nodes).values() for port in ports]
    refused: dict[int, str] = {}
    candidates: list[Port] = []
    for port in ports:
        why = _refusal(port, settings)
        if why:
            refused[id(port)] = why
        else:
            candidates.append(port)
    candidates = _without_virtual_functions(candidates, refused)
    reasons = _rails_left_out(candidates, settings)
    compute: dict[str, list[Port]] = {node: [] for node in nodes}
    left_out: dict[str, list[tuple[Port, str]]] = {node: [] for node in nodes}
    for port in ports:
        why = refused.get(id(port)) or reasons.get(port.rail, "")
        if why:
            left_out[port.node].append((port, why))
        else:
            compute[port.node].append(port)
    rails = sorted({port.rail for chosen in compute.values() for port in chosen}, key=natural)
    return Selection(compute, left_out, rails)


def ports_of(nodes: t.Mapping[str, Observation]) -> dict[str, list[Port]]:
    """{node: all its ports, with their rails}."""
    names = _names_by_place(nodes)
    found: dict[str, list[Port]] = {}
    for node, observed in nodes.items():
        netdevs = observed["netdevs"]
        rail_names = _rail_names(observed["hcas"], names)
        found[node] = [
            Port(node, _rail(rail_names[hca["name"]], hca, port), hca, port, netdevs.get(port["netdev"], {}))
            for hca in observed["hcas"]
            for port in hca["ports"]
        ]
    return found


def _rail(name: str, hca: Observation, port: Observation) -> str:
    return name if len(hca["ports"]) == 1 else f"{name}/{port['port']}"


def _names_by_place(nodes: t.Mapping[str, Observation]) -> dict[str, str]:
    """{PCI address: the name that most nodes give the HCA there}, for addresses that at least half of the nodes have."""
    seen: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for observed in nodes.values():
        for hca in observed["hcas"]:
            if hca["pcie"]:
                seen[hca["pcie"]["address"]][hca["name"]] += 1
    return {place: count.most_common(1)[0][0] for place, count in seen.items() if count.total() * 2 >= len(nodes)}


def _rail_names(hcas: t.Sequence[Observation], by_place: t.Mapping[str, str]) -> dict[str, str]:
    """{own name: rail's name}. Places count where the node is built like its peers, else names do.

    The kernel numbers HCAs as it finds them: with one gone, those behind it take other names and keep their places.
    """
    places = {hca["name"]: hca["pcie"]["address"] for hca in hcas if hca["pcie"]}
    by_peers = {name: by_place[place] for name, place in places.items() if place in by_place}
    built_alike = len(by_peers) == len(hcas) and len(set(by_peers.values())) == len(hcas)
    return by_peers if built_alike else {hca["name"]: hca["name"] for hca in hcas}


def _refusal(port: Port, settings: Settings) -> str:
    """Why this port cannot be a compute port whatever its peers are, "" where it can."""
    allowed = settings.get("rdma_allowed_drivers") or ["mlx5_core"]
    driver = port.hca["driver"]
    if driver not in allowed and port.hca["rdma_driver"] not in allowed:
        return f"its driver is {driver or 'unknown'}, and rdma_allowed_drivers holds {', '.join(allowed)}"
    name = port.hca["name"]
    wanted = settings.get("rdma_select_names") or []
    if wanted and not any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted):
        return f"its name matches none of rdma_select_names ({', '.join(wanted)})"
    for pattern in settings.get("rdma_select_exclude_names") or []:
        if fnmatch.fnmatchcase(name, pattern):
            return f"its name matches {pattern} of rdma_select_exclude_names"
    return ""


def _without_virtual_functions(candidates: list[Port], refused: dict[int, str]) -> list[Port]:
    """Virtual functions beside their physical ones belong to virtual machines; alone (inside one) they count."""
    physical = {port.node for port in candidates if not port.hca["vf"]}
    kept = []
    for port in candidates:
        if port.hca["vf"] and port.node in physical:
            refused[id(port)] = "it is a virtual function, and the node has physical ones"
        else:
            kept.append(port)
    return kept


def _rails_left_out(candidates: t.Sequence[Port], settings: Settings) -> dict[str, str]:
    """{rail: why it is no compute rail}."""
    by_rail: dict[str, list[Port]] = collections.defaultdict(list)
    for port in candidates:
        by_rail[port.rail].append(port)
    kind = None if _has_rules(settings) else _kind(candidates)
    reasons = {}
    undecided = {}
    for rail, ports in by_rail.items():
        votes = [vote for vote in (_vote(port, settings, kind) for port in ports) if vote is not None]
        against = [why for why in votes if why]
        if not votes:
            undecided[rail] = ports
        elif len(against) * 2 > len(votes):
            reasons[rail] = collections.Counter(against).most_common(1)[0][0]
    chosen = [p for rail, ports in by_rail.items() if rail not in reasons and rail not in undecided for p in ports]
    if kind is not None:
        reasons = {rail: why for rail, why in reasons.items() if not _degraded(by_rail[rail], chosen, kind)}
    if not settings.get("rdma_select_names"):
        for rail, ports in undecided.items():
            why = _why_unused(ports, chosen)
            if why:
                reasons[rail] = why
    left = {rail: ports for rail, ports in by_rail.items() if rail not in reasons}
    return {**reasons, **_far_from_gpus(left, str(settings.get("rdma_select_gpu_affinity") or "auto"))}


def _has_rules(settings: Settings) -> bool:
    rules = ("names", "link_layer", "min_rate_gbps", "subnets")
    return any(settings.get(f"rdma_select_{rule}") for rule in rules)


def _kind(candidates: t.Iterable[Port]) -> tuple[str, float | None] | None:
    """(link layer, rate) of the active ports that together carry most, None where no port is active."""
    bandwidth: dict[tuple[str, float | None], float] = collections.defaultdict(float)
    for port in candidates:
        if port.active:
            bandwidth[port.port["link_layer"], port.port["rate_gbps"]] += port.port["rate_gbps"] or 0.0
    return max(bandwidth, key=lambda key: (bandwidth[key], key[0], key[1] or 0.0)) if bandwidth else None


def _vote(port: Port, settings: Settings, kind: tuple[str, float | None] | None) -> str | None:
    """What this port says about its rail: "" compute, a reason against, or None (down, without an address)."""
    if not port.active:
        return None
    layer, rate = port.port["link_layer"], port.port["rate_gbps"]
    if kind is not None:
        return (
            ""
            if (layer, rate) == kind
            else f"it is {layer} at {rate or 0:g} Gb/s beside {kind[0]} at {kind[1] or 0:g} Gb/s"
        )
    wanted = settings.get("rdma_select_link_layer")
    if wanted and layer != wanted:
        return f"its link layer is {layer}, and rdma_select_link_layer is {wanted}"
    minimum = float(settings.get("rdma_select_min_rate_gbps") or 0)
    if minimum and rate is not None and rate < minimum:
        return f"its rate is {rate:g} Gb/s, and rdma_select_min_rate_gbps is {minimum:g}"
    subnets = [network(subnet) for subnet in settings.get("rdma_select_subnets") or []]
    if not subnets:
        return ""
    if not port.addresses:
        return None
    inside = any(network(address).ip in subnet for address in port.addresses for subnet in subnets)
    return "" if inside else f"its address {port.addresses[0]} is in none of rdma_select_subnets"


def _degraded(ports: t.Sequence[Port], chosen: t.Sequence[Port], kind: tuple[str, float | None]) -> bool:
    """Whether a rail off the kind is one of its ports at a lower rate: same link layer and board, on a single node.

    A rail that has another rate on several nodes has it by design.
    """
    if len({port.node for port in ports}) > 1:
        return False
    boards = {port.hca["board_id"] for port in chosen if port.hca["board_id"]}
    return all(port.port["link_layer"] == kind[0] and port.hca["board_id"] in boards for port in ports)


def _why_unused(ports: t.Sequence[Port], chosen: t.Sequence[Port]) -> str:
    """Why a rail that says of itself on no node what it is for (down, without an address) is no compute rail.

    "" where it is one, dead everywhere: if it is built like the compute ports. But the second port of an adapter whose
    other port works is a spare if it is down on every node.
    """
    if not chosen:
        return ""
    if not any(_like(ports[0], port) for port in chosen):
        return "it is down or without an address on every node, and unlike the compute ports"
    working = {(port.node, _adapter(port)) for port in chosen if port.active}
    if all(not port.active and (port.node, _adapter(port)) in working for port in ports):
        return "it is down on every node, and the other port of its adapter works"
    return ""


def _like(one: Port, other: Port) -> bool:
    return all(one.hca[key] == other.hca[key] for key in ("driver", "board_id")) and (
        one.port["link_layer"] == other.port["link_layer"]
    )


def _adapter(port: Port) -> str:
    """The card: its functions differ in the last digit of the PCI address only."""
    return port.hca["pcie"]["address"].rpartition(".")[0] if port.hca["pcie"] else str(port.hca["name"])


def _far_from_gpus(by_rail: t.Mapping[str, list[Port]], affinity: str) -> dict[str, str]:
    """Rails that lie beside no GPU: left out if required, or (auto) if others do lie beside one."""
    if affinity == "ignored":
        return {}
    beside = {}
    for rail, ports in by_rail.items():
        relations = [(port.hca.get("gpu") or {}).get("relation") for port in ports]
        known = [relation for relation in relations if relation]
        if known:
            beside[rail] = sum(relation in BESIDE_A_GPU for relation in known) * 2 >= len(known)
    if affinity == "auto" and not any(beside.values()):
        return {}
    return {rail: "it lies below no PCIe switch of a GPU" for rail, near in beside.items() if not near}
