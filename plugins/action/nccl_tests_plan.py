# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of nccl_tests_plan: takes from all nodes' variables what the plan needs, once."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import nccl_tests_plan
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.launch_nodes import facts_of
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import listed
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.role_specs import coerced_settings

TRUST, TOOLS, BUILD = "__launch_trust_observed", "__nccl_tests_tools", "__nccl_tests_build"


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _unused, arguments = self.validate_argument_spec(
            argument_spec={
                "launch": {"type": "dict", "required": True},
                "settings": {"type": "dict", "required": True},
            }
        )
        launch, settings = arguments["launch"], coerced_settings("nccl_tests", arguments["settings"])
        result.update(changed=False, here=launching_node(launch, task_vars))
        if "nodes" not in launch:
            return {**result, **dataclasses.asdict(nccl_tests_plan.Plan(problem=said(launch)))}
        variables = {node["name"]: task_vars["hostvars"].raw_get(node["name"]) for node in launch["nodes"]}
        unusable = why_unusable(launch, variables, (TOOLS, "mpirun"), settings["trust"], bool(self._task.check_mode))
        left_out = [*launch["left_out"], *({"node": name, "why": why} for name, why in unusable.items())]
        means = [node_means(node, variables[node["name"]]) for node in launch["nodes"] if node["name"] not in unusable]
        used = {node.name for node in means}
        machines = len({node["machine"] for node in launch["nodes"] if node["name"] in used})
        plan = nccl_tests_plan.plan(means, launch["launcher"], machines, settings, launch["control_networks"])
        if not launch["nodes"]:
            plan.problem = nobody(launch["left_out"])
        nodes = [
            {key: node[key] for key in ("name", "address", "port", "networks")}
            for node in launch["nodes"]
            if node["name"] in plan.nodes
        ]
        inside = {node.name: node.tools["container"] for node in means if node.tools.get("container")}
        containers = inside if plan.backend == "nccl" else {}
        return {
            **result,
            **dataclasses.asdict(plan),
            "nodes": nodes,
            "left_out": left_out + plan.left_out,
            "containers": containers,
        }


def launching_node(launch: t.Mapping[str, t.Any], task_vars: t.Mapping[str, t.Any]) -> str:
    """Where no node can launch, the first one carries the sentence why into the run record."""
    return launch.get("launcher") or next(iter(task_vars["ansible_play_hosts"]), "")


def nobody(left_out: t.Sequence[t.Mapping[str, str]]) -> str:
    """The sentence for a launch that no node is left for."""
    return f"no node can take part ({listed([': '.join((entry['node'], entry['why'])) for entry in left_out], 3)})"


def node_means(node: t.Mapping[str, t.Any], variables: t.Mapping[str, t.Any]) -> nccl_tests_plan.NodeMeans:
    """What *node* of a launch brings, from what was registered on it."""
    gpus = len(facts_of(variables).get("gpus", []))
    build = variables.get(BUILD, {})
    not_built = "" if "programs" in build or build.get("skipped", not build) else said(build)
    return nccl_tests_plan.NodeMeans(node["name"], variables[TOOLS], gpus, node["networks"], not_built)


def why_unusable(
    launch: t.Mapping[str, t.Any],
    variables: t.Mapping[str, t.Mapping[str, t.Any]],
    means: tuple[str, str],
    trust: str,
    check_mode: bool,
) -> dict[str, str]:
    """{node: why it cannot take part in *launch*}. means: what nodes registered about theirs, and a key of every answer."""
    registered, key = means
    needs_trust = trust == "run" and launch["needed"] and not check_mode
    found = {}
    for node in launch["nodes"]:
        own = variables[node["name"]]
        if key not in own.get(registered, {}):
            found[node["name"]] = f"it did not say what it has to run with: {said(own.get(registered, {}))}"
        elif needs_trust and not own.get(TRUST, {}).get("armed"):
            found[node["name"]] = f"the launcher was not let in: {said(own.get(TRUST, {}))}"
    return found


def said(answer: t.Mapping[str, t.Any]) -> str:
    """What a task that gave no answer says of that, in one line."""
    return " ".join(str(answer.get("msg") or answer.get("module_stderr") or "the task gave no result").split())[:300]
