# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of isolate: plans a step, has the launcher measure it, and plans the next, until the verdict is final."""

from __future__ import annotations

import dataclasses
import os
import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.cluster.plugins.action.nccl_tests import ActionModule as NcclTests
from ansible_collections.gpufabric.cluster.plugins.action.nccl_tests import Lost
from ansible_collections.gpufabric.cluster.plugins.action.nccl_tests_plan import node_means
from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import parse_size
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import bisect_hang, isolate, isolate_verdict
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.benchmark_result import shape_runs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.isolate_runs import (
    Means,
    Planned,
    can_split,
    measurements_of,
    rails_of,
    runs_of,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.pairing import Launch
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
        empty = {"changed": False, "verdict": {}, "hang": {}, "measurements": [], "left_out": left_out, "released": []}
        if given.get("problem"):
            return {**result, **empty, "problem": given["problem"]}
        means = self._means(given, task_vars)
        try:
            wanted = dict(given.get("settings") or {})
            whole = bool(wanted.pop("whole", True))
            at_once = bool(wanted.pop("at_once", True))
            means = dataclasses.replace(means, at_once=at_once)
            settings = {"split": at_once and can_split(means, str(given.get("launcher"))), **_settings(wanted)}
            state = isolate.begin(self._nodes(means, task_vars), settings)
        except (TypeError, ValueError) as error:
            return {**result, **empty, "problem": str(error)}
        if self._task.check_mode:
            return {**result, **empty, "problem": "nothing is measured in check mode"}
        measured = _Measured(state)
        problem = ""
        try:
            self._measure(measured, means, given, task_vars, whole)
        except Lost as error:
            problem = str(error)
        return {
            **result,
            **empty,
            "problem": problem and f"{means.here}: {problem}",
            "verdict": isolate_verdict.verdict(measured.pairs),
            "hang": bisect_hang.verdict(measured.whole) if measured.whole else {},
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
        self, measured: _Measured, means: Means, given: t.Mapping[str, t.Any], task_vars: dict[str, t.Any], whole: bool
    ) -> None:
        """Pairs to the end, then, with *whole* and where they explain no hang, all at once. What was measured before the launcher
        is lost stays in *measured*."""
        arguments = {key: value for key, value in given.items() if key not in OWN}

        def step(launches: t.Sequence[Launch], nodes: t.Collection[str]) -> tuple[list[dict[str, t.Any]], list[str]]:
            planned = runs_of(launches, means)
            groups = ", ".join("+".join(group) for one in planned for group in one.groups)
            self._display.v(f"isolate: {launches[0].stage}, run {measured.count + 1} on: {groups}")
            after = measured.count if measured.directory else -1
            answer = self._hand_over(arguments, [one.run for one in planned], after, task_vars)
            measured.directory = measured.directory or answer["directory"]
            measured.count += len(planned)
            measured.outcome = self._supervise(measured.directory, measured.parent, waiting_after=measured.count)
            rows = measured.take(planned)
            measured.demand_all()
            return rows, sorted(set(measured.outcome.get("lost", {})) & set(nodes))

        while launches := isolate.plan(measured.pairs):
            rows, gone = step(launches, measured.pairs.nodes)
            measured.pairs = isolate.observe(measured.pairs, rows, gone)
        if whole and bisect_hang.is_worth_it(isolate_verdict.verdict(measured.pairs)):
            measured.whole = bisect_hang.begin_after(measured.pairs)
            while launches := bisect_hang.plan(measured.whole):
                rows, gone = step(launches, measured.whole.nodes)
                measured.whole = bisect_hang.observe(measured.whole, rows, gone)
        if measured.directory:
            self._hand_over(arguments, [], measured.count, task_vars)
            measured.outcome = self._supervise(measured.directory, measured.parent)


def _settings(given: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The settings as isolate takes them: the size in bytes, and an expectation of 0 is none."""
    settings = {**given, "expectation": given.get("expectation") or None}
    if "size" in given:
        settings["size"] = parse_size(str(given["size"]))
    return settings


class _Measured:
    """What the launcher has measured so far, and what is known by that. pairs: isolate's state; whole: bisect_hang's, once all
    ran at once. rows: measurements of both; count: runs handed over."""

    def __init__(self, pairs: isolate.State) -> None:
        self.pairs = pairs
        self.whole: bisect_hang.State | None = None
        self.parent = os.getppid()
        self.directory = ""
        self.rows: list[dict[str, t.Any]] = []
        self.count = 0
        self.outcome: dict[str, t.Any] = {}

    def demand_all(self) -> None:
        """Lost where the launcher ended before it had measured all that was handed over: the rest would look like hangs."""
        if self.outcome.get("ended"):
            raise Lost(self.outcome["ended"])
        if len(self.outcome.get("results", [])) < self.count:
            raise Lost("it ended before all was measured")

    def take(self, planned: t.Sequence[Planned]) -> list[dict[str, t.Any]]:
        """The measurements of the last runs that were handed over, or of the first of them where the launcher ended before the rest."""
        names = self.outcome.get("hostnames", {})
        raws = self.outcome.get("results", [])[self.count - len(planned) : self.count]
        shaped = [run for raw in raws for run in shape_runs(raw, names)]
        rows = measurements_of(planned, shaped, [raw["report"] for raw in raws])
        stages = {one.launch.id: one.launch.stage for one in planned}
        self.rows += [{**row, "stage": stages[row["launch"]]} for row in rows]
        return rows
