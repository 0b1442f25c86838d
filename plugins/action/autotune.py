# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of autotune: one launch stays open on the launching node, and takes the settings that the search asks for."""

from __future__ import annotations

import datetime
import os
import pathlib
import shlex
import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.cluster.plugins.action.nccl_tests import ActionModule as NcclTests
from ansible_collections.gpufabric.cluster.plugins.action.nccl_tests import Lost
from ansible_collections.gpufabric.cluster.plugins.action.nccl_tests_plan import node_means
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import tune_settings
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.benchmark_result import shape_runs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.optuna_search import OptunaSearch
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.role_specs import coerced_settings
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search_space import Settings
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.settings import SettingsReader
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.study_lock import StudyBusyError, StudyLock
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_objective import Part, speed_of
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_plan import Plan, make_plan, typed
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_record import files_of, record_of
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_study import (
    Measured,
    NodeLostError,
    Study,
    StudyError,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.user_path import user_path

#: arguments of this action that are none of the module that measures
OWN = ("plan", "nccl", "nccl_version", "settings")

#: the largest time that one launch may stay open, less what beginning and ending it take, in minutes
LONGEST_MIN = 100


class ActionModule(NcclTests):
    _supports_check_mode = True

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = ActionBase.run(self, tmp, task_vars)
        task_vars = task_vars or {}
        given = dict(self._task.args)
        self._released: list[str] = []
        answer = {
            "changed": False,
            "result": {},
            "directory": "",
            "profile": "",
            "left_out": given["plan"].get("left_out", []),
        }
        try:
            if given["plan"]["problem"]:
                raise StudyError(given["plan"]["problem"])
            if self._task.check_mode:
                raise StudyError("nothing is measured in check mode")
            answer.update(self._tune(given, task_vars))
        except (StudyError, StudyBusyError, Lost, ValueError) as error:
            answer["problem"] = str(error)
        except OSError as error:
            answer["problem"] = (
                f"{error.filename} cannot be written: {error.strerror}; set autotune_results_dir to where it can be"
            )
        return {**result, "problem": "", **answer, "released": self._released}

    def _tune(self, given: t.Mapping[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        settings = typed(coerced_settings("autotune", given["settings"]))
        if not 0 < settings["minutes"] <= LONGEST_MIN:
            raise StudyError(
                f"autotune_minutes is {settings['minutes']:g}, expected 1 to {LONGEST_MIN}; the same command goes on with "
                "a study that is not finished"
            )
        nodes = {n["name"]: node_means(n, task_vars["hostvars"].raw_get(n["name"])) for n in given["plan"]["nodes"]}
        nccl = {**(given.get("nccl") or {}), "asked_version": given.get("nccl_version", "")}
        plan = make_plan(given["plan"], nodes, nccl, settings, self._ompi_info(given))
        top = user_path(settings["results_dir"]).absolute() / "autotune"
        directory = top / plan.study
        lock = StudyLock(top / f"{plan.fabric}.lock")
        try:
            search = OptunaSearch(plan.space, directory, "study", settings["trials"])
            self._say(f"{len(search.trials())} of {settings['trials']} trials are done; the study lies in {directory}")
            launch = _OpenLaunch(self, given, plan, task_vars)
            study = Study(search, plan.objective, plan.starts, plan.others, plan.budget, launch.measure, self._say)
            outcome, problem = self._carry_out(study, launch)
            variables = SettingsReader(self._loader, self._templar, task_vars["hostvars"]).read(
                "nccl_env", given["here"]
            )
            record = record_of(plan, search, outcome, problem, variables.get("nccl_env_variables") or {}, _now())
            changed = write_files(directory, files_of(record))
        finally:
            lock.release()
        return {
            "changed": changed,
            "result": record["result"],
            "profile": record["profile"]["file"],
            "directory": str(directory),
            "problem": problem,
        }

    def _carry_out(self, study: Study, launch: _OpenLaunch) -> tuple[dict[str, t.Any] | None, str]:
        """(outcome, problem). What ends a study early leaves its trials in the study."""
        try:
            return study.run(), ""
        except StudyError as error:
            return None, str(error)
        except Lost as error:
            return None, f"{launch.here}: {error}; the study is kept, and the same command goes on with it"
        finally:
            self._released = launch.close()

    def _ompi_info(self, given: t.Mapping[str, t.Any]) -> str:
        """What Open MPI has in force for the user of the launch, as ompi_info beside its mpirun says it; "" without one."""
        if given["plan"]["backend"] != "mpi":
            return ""
        program = str(pathlib.PurePosixPath(given["mpirun"] or "mpirun").with_name("ompi_info"))
        program = program if "/" in str(given["mpirun"]) else "ompi_info"
        command = f"{shlex.quote(program)} --param btl tcp --level 9 --parsable"
        if given.get("user"):
            command = f"runuser -u {shlex.quote(given['user'])} -- {command}"
        answer = self._low_level_execute_command(command, sudoable=bool(given.get("user")), executable="/bin/sh")
        return str(answer["stdout"])

    def _say(self, sentence: str) -> None:
        self._display.display(f"autotune: {sentence}")


class _OpenLaunch:
    """The launch that stays open. It starts with the first measurement, and close() ends it."""

    def __init__(
        self, action: ActionModule, given: t.Mapping[str, t.Any], plan: Plan, task_vars: dict[str, t.Any]
    ) -> None:
        self.here = str(given["here"])
        self._action, self._plan, self._task_vars = action, plan, task_vars
        self._arguments = {key: value for key, value in given.items() if key not in OWN}
        self._parent = os.getppid()
        self._directory = ""
        self._count = 0

    def measure(self, settings: Settings, part: Part, limit_s: float) -> Measured:
        """One launch with *settings*. NodeLostError, StudyError where nothing further can be learnt."""
        first = not self._directory
        told = tune_settings.explicit(settings, self._plan.in_force, self._plan.space)
        changes = {**part.as_run(self._plan.iterations, self._plan.warmup), "timeout_s": limit_s}
        run = tune_settings.as_run(self._plan.template, changes, told, talk=first)
        started = self._action._hand_over(self._arguments, [run], -1 if first else self._count, self._task_vars)
        self._directory = self._directory or started["directory"]
        self._count += 1
        outcome = self._action._supervise(self._directory, self._parent, waiting_after=self._count)
        if outcome.get("lost"):
            gone = "; ".join(f"{node} went away: {why}" for node, why in outcome["lost"].items())
            raise NodeLostError(
                f"{gone}; the study is kept, and the same command goes on with it once all nodes are back"
            )
        if outcome.get("ended") or len(outcome["results"]) < self._count:
            raise Lost(outcome.get("ended") or "it ended before all was measured")
        raw = outcome["results"][self._count - 1]
        runs = shape_runs(raw, outcome.get("hostnames", {}))
        if first and (wrong := tune_settings.contradiction(self._plan.transport, runs[0]["transport"]["proven"])):
            raise StudyError(wrong)
        # Nodes that ran by themselves are as good as the slowest of them.
        worst = min(runs, key=lambda run: (not run["failure"], speed_of(run) or 0.0))
        return Measured(worst, worst["failure"] or "", float(raw["seconds"]))

    def close(self) -> list[str]:
        """End it; the nodes that have given back what the launch put on them. What is gone already is its lease's to end."""
        if not self._directory:
            return []
        try:
            self._action._hand_over(self._arguments, [], self._count, self._task_vars)
            return list(self._action._supervise(self._directory, self._parent).get("released", []))
        except Lost:
            return []


def write_files(directory: pathlib.Path, files: t.Mapping[str, str]) -> bool:
    """Write {name: text} into *directory*, each as a whole; whether a file other than the reports changed: the profile."""
    changed = False
    for name, text in files.items():
        path = directory / name
        if not name.startswith(("autotune.", "report.")):
            changed |= not path.exists() or path.read_text() != text
        partial = directory / f".{name}.partial"
        partial.touch(0o600)
        partial.write_text(text)
        partial.replace(path)
    return changed


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
