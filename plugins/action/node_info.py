# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of node_info: goes to the node only where the call of another module did not read it just now."""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase

MODULE = "gpufabric.cluster.node_info"

#: what says of an answer without an observation that asking once more would only wait once more
SILENT = ("unreachable", "timedout")


class ActionModule(ActionBase):
    _supports_check_mode = True

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        answer = arguments.pop("answer", {})
        if "observed" in answer:
            result.update(changed=False, observed=answer["observed"])
        elif any(answer.get(sign) for sign in SILENT):
            result.update(answer)
        else:
            result.update(self._execute_module(module_name=MODULE, module_args=arguments, task_vars=task_vars))
        return result
