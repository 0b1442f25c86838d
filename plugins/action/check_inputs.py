# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of check_inputs: walks all nodes' variables once, in Python."""

from __future__ import annotations

import datetime
import secrets
import typing as t

from ansible.errors import AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import lookup_loader
from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import role_specs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.job_slice import slice_refusal


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset({"nodes", "may_be_empty"})

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        pattern = self._task.args.get("nodes", "all:!localhost")
        refusal = slice_refusal(task_vars)
        if refusal:
            result.update(failed=True, msg=refusal)
            return result
        nodes = _nodes(task_vars, pattern, self._loader)
        if not nodes and not boolean(self._task.args.get("may_be_empty", False)):
            result.update(
                failed=True,
                msg=f"The inventory holds no node for the pattern '{pattern}': name an inventory with -i, or set gpufabric_nodes.",
            )
            return result
        findings = self._findings(nodes, task_vars["hostvars"])
        bad = {f.node for f in findings if f.severity == "error"}
        began = datetime.datetime.now(datetime.timezone.utc)
        result.update(
            changed=False,
            run_id=f"{began:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}",
            started=began.isoformat(timespec="seconds"),
            nodes=nodes,
            bad_nodes=nodes if "" in bad else sorted(bad),
            findings=[finding.as_dict() for finding in findings],
        )
        return result

    def _findings(self, nodes: list[str], hostvars: t.Any) -> list[Finding]:
        specs = role_specs.load_specs()
        found: list[Finding] = []
        for node in nodes:
            variables = hostvars[node]
            for name in variables:
                problem = role_specs.name_finding(name, node, specs)
                if problem is None and specs.concerns(name):
                    try:
                        problem = role_specs.type_finding(name, variables[name], node, specs)
                    except AnsibleError as error:
                        problem = role_specs.undefined_finding(name, str(error.message), node)
                if problem is not None:
                    found.append(problem)
        return role_specs.merge_common(found, nodes)


def _nodes(task_vars: t.Mapping[str, t.Any], pattern: str, loader: t.Any) -> list[str]:
    """Hosts of this play; in the play that runs on localhost alone, those that the pattern names."""
    play_hosts = [host for host in task_vars.get("ansible_play_hosts_all", []) if host != "localhost"]
    if play_hosts:
        return play_hosts
    return list(
        lookup_loader.get("ansible.builtin.inventory_hostnames", loader=loader).run([pattern], variables=task_vars)
    )
