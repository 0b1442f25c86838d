# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of nccl_tests: starts the runs on the launcher, renews its lease while they go on, brings the results back."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
import typing as t

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.benchmark import without_secrets
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.benchmark_result import shape_runs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.settings import SettingsReader
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.unfinished_run import UnfinishedRun
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.user_path import user_path

INPUTS = "__inputs_checked"
MODULE = "gpufabric.cluster.nccl_tests"

#: the launcher may be out of reach for so long before its results are given up, in seconds; its lease has ended then
OUT_OF_REACH_S = 60.0
#: looks that may find the launcher's process gone before that is believed: it may just have ended
GONE_LOOKS = 2
#: and what it may take to say for the first time that it is there, on a node that has much else to do, in seconds
START_S = 120.0


class Lost(Exception):
    """The launcher or its process is gone; the sentence says how."""


def nothing_ran(problem: str, left_out: t.Sequence[t.Mapping[str, str]]) -> dict[str, t.Any]:
    """The result of a launch that never was, with the sentence why: no reader may take its silence for a pass."""
    return {
        "changed": False,
        "started": False,
        "runs": [],
        "planned": 0,
        "problem": problem,
        "nodes_used": [],
        "nodes_left_out": list(left_out),
        "lost": {},
        "released": [],
    }


class ActionModule(ActionBase):
    _supports_check_mode = True
    _unfinished: UnfinishedRun | None = None
    _kept = 0

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        # Who judges runs in another play, and sees nothing of what this one says under `vars`.
        reader = SettingsReader(self._loader, self._templar, (task_vars or {})["hostvars"], task_vars)
        result["said"] = reader.said_in_the_play("nccl_tests")
        before = list(self._task.args.get("left_out", []))
        why_not = self._task.args.get("problem", "")
        containers = self._task.args.get("containers", {})
        if why_not:
            result.update(nothing_ran(why_not, before), containers=containers)
            return result
        parent = os.getppid()
        started = self._execute_module(task_vars=task_vars)
        if started.get("failed"):
            said = started.get("msg") or started.get("module_stderr") or "the module gave no result"
            result.update(
                nothing_ran(f"{self._task.args.get('here', '')}: {' '.join(str(said).split())}", before),
                containers=containers,
            )
            return result
        if not started.get("started"):
            result.update(started)
            result.update(nodes_left_out=before)
            return result
        problem = ""
        self._unfinished = self._begin(reader, task_vars or {})
        try:
            outcome = self._supervise(started["directory"], parent)
        except Lost as error:
            problem = str(error)
            outcome = self._last_results
        launcher = str(self._task.args.get("here", ""))
        runs = [run for raw in outcome["results"] for run in self._shaped(raw, outcome.get("hostnames", {}))]
        used = sorted({node for run in runs for node in run["nodes"]})
        names = [node["name"] for node in self._task.args.get("nodes", [])]
        left_out = [{"node": node, "why": why} for node, why in outcome.get("lost", {}).items() if node not in used]
        problem = problem or outcome.get("ended", "")
        result.update(
            changed=False,
            started=True,
            runs=runs,
            planned=len(self._task.args["runs"]),
            problem=problem and f"{launcher}: {problem}",
            nodes_used=[name for name in names if name in used],
            nodes_left_out=before + left_out,
            containers=containers,
            lost=outcome.get("lost", {}),
            released=outcome.get("released", []),
        )
        return result

    def _shaped(self, raw: dict[str, t.Any], hostnames: dict[str, str]) -> list[dict[str, t.Any]]:
        return shape_runs(raw, hostnames)

    def _begin(self, reader: SettingsReader, task_vars: dict[str, t.Any]) -> UnfinishedRun | None:
        """Where measurements are kept from now on; None where the report would not be written either, which is said at once."""
        here = task_vars["inventory_hostname"]
        # A play on localhost before this one has an identifier of its own; the report goes by the nodes', and so does this.
        known = [task_vars["hostvars"].raw_get(host).get(INPUTS, {}) for host in (here, "localhost")]
        run_id = next((inputs["run_id"] for inputs in known if inputs.get("run_id")), "")
        directory = reader.read("fabric_report", here).get("fabric_report_results_dir")
        if not run_id or not directory:
            return None
        unfinished = UnfinishedRun(user_path(directory).absolute(), run_id)
        try:
            unfinished.begin(run_id, here, len(self._task.args["runs"]))
        except OSError as error:
            self._display.warning(
                f"{unfinished.path.parent} cannot be written ({error.strerror}): what is measured now is lost if Ansible is killed"
            )
            return None
        return unfinished

    def _keep(self, outcome: dict[str, t.Any]) -> None:
        """What was measured since the last look, on this machine's disk, and a word of it for whoever waits.

        A disk that is full is the report's to say.
        """
        fresh = outcome["results"][self._kept :]
        self._kept = len(outcome["results"])
        if self._unfinished is None:
            return
        for run in [run for raw in fresh for run in self._shaped(raw, outcome.get("hostnames", {}))]:
            said = run["failure"] or "measured"
            self._display.display(
                f"nccl_tests: {run['stage']} {run['collective']}: {said}; {self._kept} of {len(self._task.args['runs'])} runs are over"
            )
            with contextlib.suppress(OSError):
                self._unfinished.add(without_secrets(run))

    def _supervise(self, directory: str, parent: int, waiting_after: int | None = None) -> dict[str, t.Any]:
        """Renew until the launcher says that it is done, or waits for more after so many runs; what it has measured is
        fetched after every run."""
        self._last_results: dict[str, t.Any] = {"results": []}
        interval = float(self._task.args.get("poll_s", 5))
        finished = -1
        gone = 0
        reached = began = time.monotonic()
        while True:
            if os.getppid() != parent:
                # Ansible itself was killed, and this worker goes on as an orphan: nobody wants the results.
                self._give_up(directory)
            try:
                status, process = self._look(directory)
                reached = time.monotonic()
            except (AnsibleConnectionFailure, AnsibleError, ValueError) as error:
                if time.monotonic() - reached > OUT_OF_REACH_S:
                    raise Lost(f"the launcher cannot be reached any more: {error}") from error
                time.sleep(interval)
                continue
            if status is not None and status["finished"] != finished:
                finished = status["finished"]
                self._last_results = self._fetch(directory) or self._last_results
                self._keep(self._last_results)
                self._display.v(f"nccl_tests: {finished} of {status['of']} runs finished")
            waits = status is not None and status["state"] == "waiting" and status["finished"] == waiting_after
            if waits or (status is not None and status["state"] == "done"):
                return self._fetch(directory) or self._last_results
            starting = process == "unknown" and time.monotonic() - began < START_S
            gone = 0 if process == "running" or starting else gone + 1
            if gone > GONE_LOOKS:
                raise Lost("the process that carries the runs out ended before it was done")
            time.sleep(interval)

    def _hand_over(
        self, arguments: t.Mapping[str, t.Any], runs: t.Sequence[t.Any], after: int, task_vars: dict[str, t.Any]
    ) -> dict[str, t.Any]:
        """Give *runs* to a launch that waits for more *after* so many, or start it with them (-1). No runs are the end."""
        given = {**arguments, "runs": list(runs), "wait_for_more": True, "after": after}
        try:
            answer: dict[str, t.Any] = self._execute_module(module_name=MODULE, module_args=given, task_vars=task_vars)
        except AnsibleConnectionFailure as error:
            raise Lost(f"the launcher cannot be reached any more: {error}") from error
        if answer.get("failed") or "directory" not in answer:
            raise Lost(str(answer.get("msg") or answer.get("module_stderr") or "the module gave no result").strip())
        return answer

    def _look(self, directory: str) -> tuple[dict[str, t.Any] | None, str]:
        """Renew the lease and read the status in one cheap command.

        (status, what is of the launcher's process: running, unknown before it has written its number down, "" where it is gone).
        """
        path = shlex.quote(directory)
        command = (
            f"cd {path} 2>/dev/null && touch -c alive && "
            '{ cat status 2>/dev/null; echo; [ -s pid ] || echo unknown; kill -0 "$(cat pid 2>/dev/null)" 2>/dev/null && echo running; }'
        )
        answer = self._low_level_execute_command(command, executable="/bin/sh")
        lines = [line for line in str(answer["stdout"]).splitlines() if line.strip()]
        status = next((json.loads(line) for line in lines if line.startswith("{")), None)
        return status, next((word for word in ("running", "unknown") if word in lines), "")

    def _fetch(self, directory: str) -> dict[str, t.Any] | None:
        answer = self._low_level_execute_command(f"cat {shlex.quote(directory)}/results.json", executable="/bin/sh")
        try:
            results: dict[str, t.Any] = json.loads(str(answer["stdout"]))
        except ValueError:
            return None
        return results

    def _give_up(self, directory: str) -> t.NoReturn:
        """End the lease now rather than let it run out, and this process without a word to an Ansible that is gone."""
        try:
            self._low_level_execute_command(f"echo 0 > {shlex.quote(directory)}/alive", executable="/bin/sh")
        finally:
            os._exit(1)
