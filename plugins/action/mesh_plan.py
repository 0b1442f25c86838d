# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of mesh_plan: walks what the nodes showed once, and plans who probes whom."""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import launch_nodes
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.mesh_cells import Thresholds, suspects
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.mesh_plan import (
    Candidate,
    Limits,
    plan_again,
    plan_mesh,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.settings import SettingsReader

FACTS, RDMA, RESPONDER = "__node_facts_observed", "__rdma_observed", "__diagnose_responder"
MESH = "__diagnose_mesh_observed"

#: what the inventory says of the way between nodes, as launch_nodes reads it
ADDRESS_VARIABLES = (
    "ansible_host",
    *(f"{role}_{key}" for role in ("launch_trust", "gpufabric_control") for key in ("address", "port")),
)


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(
        {
            "full_mesh_nodes",
            "sampled_rounds",
            "bandwidth_rounds",
            "passes",
            "budget_s",
            "respect_busy",
            "plans",
            "thresholds",
        }
    )

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        _unused, arguments = self.validate_argument_spec(
            argument_spec={
                "full_mesh_nodes": {"type": "int", "default": Limits.full_mesh_nodes},
                "sampled_rounds": {"type": "int", "default": Limits.sampled_rounds},
                "bandwidth_rounds": {"type": "int", "default": Limits.bandwidth_rounds},
                "passes": {"type": "int", "default": Limits.passes},
                "budget_s": {"type": "float", "default": Limits.budget_s},
                "respect_busy": {"type": "bool", "default": True},
                "plans": {"type": "dict", "default": {}},
                "thresholds": {"type": "dict", "default": {}},
            }
        )
        plans, thresholds = arguments.pop("plans"), arguments.pop("thresholds")
        respect_busy = arguments.pop("respect_busy")
        task_vars = task_vars or {}
        hostvars = task_vars["hostvars"]
        hosts = [host for host in task_vars["ansible_play_hosts_all"] if host != "localhost"]
        raw = {host: hostvars.raw_get(host) for host in hosts}
        if plans:
            meshes = {host: raw[host][MESH]["mesh"] for host in hosts if "mesh" in raw[host].get(MESH, {})}
            again = plan_again(plans, suspects(meshes, Thresholds(**{k: float(v) for k, v in thresholds.items()})))
            result.update(changed=False, nodes=again, tokens={})
            return result
        facts = {host: raw[host].get(FACTS, {}).get("observed", {}) for host in hosts}
        variables = {
            host: {
                FACTS: {**facts[host], **raw[host].get(FACTS, {})},
                **{name: hostvars[host][name] for name in ADDRESS_VARIABLES if name in raw[host]},
            }
            for host in hosts
        }
        alive = set(task_vars["ansible_play_hosts"])
        chosen = launch_nodes.plan(hosts, alive, variables, {"respect_busy": False})
        reader = SettingsReader(self._loader, self._templar, hostvars, task_vars)
        candidates = [
            Candidate(
                node=node,
                facts=facts[node.name],
                rdma=raw[node.name].get(RDMA, {}).get("observed"),
                rdma_settings=reader.read("rdma", node.name),
                responder=raw[node.name].get(RESPONDER) or {},
                busy=str(facts[node.name].get("busy_why", "")) if respect_busy else "",
            )
            for node in chosen.nodes
        ]
        limits = Limits(**arguments)
        plans = plan_mesh(candidates, {entry["node"]: entry["why"] for entry in chosen.left_out}, limits)
        result.update(
            changed=False,
            nodes=plans,
            tokens={c.node.name: c.responder["token"] for c in candidates if "token" in c.responder},
        )
        return result
