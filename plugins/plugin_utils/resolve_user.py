# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A user's values, held against the node that they are for."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import resolve_rdma, resolve_sockets
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_names import SOURCE
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_value import nccl_integer
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.node_env import HARDWARE, USER, Work
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_rdma import AUTOMATIC_SINCE


def add_user_value(work: Work, name: str, value: str) -> None:
    """Write one value that passed validate(), as this node needs it: exact where it is a list, checked where it can be."""
    before = work.env.variables.get(name)
    if before and before.value != value:
        work.env.take_away(name, f"{USER} has {value}")
    adjust = _ADJUSTMENTS.get(name)
    final = adjust(work, name, value) if adjust else value
    if final is not None:
        work.set(name, final, USER, "as given" if final == value else f"given as {value}, made exact")


def _hcas(work: Work, name: str, value: str) -> str | None:
    if work.is_pointless(work.catalogue.variables[name]):
        return value
    everything = None if work.node.hcas is None else resolve_rdma.ports_of(work.node.hcas, active_only=False)
    made = resolve_rdma.make_exact(value, everything)
    if made.absent:
        present = ", ".join(sorted({port.device for port in everything or ()})) or "none"
        work.finding(
            "nccl_hca_absent",
            work.wrong,
            name,
            f"{name}={value}: {', '.join(made.absent)} matches no HCA of this node, which has {present}",
            expected="HCAs that the node has; without this variable the role resolves them on each node",
            cause="NCCL silently uses what is left of the list, or TCP sockets if nothing is",
            fix=f"remove {name} from {SOURCE}",
        )
    if not made.value:
        work.env.drop(name, value, USER, "matches no HCA of this node")
        return None
    if made.was_prefix:
        takes = f", which takes {', '.join(made.widened)} too" if made.widened else ""
        work.finding(
            "nccl_hca_prefix",
            "warning",
            name,
            f"{name}={value} matches by prefix{takes}; it is written as {made.value}",
            expected="a list that begins with =, such as " + made.value,
            cause="NCCL takes every HCA whose name begins with an entry: mlx5_1 also takes mlx5_10 to mlx5_19",
            fix=f"remove {name} from {SOURCE}: the role resolves it on each node",
        )
    return made.value


def _gid_index(work: Work, name: str, value: str) -> str | None:
    index = nccl_integer(value)
    ports = [port for port in work.selected or () if port.roce]
    if index is None or index < 0 or work.is_pointless(work.catalogue.variables[name]):
        return value
    wrong = []
    for port in ports:
        there, meant = port.at(index), port.intended(work.settings.fabric_network)
        if meant is not None and (there is None or (there.ipv4, there.is_v2) != (meant.ipv4, True)):
            wrong.append(f"{port} has {there or 'no GID'} at {index}, and {meant} at {meant.index}")
    if wrong:
        work.finding(
            "nccl_gid_index_wrong",
            work.wrong,
            name,
            f"{name}={value} is wrong on this node: {'; '.join(wrong)}",
            expected=_gid_advice(work),
            cause=work.catalogue.variables[name].advice,
            fix=f"remove {name} from {SOURCE}: the role resolves it on each node",
        )
        work.env.drop(name, value, USER, wrong[0])
        choice = work.gid_choice()
        for other, (resolved, reason) in choice.variables.items():
            work.set(other, resolved, HARDWARE, reason)
        return None
    seen = "it fits every compute HCA here today" if ports else "no GID table was there to check it against"
    work.finding(
        "nccl_gid_index_fixed",
        "warning",
        name,
        f"{name}={value} is fixed for all nodes; {seen}",
        expected=_gid_advice(work),
        cause=work.catalogue.variables[name].advice,
        fix=f"remove {name} from {SOURCE}",
    )
    return value


def _gid_advice(work: Work) -> str:
    if work.node.version >= AUTOMATIC_SINCE:
        return f"no such setting: NCCL {work.env.version} finds the GID itself, as every release since 2.21 does"
    return "an index that the role resolves on each node from its GID table"


def _traffic_class(work: Work, name: str, value: str) -> str | None:
    number, verified = nccl_integer(value), work.node.traffic_class
    if number is None or number in (-1, verified) or work.is_pointless(work.catalogue.variables[name]):
        return value
    found = "no QoS was verified on this node" if verified is None else f"the QoS verified on this node is {verified}"
    work.finding(
        "nccl_traffic_class_unverified",
        "warning",
        name,
        f"{name}={value} is DSCP {number >> 2} with ECN bits {number & 3}; {found}",
        expected="the traffic class that HCAs and switches carry without loss",
        cause=work.catalogue.variables[name].advice,
        fix="run the role roce_qos, which verifies DSCP, priority and PFC, before this one",
    )
    return value


def _interfaces(work: Work, name: str, value: str) -> str | None:
    if not work.node.addresses:
        return value
    absent = resolve_sockets.unmatched(value, work.node.addresses)
    if absent and work.node.role == "compute":
        present = ", ".join(sorted(n for n, assigned in work.node.addresses.items() if assigned))
        work.finding(
            "nccl_interface_absent",
            work.wrong,
            name,
            f"{name}={value}: {', '.join(absent)} matches no interface of this node, which has {present}",
            expected="interfaces that every node has, or nccl_env_control_network with the network that is meant",
            cause="ranks here fail with 'no socket interface found', or others fail to reach them",
            fix=f"remove {name} from {SOURCE}, and set nccl_env_control_network",
        )
        if len(absent) == len(value.lstrip("^=").split(",")):
            work.env.drop(name, value, USER, "matches no interface of this node")
            return None
    return resolve_sockets.make_exact(value, work.node.addresses)


#: variables whose value depends on the node
_ADJUSTMENTS: dict[str, t.Callable[[Work, str, str], str | None]] = {
    "NCCL_IB_HCA": _hcas,
    "NCCL_IB_GID_INDEX": _gid_index,
    "NCCL_IB_TC": _traffic_class,
    "NCCL_SOCKET_IFNAME": _interfaces,
}
