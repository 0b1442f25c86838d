# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of lora_plan: takes from all nodes' variables what the plan needs, once."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.cluster.plugins.action.nccl_tests_plan import (
    launching_node,
    nobody,
    said,
    why_unusable,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import training_plan
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.role_specs import coerced_settings

TOOLS = "__lora_workload_means"


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
        launch, settings = arguments["launch"], coerced_settings("lora_workload", arguments["settings"])
        result.update(changed=False, here=launching_node(launch, task_vars))
        if "nodes" not in launch:
            return {**result, **dataclasses.asdict(training_plan.Plan(problem=said(launch)))}
        variables = {node["name"]: task_vars["hostvars"].raw_get(node["name"]) for node in launch["nodes"]}
        unusable = why_unusable(launch, variables, (TOOLS, "versions"), settings["trust"], bool(self._task.check_mode))
        left_out = [*launch["left_out"], *({"node": name, "why": why} for name, why in unusable.items())]
        means = [
            training_plan.NodeMeans(node["name"], variables[node["name"]][TOOLS], node["machine"])
            for node in launch["nodes"]
            if node["name"] not in unusable
        ]
        try:
            if not launch["nodes"]:
                raise ValueError(nobody(left_out))
            plan = training_plan.plan(means, launch["launcher"], {**settings, "model": self._model(settings["model"])})
        except ValueError as error:
            plan = training_plan.Plan(problem=str(error))
        result.update(
            backend=plan.backend,
            nodes=[
                {
                    **{key: node[key] for key in ("name", "address", "port", "networks")},
                    "python": plan.pythons[node["name"]],
                }
                for node in launch["nodes"]
                if node["name"] in plan.nodes
            ],
            ranks_per_node=plan.ranks_per_node,
            task=plan.task,
            trainings=plan.trainings,
            runs=plan.runs,
            left_out=left_out + plan.left_out,
            problem=plan.problem,
        )
        return result

    def _model(self, given: t.Any) -> t.Any:
        """A path is read here, on the controller. ValueError says what of the file is no config."""
        if not isinstance(given, str) or given == "auto":
            return given
        path = pathlib.Path(self._loader.path_dwim(given))
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"lora_workload_model is {given}, which cannot be read as a config.json: {error}"
            ) from None
        if not isinstance(config, dict):
            raise ValueError(f"lora_workload_model is {given}, which holds no mapping")
        return config
