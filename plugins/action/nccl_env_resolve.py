# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of nccl_env_resolve: walks all nodes once, and resolves the fleet in one call."""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.env_inputs import fleet_inputs, for_node
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_env import resolve_fleet
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.settings import SettingsReader
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.version import COLLECTION_VERSION

OBSERVED = "__nccl_env_before"
FACTS = "__node_facts_observed"
RDMA = "__rdma_observed"
QOS = "__roce_qos_observed"


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS: frozenset[str] = frozenset()

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        hostvars = task_vars["hostvars"]
        raw = {host: hostvars.raw_get(host) for host in task_vars.get("ansible_play_hosts_all", hostvars)}
        observed = _registered(raw, OBSERVED)
        reader = SettingsReader(self._loader, self._templar, hostvars, task_vars)
        inputs = fleet_inputs(
            observed,
            _registered(raw, FACTS),
            _registered(raw, RDMA),
            _registered(raw, QOS),
            {node: reader.read("nccl_env", node) for node in observed},
            {node: reader.read("rdma", node) for node in observed},
            {node: reader.read("roce_qos", node) for node in observed},
        )
        resolved = resolve_fleet(inputs, [], {}, {})
        result.update(
            changed=False,
            collection_version=COLLECTION_VERSION,
            nodes={node: for_node(resolved, node) for node in resolved["nodes"]},
        )
        return result


def _registered(raw: t.Mapping[str, t.Mapping[str, t.Any]], name: str) -> dict[str, t.Any]:
    """{node: ``observed`` of its registered result}, for nodes that answered."""
    results = {node: variables.get(name) for node, variables in raw.items()}
    return {node: result["observed"] for node, result in results.items() if result and "observed" in result}
