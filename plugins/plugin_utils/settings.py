# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The settings in force for each node: a role's defaults with the node's variables over them."""

from __future__ import annotations

import functools
import inspect
import json
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.role_specs import COLLECTION, coerced, load_specs


def group_key(settings: t.Mapping[str, t.Any]) -> str:
    """Equal for nodes that are judged together: what is expected of them is the same, wherever their roots lie."""
    told = {name: value for name, value in settings.items() if not name.endswith("_root")}
    return json.dumps(told, sort_keys=True, default=str)


class SettingsReader:
    """Evaluates roles' defaults as Ansible would. Nodes with equal variables share one evaluation, which keeps it O(N).

    task_vars: of the task that asks, for one that belongs to the role: hostvars know nothing of what a play, a role or a task
    says under `vars`, which stands above every node's own variables.
    """

    def __init__(
        self, loader: t.Any, templar: t.Any, hostvars: t.Any, task_vars: t.Mapping[str, t.Any] | None = None
    ) -> None:
        self._loader = loader
        self._templar = templar
        self._hostvars = hostvars
        self._task_vars = task_vars or {}
        self._said: dict[str, dict[str, t.Any]] = {}
        self._defaults: dict[str, dict[str, t.Any]] = {}
        self._known: dict[tuple[str, str], dict[str, t.Any]] = {}

    def read(self, role: str, node: str) -> dict[str, t.Any]:
        """{public variable: value} of *role* on *node*. A value that cannot be evaluated is left out."""
        defaults = self._defaults_of(role)
        key = (role, self._signature(role, node))
        if key not in self._known:
            self._known[key] = self._evaluate(role, defaults, node)
        return self._known[key]

    def said_in_the_play(self, role: str) -> dict[str, t.Any]:
        """{public variable: value} of *role* that a play, a role or a task says under `vars`, for the task's own node."""
        said = self._said_in_the_play(role)
        values = self.read(role, self._task_vars["inventory_hostname"]) if said else {}
        return {name: values[name] for name in said if name in values}

    def _defaults_of(self, role: str) -> dict[str, t.Any]:
        if role not in self._defaults:
            load = self._loader.load_from_file
            # ansible-core 2.19 and later evaluate only templates whose source they were told to trust
            trust = {"trusted_as_template": True} if "trusted_as_template" in inspect.signature(load).parameters else {}
            self._defaults[role] = dict(load(str(COLLECTION / "roles" / role / "defaults" / "main.yml"), **trust) or {})
        return self._defaults[role]

    def _said_in_the_play(self, role: str) -> dict[str, t.Any]:
        """{name: value} of the role's variables for which the task sees another value than its node and the role bring."""
        if role not in self._said:
            defaults = self._defaults_of(role)
            own = self._own
            self._said[role] = {
                name: self._task_vars[name]
                for name in defaults
                if name in self._task_vars and self._task_vars[name] != own.get(name, defaults[name])
            }
        return self._said[role]

    @functools.cached_property
    def _own(self) -> t.Mapping[str, t.Any]:
        """Variables of the task's own node."""
        own: t.Mapping[str, t.Any] = (
            self._hostvars.raw_get(self._task_vars["inventory_hostname"]) if self._task_vars else {}
        )
        return own

    @functools.cached_property
    def _of_the_play(self) -> dict[str, t.Any]:
        """Variables that are no node's: a value said in the play may be made of others that were said there."""
        return {name: value for name, value in self._task_vars.items() if name not in self._own}

    def _signature(self, role: str, node: str) -> str:
        raw = {**self._hostvars.raw_get(node), **self._said_in_the_play(role)}
        mine = {n: str(raw[n]) for n in raw if n.startswith((f"{role}_", "gpufabric_"))}
        text = json.dumps(mine, sort_keys=True)
        return f"{node} {text}" if "{{" in text else text

    def _evaluate(self, role: str, defaults: t.Mapping[str, t.Any], node: str) -> dict[str, t.Any]:
        variables = {
            **self._of_the_play,
            **defaults,
            **self._hostvars.raw_get(node),
            **self._said_in_the_play(role),
        }
        templar = self._templar.copy_with_new_env(available_variables=variables)
        values = {}
        for name in defaults:
            try:
                values[name] = templar.template(variables[name])
            except Exception:  # an undefined expression is the input check's to report, and must not cost the report
                continue
        return coerced(role, values, load_specs())
