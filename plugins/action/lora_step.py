# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of lora_step: starts the trainings on the launcher, renews its lease while they go on, shapes what ranks say."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.action.nccl_tests import ActionModule as NcclTests
from ansible_collections.gpufabric.cluster.plugins.module_utils._training_task import Task
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.sections import BENCHMARK
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.training_result import shape


class ActionModule(NcclTests):
    _supports_check_mode = True

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        given = self._task.args
        raws = result.pop("runs", [])
        if result.get("failed"):
            return result
        empty: dict[str, t.Any] = {"trainings": [], "failures": [], "size_plan": [], "problem": ""}
        if not raws:
            return {**empty, **result}
        hostvars = (task_vars or {})["hostvars"]
        measured = [
            hostvars.raw_get(node["name"]).get(BENCHMARK.variable, {}).get("runs", []) for node in given["nodes"]
        ]
        runs = [run for one in measured for run in one if run["backend"] == "nccl" and run["stage"] == "cluster"]
        shaped = shape(
            raws,
            Task.from_dict(given["task"]),
            int(given.get("ranks_per_node", 1)),
            float(given.get("line_rate_gbps") or 0),
            runs,
        )
        return {**empty, **result, **shaped}

    def _shaped(self, raw: dict[str, t.Any], hostnames: dict[str, str]) -> list[dict[str, t.Any]]:
        """As it is: shape() needs all launches together."""
        return [raw]
