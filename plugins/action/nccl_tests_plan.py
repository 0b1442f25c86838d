# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of nccl_tests_plan: takes from all nodes' variables what the plan needs, once."""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import nccl_tests_plan
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.launch_nodes import facts_of

TRUST, TOOLS = "__launch_trust_observed", "__nccl_tests_tools"


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        _unused, arguments = self.validate_argument_spec(
            argument_spec={
                "launch": {"type": "dict", "required": True},
                "settings": {"type": "dict", "required": True},
            }
        )
        launch, settings = arguments["launch"], arguments["settings"]
        hostvars = (task_vars or {})["hostvars"]
        left_out = list(launch["left_out"])
        means = []
        for node in launch["nodes"]:
            variables = hostvars.raw_get(node["name"])
            tools = variables.get(TOOLS, {})
            needs_trust = settings["trust"] == "run" and launch["needed"]
            why = why_unusable(variables, tools, "mpirun" in tools, needs_trust, bool(self._task.check_mode))
            if why:
                left_out.append({"node": node["name"], "why": why})
                continue
            means.append(node_means(node, variables))
        used = {node.name for node in means}
        machines = len({node["machine"] for node in launch["nodes"] if node["name"] in used})
        plan = nccl_tests_plan.plan(means, launch["launcher"], machines, settings, launch["control_networks"])
        result.update(
            changed=False,
            backend=plan.backend,
            launcher=plan.launcher,
            here=launch["launcher"],
            nodes=[
                {key: node[key] for key in ("name", "address", "port", "networks")}
                for node in launch["nodes"]
                if node["name"] in plan.nodes
            ],
            runs=plan.runs,
            python=plan.python,
            mpirun=plan.mpirun,
            left_out=left_out + plan.left_out,
            problem=plan.problem,
        )
        return result


def node_means(node: t.Mapping[str, t.Any], variables: t.Mapping[str, t.Any]) -> nccl_tests_plan.NodeMeans:
    """What *node* of a launch brings, from what was registered on it."""
    gpus = len(facts_of(variables).get("gpus", []))
    return nccl_tests_plan.NodeMeans(node["name"], variables[TOOLS], gpus, node["networks"])


def why_unusable(
    variables: t.Mapping[str, t.Any],
    tools: t.Mapping[str, t.Any],
    answered: bool,
    needs_trust: bool,
    check_mode: bool,
) -> str:
    """Why a node cannot take part in a launch, "" where it can. tools: what it registered about its means; answered: whether
    that is an answer.
    """
    if not answered:
        return f"it did not say what it has to run with: {_said(tools)}"
    trust = variables.get(TRUST, {})
    if needs_trust and not trust.get("armed") and not check_mode:
        return f"the launcher was not let in: {_said(trust)}"
    return ""


def _said(answer: t.Mapping[str, t.Any]) -> str:
    return " ".join(str(answer.get("msg") or answer.get("module_stderr") or "the task gave no result").split())[:300]
