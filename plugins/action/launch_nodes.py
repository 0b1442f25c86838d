# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of launch_nodes: walks all nodes' variables once."""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import launch_nodes


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset({"launcher", "respect_busy"})

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        _unused, arguments = self.validate_argument_spec(
            argument_spec={
                "launcher": {"type": "str", "default": ""},
                "respect_busy": {"type": "bool", "default": True},
            }
        )
        task_vars = task_vars or {}
        hosts = list(task_vars["ansible_play_hosts_all"])
        hostvars = task_vars["hostvars"]
        names = (
            "ansible_host",
            *(f"{role}_{key}" for role in ("launch_trust", "gpufabric_control") for key in ("address", "port")),
        )
        variables = {}
        for host in hosts:
            raw = hostvars.raw_get(host)
            own = {name: hostvars[host][name] for name in names if name in raw}
            variables[host] = {"__node_facts_observed": raw.get("__node_facts_observed", {}), **own}
        try:
            plan = launch_nodes.plan(hosts, set(task_vars["ansible_play_hosts"]), variables, arguments)
        except ValueError as error:
            result.update(failed=True, msg=str(error))
            return result
        result.update(changed=False, **plan.as_dict())
        return result
