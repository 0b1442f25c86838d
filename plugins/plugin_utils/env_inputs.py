# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From what the roles registered on the nodes to what resolve_env.resolve_fleet() takes."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_roce_qos import Goal, judge_roce_qos
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.select_hcas import select_hcas
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.settings import group_key

Observation = t.Mapping[str, t.Any]

#: {setting of a resolution: variable of the role}
SETTINGS = {
    "mode": "nccl_env_validation",
    "keep_debug": "nccl_env_keep_debug",
    "nccl_version": "nccl_env_nccl_version",
    "control_network": "nccl_env_control_network",
    "fabric_network": "nccl_env_fabric_network",
    "hcas": "nccl_env_hcas",
    "traffic_class": "nccl_env_traffic_class",
    "rail_only": "nccl_env_rail_only",
}

#: findings of roce_qos after which the traffic class cannot be relied on
LOSSY = frozenset(f"roce_qos_{what}" for what in ("unknown", "trust", "dscp", "pfc", "pfc_unknown"))

#: nodes to whose result the findings about the whole fleet are added: one may be lost, three hardly
WITNESSES = 3


def fleet_inputs(
    observed: t.Mapping[str, Observation],
    facts: t.Mapping[str, Observation],
    rdma: t.Mapping[str, Observation],
    qos: t.Mapping[str, Observation],
    settings: t.Mapping[str, Observation],
    rdma_settings: t.Mapping[str, Observation],
    qos_settings: t.Mapping[str, Observation],
) -> dict[str, dict[str, t.Any]]:
    """{node: what resolve_fleet() takes of it}.

    observed: nccl_env_info's ``observed``; facts: node_info's; rdma: hca_info's, where the role rdma ran; qos: roce_qos_info's;
    settings, rdma_settings, qos_settings: the public variables of the roles nccl_env, rdma and roce_qos in force on each node.
    """
    hardware = {node: rdma.get(node) or observed[node].get("rdma") for node in observed}
    classes = _traffic_classes(qos, qos_settings)
    selected = _selected({node: data for node, data in hardware.items() if data}, rdma_settings)
    return {
        node: {
            "hcas": (hardware[node] or {}).get("hcas"),
            "selected": selected.get(node),
            "addresses": (facts.get(node) or {}).get("addresses", {}),
            "nccl_version": (seen.get("library") or {}).get("version", ""),
            "library_names": seen.get("library_names"),
            "site": _site(seen, settings[node]),
            "role": settings[node].get("nccl_env_node_role"),
            "traffic_class": classes.get(node),
            "profiles": settings[node].get("nccl_env_profiles"),
            "overrides": settings[node].get("nccl_env_variables"),
            "settings": {key: settings[node].get(variable) for key, variable in SETTINGS.items()},
        }
        for node, seen in observed.items()
    }


def _site(seen: Observation, settings: Observation) -> dict[str, str]:
    """The vendor's variables: while the file is not taken over, they hold on this node anyway."""
    site = seen.get("site") or {}
    return {name: value for name, value in (site.get("variables") or {}).items() if name.startswith("NCCL_")}


def _selected(
    hardware: t.Mapping[str, Observation], rdma_settings: t.Mapping[str, Observation]
) -> dict[str, list[str]]:
    """{node: compute ports as device:port}, chosen over nodes with equal settings at a time, as the role rdma does."""
    groups: dict[str, dict[str, Observation]] = {}
    for node, data in hardware.items():
        groups.setdefault(group_key(rdma_settings[node]), {})[node] = data
    found = {}
    for members in groups.values():
        chosen = select_hcas(members, rdma_settings[next(iter(members))])
        for node, ports in chosen.compute.items():
            found[node] = [f"{port.hca['name']}:{port.port['port']}" for port in ports]
    return found


def _traffic_classes(qos: t.Mapping[str, Observation], qos_settings: t.Mapping[str, Observation]) -> dict[str, int]:
    """{node: the traffic class byte} of nodes whose every interface carries it without loss, as roce_qos judges."""
    found = {}
    for node, seen in qos.items():
        judged = judge_roce_qos({node: {"observed": seen}}, qos_settings[node])
        if seen.get("interfaces") and not any(finding.id in LOSSY for finding in judged):
            found[node] = Goal.of(qos_settings[node]).traffic_class
    return found


def for_node(result: t.Mapping[str, t.Any], name: str) -> dict[str, t.Any]:
    """One node's part of a resolution with its findings; those about all nodes go with the first few."""
    shared = name in list(result["nodes"])[:WITNESSES]
    findings = [f for f in result["findings"] if f["node"] == name or (shared and not f["node"])]
    return {**result["nodes"][name], "findings": findings}
