# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The search for better settings: Optuna proposes by proposals.py, the cluster measures, a study on disk remembers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import proposals
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.requirements import need
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search_space import Settings, Space
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.surrogate import Point

#: the attributes that a trial carries in the study: what was asked, what became of it
SETTINGS, OUTCOME = "settings", "outcome"


@dataclasses.dataclass(frozen=True)
class Trial:
    """One launch. score: larger is better, None where there is none; failure: why not; seconds: how long it took."""

    number: int
    settings: dict[str, str]
    score: float | None
    failure: str = ""
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Candidate:
    """All launches of the same settings. score: their geometric mean, drawn towards what similar settings reached."""

    settings: dict[str, str]
    scores: tuple[float, ...]
    score: float


class Search:
    """Ask for settings, measure them, tell the result. A search that was killed goes on where it stopped."""

    def __init__(self, space: Space, directory: pathlib.Path, name: str, budget: int, seed: int = 0) -> None:
        """Open the study *name* in *directory* (SQLite), or make it. budget: launches in all, earlier ones included."""
        self._optuna = need("optuna")
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self.space = space
        self.budget = budget
        self._points = {_position(space, point): point for point in space.points()}
        self._design = proposals.design(list(self._points), seed)
        self._next: dict[str, int] = {}
        directory.mkdir(parents=True, exist_ok=True)
        self._study = self._optuna.create_study(
            storage=f"sqlite:///{directory / name}.db",
            study_name=name,
            load_if_exists=True,
            direction="maximize",
            sampler=self._sampler(),
        )
        self._asked: dict[int, tuple[t.Any, bool]] = {}
        for trial in self._study.get_trials(states=(self._optuna.trial.TrialState.RUNNING,)):
            self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)  # killed while it was measured

    def ask(self) -> tuple[int, dict[str, str]]:
        """(trial number, settings): a point that nobody measured, or towards the end of the budget a leader once more."""
        measured, hopeless = self._measured()
        tried = len(self.trials())
        point = proposals.propose(list(self._points), measured, hopeless, self._design, self.budget - tried)
        return self.ask_for(self._points[point])

    def ask_for(self, settings: Settings) -> tuple[int, dict[str, str]]:
        """A trial of given settings: the defaults, those in force, a guide's. They need not be points of the space."""
        indexes = self.space.indexes(settings)
        self._next = indexes or dict.fromkeys((knob.name for knob in self.space.knobs), 0)
        trial = self._study.ask(self._distributions())
        trial.set_user_attr(SETTINGS, json.dumps(dict(settings), sort_keys=True))
        self._asked[trial.number] = (trial, indexes is None)
        return trial.number, dict(settings)

    def tell(self, number: int, score: float | None, failure: str = "", seconds: float = 0.0) -> None:
        """Report a launch: its score, or why there is none. A failure is a result too."""
        trial, outside = self._asked.pop(number)
        if score is None:
            failure = failure or "no measurement"
        trial.set_user_attr(OUTCOME, {"score": score, "failure": failure, "seconds": seconds})
        state = self._optuna.trial.TrialState
        if failure or outside:
            self._study.tell(trial, state=state.FAIL)
        else:
            self._study.tell(trial, score)

    def trials(self) -> list[Trial]:
        """Every launch that was told of, in order."""
        found = []
        for trial in self._study.get_trials(deepcopy=False):
            if OUTCOME in trial.user_attrs:
                outcome = trial.user_attrs[OUTCOME]
                score = None if outcome["failure"] else outcome["score"]
                settings = json.loads(trial.user_attrs[SETTINGS])
                found.append(Trial(trial.number, settings, score, outcome["failure"], outcome["seconds"]))
        return found

    def best(self, count: int = 1) -> list[Candidate]:
        """The best *count* settings, best first."""
        launches: dict[str, list[float]] = {}
        for trial in self.trials():
            if trial.score is not None:
                launches.setdefault(json.dumps(trial.settings, sort_keys=True), []).append(trial.score)
        measured, hopeless = self._measured()
        guessed = proposals.scores(measured, hopeless)
        candidates = []
        for text, scores in launches.items():
            settings: dict[str, str] = json.loads(text)
            point = _position(self.space, settings) if self.space.indexes(settings) is not None else ()
            candidates.append(Candidate(settings, tuple(scores), guessed.get(point) or proposals.mean(scores)))
        return sorted(candidates, key=lambda candidate: -candidate.score)[:count]

    def importances(self) -> dict[str, float]:
        """{variable: share of the variance that it explains}, empty while there is too little to tell."""
        with contextlib.suppress(ValueError, RuntimeError, ZeroDivisionError, ImportError):
            evaluator = self._optuna.importance.PedAnovaImportanceEvaluator()
            return dict(self._optuna.importance.get_param_importances(self._study, evaluator=evaluator))
        return {}

    def _measured(self) -> tuple[dict[Point, list[float]], set[Point]]:
        """({point: scores}, points that failed and never gave a score), of the space's own points."""
        measured: dict[Point, list[float]] = {}
        failed: set[Point] = set()
        for trial in self.trials():
            if self.space.indexes(trial.settings) is None:
                continue
            point = _position(self.space, trial.settings)
            if trial.score is not None and trial.score > 0:
                measured.setdefault(point, []).append(trial.score)
            else:
                failed.add(point)
        return measured, failed - set(measured)

    def _distributions(self) -> dict[str, t.Any]:
        make = self._optuna.distributions.IntDistribution
        return {knob.name: make(0, len(knob.values) - 1) for knob in self.space.knobs}

    def _sampler(self) -> t.Any:
        """Optuna's way to be told how to sample: it takes the positions that were decided on."""
        search = self

        class Sampler(self._optuna.samplers.BaseSampler):  # type: ignore[misc, name-defined]
            def infer_relative_search_space(self, study: t.Any, trial: t.Any) -> dict[str, t.Any]:
                return search._distributions()

            def sample_relative(self, study: t.Any, trial: t.Any, search_space: t.Any) -> dict[str, int]:
                return search._next

            def sample_independent(self, study: t.Any, trial: t.Any, name: str, distribution: t.Any) -> int:
                return search._next[name]

        return Sampler()


def _position(space: Space, settings: Settings) -> Point:
    indexes = space.indexes(settings) or {}
    return tuple(indexes[knob.name] for knob in space.knobs)
