# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The search for better settings: Optuna proposes, the cluster measures, a study on disk remembers."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import pathlib
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.main_effects import predictor
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.requirements import need
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search_space import Settings, Space

#: points drawn at random before the model of the objective is trusted
STARTUP_TRIALS = 12

#: after those, every so many-th trial is the sampler's, which sees what the variables do together
SAMPLER_EVERY = 5

#: proposals refused (a constraint, a point known already) before the most promising point is taken instead
PATIENCE = 20

SETTINGS_KEY = "settings"
FAILURE_KEY = "failure"
SAMPLES_KEY = "samples"


class StudyBusyError(Exception):
    """Another search works on the same study."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One measured point. score: larger is better, None where the job failed; samples: the single measurements."""

    number: int
    settings: dict[str, str]
    score: float | None
    failure: str = ""
    samples: tuple[float, ...] = ()


class Search:
    """Ask for settings, measure them, tell the result. A search that was killed goes on where it stopped."""

    def __init__(self, space: Space, directory: pathlib.Path, name: str, seed: int = 0) -> None:
        """Open the study *name* in *directory* (SQLite), or make it. StudyBusyError where another process has it."""
        self._optuna = need("optuna")
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self.space = space
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = (directory / f"{name}.lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise StudyBusyError(f"another search works on the study {name} in {directory}") from None
        self._study = self._optuna.create_study(
            storage=f"sqlite:///{directory / name}.db",
            study_name=name,
            load_if_exists=True,
            direction="maximize",
            sampler=self._optuna.samplers.TPESampler(
                seed=seed + len(self._stored(directory, name)), multivariate=True, n_startup_trials=STARTUP_TRIALS
            ),
        )
        self._asked: dict[int, t.Any] = {}
        self._forget_unfinished()

    def _stored(self, directory: pathlib.Path, name: str) -> list[t.Any]:
        with contextlib.suppress(KeyError):
            return list(self._optuna.load_study(study_name=name, storage=f"sqlite:///{directory / name}.db").trials)
        return []

    def _forget_unfinished(self) -> None:
        """Trials that were running when an earlier search was killed will never end."""
        for trial in self._study.get_trials(states=(self._optuna.trial.TrialState.RUNNING,)):
            self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)

    def close(self) -> None:
        self._lock.close()

    def ask(self) -> tuple[int, dict[str, str]]:
        """(trial number, settings) of a point that was not measured yet. LookupError where every point is known.

        After a random start, most trials are the unmeasured point that the main effects promise most of: on ordered
        values with 25 trials that finds the best region more surely than the sampler's model alone.
        """
        known = [trial.settings for trial in self.trials()]
        if len(known) >= STARTUP_TRIALS and len(known) % SAMPLER_EVERY:
            return self.ask_for(self._most_promising(known))
        for _attempt in range(PATIENCE):
            trial = self._study.ask()
            settings = self._settings(trial)
            if self.space.allows(settings) and settings not in known:
                return self._remember(trial, settings)
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        return self.ask_for(self._most_promising(known))

    def ask_for(self, settings: Settings) -> tuple[int, dict[str, str]]:
        """A trial of given settings: the defaults, those in force, a guide's. They need not be points of the space."""
        indexes = self.space.indexes(settings)
        if indexes is None:
            trial = self._study.ask()
            return self._remember(trial, dict(settings), outside=True)
        self._study.enqueue_trial(indexes)
        trial = self._study.ask()
        return self._remember(trial, self._settings(trial))

    def tell(self, number: int, samples: t.Sequence[float], failure: str = "") -> None:
        """Report the measurements of a trial (their median counts), or why there are none: a failure is a result too."""
        trial, outside = self._asked.pop(number)
        if failure or not samples:
            trial.set_user_attr(FAILURE_KEY, failure or "no measurement")
        trial.set_user_attr(SAMPLES_KEY, list(samples))
        state = self._optuna.trial.TrialState
        if failure or not samples or outside:
            self._study.tell(trial, state=state.FAIL)
        else:
            self._study.tell(trial, sorted(samples)[len(samples) // 2])

    def trials(self) -> list[Trial]:
        """Every point that was measured or failed, in order."""
        found = []
        for trial in self._study.get_trials(deepcopy=False):
            if SETTINGS_KEY in trial.user_attrs and SAMPLES_KEY in trial.user_attrs:
                samples = tuple(trial.user_attrs[SAMPLES_KEY])
                failure = trial.user_attrs.get(FAILURE_KEY, "")
                score = None if failure else sorted(samples)[len(samples) // 2]
                settings = json.loads(trial.user_attrs[SETTINGS_KEY])
                found.append(Trial(trial.number, settings, score, failure, samples))
        return found

    def best(self, count: int = 1) -> list[Trial]:
        """The best *count* trials, best first."""
        scored = [trial for trial in self.trials() if trial.score is not None]
        return sorted(scored, key=lambda trial: -(trial.score or 0.0))[:count]

    def importances(self) -> dict[str, float]:
        """{variable: share of the variance that it explains}, empty while there is too little to tell."""
        with contextlib.suppress(ValueError, RuntimeError, ZeroDivisionError, ImportError):
            evaluator = self._optuna.importance.PedAnovaImportanceEvaluator()
            return dict(self._optuna.importance.get_param_importances(self._study, evaluator=evaluator))
        return {}

    def _settings(self, trial: t.Any) -> dict[str, str]:
        chosen = {k.name: k.values[trial.suggest_int(k.name, 0, len(k.values) - 1)] for k in self.space.knobs}
        return {name: value for name, value in chosen.items() if value is not None}

    def _remember(self, trial: t.Any, settings: dict[str, str], outside: bool = False) -> tuple[int, dict[str, str]]:
        trial.set_user_attr(SETTINGS_KEY, json.dumps(settings, sort_keys=True))
        self._asked[trial.number] = (trial, outside)
        return trial.number, settings

    def _most_promising(self, known: t.Sequence[Settings]) -> dict[str, str]:
        """The unmeasured point with the best guess, so that a small space is searched to its end, too."""
        unknown = [point for point in self.space.points() if point not in known]
        if not unknown:
            raise LookupError("every point of the space has been measured")
        measured = {}
        for trial in self.trials():
            position = self._position(trial.settings)
            if trial.score is not None and trial.score > 0 and position is not None:
                measured[position] = trial.score
        if not measured:
            return unknown[0]
        guess = predictor(measured, [len(knob.values) for knob in self.space.knobs])
        return max(unknown, key=lambda point: guess(self._position(point) or ()))

    def _position(self, settings: Settings) -> tuple[int, ...] | None:
        indexes = self.space.indexes(settings)
        return None if indexes is None else tuple(indexes[knob.name] for knob in self.space.knobs)
