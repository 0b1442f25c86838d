# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is said of each test of the mesh: what is bad, why that may be by direction, and what to type."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.culprits import BOTH, IN, OUT


@dataclasses.dataclass(frozen=True)
class Text:
    """name: of the finding, mesh_<name>; bad, good: what a pair does; causes: {direction: why a node is at fault};
    of_host: whether one fault hits all paths of a node, whose subject then is host_subject; quantities: (number, format)."""

    name: str
    bad: str
    good: str
    expected: str
    causes: t.Mapping[str, str]
    fix: str
    shared_cause: str
    shared_fix: str
    severity: str = "error"
    of_host: bool = False
    host_subject: str = ""
    quantities: tuple[tuple[str, str], ...] = ()


TEXTS: dict[str, Text] = {
    "reach": Text(
        name="unreachable",
        bad="neither ping nor TCP gets an answer",
        good="it does",
        expected="an answer from every node on every path",
        causes={
            BOTH: "this end is cut off: its cable, switch port, VLAN, address or route, though the link may look up",
            OUT: "what this node sends does not arrive: its route, source address, or a rule on what leaves it",
            IN: "what is sent to this node does not arrive: its address, a wrong neighbour entry, or a firewall",
        },
        fix="on {node}: ip -s link show {netdev}; ip route get {peer_address} from {address}; ping -c 3 -I {netdev} {peer_address}; "
        "then its switch port",
        shared_cause="the switch, its VLAN, or the address plan of this path",
        shared_fix="ip route get ADDRESS on both ends; then VLAN and state of the switch ports",
        of_host=True,
        host_subject="all networks",
    ),
    "mtu": Text(
        name="mtu",
        bad="a packet as long as the rail's MTU, that may not be cut, does not pass, though short ones do",
        good="it passes",
        expected="one MTU from end to end",
        causes={
            BOTH: "this node's interface or switch port has a smaller MTU than the others",
            OUT: "this node's interface has a smaller MTU than the others",
            IN: "the way to this node, or its interface, has a smaller MTU than the others",
        },
        fix="on {node}: ip link show {netdev}; ip link set {netdev} mtu {mtu}, and the same in its network configuration; "
        "else the MTU of its switch port",
        shared_cause="the switch has a smaller MTU than the interfaces",
        shared_fix="raise the switch ports' MTU above the interfaces' by the headers (9216 for 9000)",
    ),
    "tcp": Text(
        name="tcp_blocked",
        bad="no TCP connection to a random high port can be opened, though ping passes",
        good="it can",
        expected="TCP to every port of the ephemeral range between all nodes: NCCL's bootstrap and sockets, MPI and perftest use them",
        causes={
            BOTH: "a firewall on this node or its switch port blocks high TCP ports in both directions",
            OUT: "a firewall on this node blocks outgoing TCP connections",
            IN: "a firewall on this node blocks incoming TCP connections to high ports",
        },
        fix="on {node}: nft list ruleset (iptables-save, firewall-cmd --list-all); then let the cluster's networks in: "
        "nft insert rule inet filter input ip saddr CLUSTER-NETWORK accept; firewall-cmd --zone=trusted --add-source=CLUSTER-NETWORK",
        shared_cause="a firewall or a network security group between the nodes",
        shared_fix="nft list ruleset on both; then security groups and the switches' access lists",
        of_host=True,
        host_subject="TCP high ports",
    ),
    "rdma": Text(
        name="rdma_blocked",
        bad="RDMA gets no answer, though ping and TCP pass",
        good="it does",
        expected="a ping-pong by ibv_rc_pingpong",
        causes={
            BOTH: "RoCE's UDP port 4791 is dropped at this node or its switch port, or its GID or partition key is wrong",
            OUT: "what this HCA sends does not arrive: its GID, or UDP port 4791 is dropped on the way",
            IN: "what is sent to this HCA does not arrive: its GID, or UDP port 4791 is dropped at this node",
        },
        fix="on {node}: nft list ruleset | grep -n 4791; show_gids {device}; rdma link show; "
        "then the access list of its switch port",
        shared_cause="UDP port 4791 is dropped on the switches, or (InfiniBand) there is no path record: the subnet manager, a partition",
        shared_fix="allow UDP port 4791; on InfiniBand: sminfo, ibtracert, and the partition keys",
    ),
    "loss": Text(
        name="loss",
        bad="packets are lost on an idle path",
        good="none are",
        expected="no loss",
        causes={
            BOTH: "this node's cable, transceiver, port or NIC loses packets",
            OUT: "this node's cable, transceiver, port or NIC loses packets",
            IN: "this node's cable, transceiver, port or NIC loses packets",
        },
        fix="on {node}: ethtool -S {netdev} | grep -iE 'err|drop|discard|crc'; mlxlink -d {device} -m -c; "
        "clean or change cable and transceiver; then the switch port",
        shared_cause="the switch or its uplinks",
        shared_fix="counters of both ends and of the switch ports: ethtool -S, mlxlink -c",
        quantities=(("loss_percent", "{:.1f} % lost"),),
    ),
    "latency": Text(
        name="latency",
        bad="the shortest round trip is many times longer",
        good="it is short",
        expected="about the same round trip on every path of a rail",
        causes={
            BOTH: "packets of this node take a detour, wait in a queue, or are held up in the host",
            OUT: "packets of this node take a detour, wait in a queue, or are held up in the host",
            IN: "packets to this node take a detour, wait in a queue, or are held up in the host",
        },
        fix="on {node}: tracepath -n {peer_address}; tc qdisc show dev {netdev}; ethtool -c {netdev}; cpupower frequency-info",
        shared_cause="the route between the nodes",
        shared_fix="tracepath -n ADDRESS on both; tc qdisc show",
        quantities=(("rtt_ms", "{:.2f} ms"),),
    ),
    "bandwidth": Text(
        name="slow",
        bad="bandwidth is far below the others'",
        good="it is as on other rails",
        expected="about the same bandwidth on every rail of a kind",
        causes={
            BOTH: "this node's link, PCIe slot, HCA or switch port carries less: a lower rate, a rate limit, errors, or a busy host",
            OUT: "what this node sends is held back: a rate limit, a queue discipline, its PCIe link",
            IN: "what is sent to this node is held back: its PCIe link, pauses (PFC) that it sends, its switch port",
        },
        fix="on {node}: ethtool {netdev}; tc -s qdisc show dev {netdev}; mlxlink -d {device} -c; lspci -vv | grep LnkSta; "
        "then the shaper of its switch port",
        shared_cause="the rail's switch or its uplinks",
        shared_fix="rates, shapers and pause counters of the switch",
        quantities=(("write_gbs", "RDMA write {:.4g} GB/s"), ("stream_gbs", "TCP {:.4g} GB/s")),
    ),
}
