# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of run_lock: says who runs, tells a dead run of this controller from a living one, and decides for all nodes."""

from __future__ import annotations

import os
import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import controller_process

MODULE = "gpufabric.cluster.run_lock"
OBSERVED = "__run_lock_observed"


class ActionModule(ActionBase):
    _supports_check_mode = True

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        if self._task.args.get("state") == "agreed":
            hostvars = task_vars["hostvars"]
            answers = (hostvars.raw_get(node).get(OBSERVED, {}) for node in task_vars["ansible_play_hosts_all"])
            held = any(answer.get("lock", {}).get("status") == "held" for answer in answers)
            result.update(changed=False, refused=held)
            return result
        # This runs in a worker; its parent is the process that lives as long as the run.
        since = task_vars.get("__inputs_checked", {}).get("started", "")
        arguments = {**self._task.args, "holder": controller_process.holder(os.getppid(), since)}
        result.update(self._execute_module(module_name=MODULE, module_args=arguments, task_vars=task_vars))
        other = result.get("lock", {}).get("holder", {})
        if other and controller_process.is_gone(other):
            arguments.update(replaces=other["run_id"], observe=False)
            result.update(self._execute_module(module_name=MODULE, module_args=arguments, task_vars=task_vars))
        return result
