# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of diagnose_logs: logs lie where the playbook runs."""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.read_logs import read_logs


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset({"path"})

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        _unused, arguments = self.validate_argument_spec(argument_spec={"path": {"type": "str", "required": True}})
        try:
            result.update(changed=False, logs=read_logs(arguments["path"]))
        except (OSError, ValueError) as error:
            result.update(failed=True, msg=str(error))
        return result
