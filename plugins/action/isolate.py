# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of isolate: plans a step, has the launcher measure it, and plans the next, until the verdict is final."""

from __future__ import annotations

import os
import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.cluster.plugins.action.nccl_tests import ActionModule as NcclTests
from ansible_collections.gpufabric.cluster.plugins.action.nccl_tests import Lost
from ansible_collections.gpufabric.cluster.plugins.action.nccl_tests_plan import node_means
from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import parse_size
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import isolate, isolate_verdict
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.benchmark_result import shape_runs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.isolate_runs import (
    Means,
    Planned,
    can_split,
    measurements_of,
    rails_of,
    runs_of,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.settings import SettingsReader

#: arguments of this action that are none of the module that measures
OWN = ("backend", "settings", "iterations", "warmup", "collective", "environment")


class ActionModule(NcclTests):
    _supports_check_mode = True

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = ActionBase.run(self, tmp, task_vars)
        task_vars = task_vars or {}
        given = dict(self._task.args)
        left_out = list(given.get("left_out", []))
        empty = {"changed": False, "verdict": {}, "measurements": [], "left_out": left_out, "released": []}
        if given.get("problem"):
            return {**result, **empty, "problem": given["problem"]}
        means = self._means(given, task_vars)
        try:
            settings = {"split": can_split(means, str(given.get("launcher"))), **_settings(given.get("settings") or {})}
            state = isolate.begin(self._nodes(means, task_vars), settings)
        except (TypeError, ValueError) as error:
            return {**result, **empty, "problem": str(error)}
        if self._task.check_mode:
            return {**result, **empty, "problem": "nothing is measured in check mode"}
        measured = _Measured()
        problem = ""
        try:
            state = self._measure(state, means, given, task_vars, measured)
        except Lost as error:
            problem = str(error)
        return {
            **result,
            **empty,
            "problem": problem and f"{means.here}: {problem}",
            "verdict": isolate_verdict.verdict(state),
            "measurements": measured.rows,
            "left_out": left_out,
            "lost": measured.outcome.get("lost", {}),
            "released": measured.outcome.get("released", []),
        }

    def _means(self, given: t.Mapping[str, t.Any], task_vars: dict[str, t.Any]) -> Means:
        hostvars = task_vars["hostvars"]
        nodes = {node["name"]: node_means(node, hostvars.raw_get(node["name"])) for node in given["nodes"]}
        return Means(
            backend=given["backend"],
            here=given["here"],
            run_id=given["run_id"],
            nodes=nodes,
            rails=rails_of(nodes),
            control=tuple(given.get("control_networks", [])),
            iterations=int(given.get("iterations", 20)),
            warmup=int(given.get("warmup", 2)),
            collective=str(given.get("collective", "all_reduce")),
            environment={str(k): str(v) for k, v in (given.get("environment") or {}).items()},
        )

    def _nodes(self, means: Means, task_vars: dict[str, t.Any]) -> dict[str, dict[str, t.Any]]:
        """What isolate.begin() needs: ranks, HCAs by rail, and what the inventory says of the place."""
        reader = SettingsReader(self._loader, self._templar, task_vars["hostvars"], task_vars)
        return {
            name: {
                "rack": str(reader.read("isolate", name).get("isolate_rack") or ""),
                "ranks": max(node.gpus, 1) if means.backend == "nccl" else 1,
                "hcas": [node.device_on(network) or network for network in means.rails]
                if means.backend == "mpi"
                else [port["device"] for port in node.active_hcas],
            }
            for name, node in means.nodes.items()
        }

    def _measure(
        self,
        state: isolate.State,
        means: Means,
        given: t.Mapping[str, t.Any],
        task_vars: dict[str, t.Any],
        measured: _Measured,
    ) -> isolate.State:
        """Step by step to the end. What was measured before the launcher is lost stays in *measured*."""
        parent = os.getppid()
        directory = ""
        arguments = {key: value for key, value in given.items() if key not in OWN}
        while launches := isolate.plan(state):
            planned = runs_of(launches, means)
            pairs = ", ".join("+".join(group) for one in planned for group in one.groups)
            self._display.v(f"isolate: {launches[0].stage}, run {measured.count + 1} on: {pairs}")
            after = measured.count if directory else -1
            answer = self._hand_over(arguments, [one.run for one in planned], after, task_vars)
            directory = directory or answer["directory"]
            measured.count += len(planned)
            measured.outcome = self._supervise(directory, parent, waiting_after=measured.count)
            rows = measured.take(planned)
            state = isolate.observe(state, rows, sorted(set(measured.outcome.get("lost", {})) & set(state.nodes)))
            if measured.outcome.get("ended"):
                raise Lost(measured.outcome["ended"])
            if len(measured.outcome.get("results", [])) < measured.count:
                raise Lost("it ended before all was measured")
        if directory:
            self._hand_over(arguments, [], measured.count, task_vars)
            measured.outcome = self._supervise(directory, parent)
        return state


def _settings(given: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The settings as isolate takes them: the size in bytes, and an expectation of 0 is none."""
    settings = {**given, "expectation": given.get("expectation") or None}
    if "size" in given:
        settings["size"] = parse_size(str(given["size"]))
    return settings


class _Measured:
    """What the launcher has measured so far. rows: isolate's measurements; count: runs handed over."""

    def __init__(self) -> None:
        self.rows: list[dict[str, t.Any]] = []
        self.count = 0
        self.outcome: dict[str, t.Any] = {}

    def take(self, planned: t.Sequence[Planned]) -> list[dict[str, t.Any]]:
        """The measurements of the last runs that were handed over."""
        names = self.outcome.get("hostnames", {})
        raws = self.outcome.get("results", [])[self.count - len(planned) : self.count]
        shaped = [run for raw in raws for run in shape_runs(raw, names)]
        rows = measurements_of(planned, shaped, [raw["report"] for raw in raws])
        stages = {one.launch.id: one.launch.stage for one in planned}
        self.rows += [{**row, "stage": stages[row["launch"]]} for row in rows]
        return rows
