# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A search whose trials Optuna asks for and keeps on disk, so that one that was killed goes on where it stopped."""

from __future__ import annotations

import contextlib
import json
import pathlib
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.requirements import need
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search import Search, Trial
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search_space import Space

#: the attributes that a trial carries in the study: what was asked, what became of it
SETTINGS, OUTCOME = "settings", "outcome"

#: trials with a score from which it can be told which variable matters
TELLING = 8


class OptunaSearch(Search):
    """Optuna's sampler is proposals.py: its own ones know neither that values are ordered nor how noisy a launch is."""

    def __init__(self, space: Space, directory: pathlib.Path, name: str, budget: int, seed: int = 0) -> None:
        """Open the study *name* in *directory* (SQLite), or make it. OSError, or ValueError with a sentence, where that cannot be."""
        super().__init__(space, budget, seed)
        self._optuna = need("optuna")
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        make = self._optuna.distributions.IntDistribution
        self._distributions = {knob.name: make(0, len(knob.values) - 1) for knob in space.knobs}
        self._next: dict[str, int] = {}
        self._open: dict[int, t.Any] = {}
        directory.mkdir(parents=True, exist_ok=True)
        self._file = directory / f"{name}.db"
        with self._on_disk():
            self._study = self._optuna.create_study(
                storage=f"sqlite:///{self._file}",
                study_name=name,
                load_if_exists=True,
                direction="maximize",
                sampler=self._sampler(),
            )
            for trial in self._study.get_trials(deepcopy=False):
                if OUTCOME in trial.user_attrs:
                    settings = json.loads(trial.user_attrs[SETTINGS])
                    self._trials.append(Trial(trial.number, settings, **trial.user_attrs[OUTCOME]))
                elif not trial.state.is_finished():  # killed while it was measured
                    self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)

    @contextlib.contextmanager
    def _on_disk(self) -> t.Iterator[None]:
        """ValueError with a sentence where the study's file is none, or its disk is full or closed to us."""
        try:
            yield
        except (need("sqlalchemy.exc").SQLAlchemyError, self._optuna.exceptions.OptunaError) as error:
            why = str(getattr(error, "orig", None) or error.__cause__ or error).splitlines()[0]
            raise ValueError(
                f"{self._file} cannot be used: {why}; make room, or move the file away to begin the study anew"
            ) from None

    def importances(self) -> dict[str, float]:
        if sum(trial.score is not None for trial in self._trials) < TELLING:
            return {}
        with contextlib.suppress(ValueError, RuntimeError, ZeroDivisionError, ImportError):
            evaluator = self._optuna.importance.PedAnovaImportanceEvaluator()
            return dict(self._optuna.importance.get_param_importances(self._study, evaluator=evaluator))
        return {}

    def _begin(self, settings: dict[str, str], indexes: t.Mapping[str, int] | None) -> int:
        self._next = dict(indexes or dict.fromkeys(self._distributions, 0))
        with self._on_disk():
            trial = self._study.ask(self._distributions)
            trial.set_user_attr(SETTINGS, json.dumps(settings, sort_keys=True))
        self._open[trial.number] = trial
        return int(trial.number)

    def _end(self, trial: Trial, inside: bool) -> None:
        """Settings outside of the space have no parameters, so that only what was told of them is kept, as a failed trial."""
        asked = self._open.pop(trial.number)
        with self._on_disk():
            asked.set_user_attr(OUTCOME, {"score": trial.score, "failure": trial.failure, "seconds": trial.seconds})
            if trial.score is None or not inside:
                self._study.tell(asked, state=self._optuna.trial.TrialState.FAIL)
            else:
                self._study.tell(asked, trial.score)

    def _sampler(self) -> t.Any:
        search = self

        class Sampler(self._optuna.samplers.BaseSampler):  # type: ignore[misc, name-defined]
            """Takes the positions that the search decided on."""

            def infer_relative_search_space(self, study: t.Any, trial: t.Any) -> dict[str, t.Any]:
                return search._distributions

            def sample_relative(self, study: t.Any, trial: t.Any, search_space: t.Any) -> dict[str, int]:
                return search._next

            def sample_independent(self, study: t.Any, trial: t.Any, name: str, distribution: t.Any) -> int:
                return search._next[name]

        return Sampler()
