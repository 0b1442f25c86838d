# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What profiles want of one node, resolved from its hardware, addresses and verified quality of service."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import resolve_rdma, resolve_sockets
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_profiles import Setting
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.node_env import Work


def add_profile_setting(work: Work, setting: Setting) -> None:
    """Write, resolve or leave out what one setting of a profile wants."""
    origin = f"profile {setting.profile}"
    if setting.leave:
        if setting.name not in work.node.overrides:
            work.env.drop(setting.name, setting.asked, origin, setting.reason)
        return
    if setting.source:
        _RESOLVERS[setting.source](work, setting, origin)
        return
    variable = work.catalogue.variables[setting.name]
    if not variable.is_in(work.node.version):
        work.env.drop(setting.name, setting.value, origin, f"NCCL {work.env.version} does not have it")
    elif variable.default(work.node.version)[0] == setting.value:
        work.env.drop(setting.name, setting.value, origin, f"the default of NCCL {work.env.version}")
    else:
        work.set(setting.name, setting.value, origin, setting.reason)


def _hcas(work: Work, setting: Setting, origin: str) -> None:
    if not work.selected:
        why = "the HCAs were not observed" if work.selected is None else "no compute HCA on this node"
        work.env.drop(setting.name, "", origin, why)
        return
    listed = ", ".join(str(port) for port in work.selected)
    work.set(setting.name, resolve_rdma.exact(work.selected), origin, f"{setting.reason}: {listed}")


def _gids(work: Work, setting: Setting, origin: str) -> None:
    if not work.selected:
        work.env.drop(setting.name, "", origin, "no HCA whose GID table could be read")
        return
    if setting.name in work.checked.kept:
        return
    choice = work.gid_choice()
    if choice.problem:
        work.env.drop(setting.name, "", origin, choice.problem)
        work.finding(
            "nccl_gid_unresolved",
            "warning",
            setting.name,
            choice.problem,
            expected="one RoCE v2 GID with an IPv4 address on every compute HCA",
            cause="without it RoCE packets leave with the wrong source address, and connections time out",
            fix=choice.fix,
        )
    elif not choice.variables:
        work.env.drop(setting.name, "", origin, choice.reason)
    for name, (value, reason) in choice.variables.items():
        work.set(name, value, origin, reason)


def _control_network(work: Work, setting: Setting, origin: str) -> None:
    network = work.settings.control_network
    if network is None:
        work.env.drop(setting.name, "", origin, "nccl_env_control_network is not set: NCCL chooses the interface")
        return
    found = resolve_sockets.interfaces_in(network, work.node.addresses)
    if found:
        more = " (several: NCCL takes them in this order)" if len(found) > 1 else ""
        work.set(setting.name, f"={','.join(found)}", origin, f"has an address in {network}{more}")
        return
    work.env.drop(setting.name, "", origin, f"no interface has an address in {network}")
    if setting.name in work.checked.kept or work.node.role != "compute":
        return
    work.finding(
        "nccl_control_interface_absent",
        "error",
        setting.name,
        f"no interface of this node has an address in {network}",
        expected="an address in nccl_env_control_network on every node",
        cause="ranks here would bootstrap over an interface that the others cannot reach",
        fix=f"give the node an address in {network}, or correct nccl_env_control_network",
    )


def _traffic_class(work: Work, setting: Setting, origin: str) -> None:
    value = work.settings.traffic_class if work.settings.traffic_class is not None else work.node.traffic_class
    if value is None:
        work.env.drop(setting.name, "", origin, "no QoS was verified: set nccl_env_traffic_class, or run roce_qos")
    elif value == 0:
        work.env.drop(setting.name, "0", origin, f"the default of NCCL {work.env.version}")
    else:
        work.set(setting.name, str(value), origin, f"{setting.reason}: DSCP {value >> 2}")


def _rails(work: Work, setting: Setting, origin: str) -> None:
    if work.settings.rail_only:
        work.set(setting.name, "0", origin, f"nccl_env_rail_only: {setting.reason}")


#: what a profile's setting is resolved from, and by whom
_RESOLVERS: dict[str, t.Callable[[Work, Setting, str], None]] = {
    "hcas": _hcas,
    "gids": _gids,
    "control_network": _control_network,
    "traffic_class": _traffic_class,
    "rails": _rails,
}
