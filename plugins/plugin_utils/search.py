# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The search for better settings: ask for some, measure them, tell the result. In memory; optuna_search.py remembers."""

from __future__ import annotations

import dataclasses
import json
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import proposals
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search_space import Settings, Space
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.surrogate import Point

#: launches of each point, on average, after which a space whose points are all known is searched to its end
ENOUGH = 3


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
    """budget: launches in all, those of earlier sessions included."""

    def __init__(self, space: Space, budget: int, seed: int = 0) -> None:
        self.space = space
        self.budget = budget
        self._points = {_position(space, point): point for point in space.points()}
        self._design = proposals.design(list(self._points), seed)
        self._trials: list[Trial] = []
        self._asked: dict[int, dict[str, str]] = {}

    def ask(self) -> tuple[int, dict[str, str]]:
        """(trial number, settings): a point that nobody measured, or towards the end of the budget a leader once more."""
        measured, failed = self._measured()
        left = self.budget - len(self._trials)
        return self.ask_for(self._points[proposals.propose(list(self._points), measured, failed, self._design, left)])

    def ask_for(self, settings: Settings) -> tuple[int, dict[str, str]]:
        """A trial of given settings: the defaults, those in force, a guide's. They need not be points of the space."""
        number = self._begin(dict(settings), self.space.indexes(settings))
        self._asked[number] = dict(settings)
        return number, dict(settings)

    def tell(self, number: int, score: float | None, failure: str = "", seconds: float = 0.0) -> None:
        """Report a launch: its score, or why there is none. A failure is a result too."""
        failure = failure or ("no measurement" if score is None else "")
        trial = Trial(number, self._asked.pop(number), None if failure else score, failure, seconds)
        self._end(trial, self.space.indexes(trial.settings) is not None)
        self._trials.append(trial)

    def trials(self) -> list[Trial]:
        """Every launch that was told of, in order."""
        return list(self._trials)

    def is_exhausted(self) -> bool:
        """Whether every point is known, and so often that another launch would tell little: a small space is soon searched."""
        measured, failed = self._measured()
        launches = sum(map(len, measured.values()))
        return len(measured) + len(failed) >= len(self._points) and launches >= ENOUGH * len(measured)

    def best(self, count: int = 1) -> list[Candidate]:
        """The best *count* settings, best first."""
        launches: dict[str, list[float]] = {}
        for trial in self._trials:
            if trial.score is not None:
                launches.setdefault(json.dumps(trial.settings, sort_keys=True), []).append(trial.score)
        measured, failed = self._measured()
        guessed = proposals.scores(measured, failed)
        candidates = []
        for text, scores in launches.items():
            settings: dict[str, str] = json.loads(text)
            point = _position(self.space, settings) if self.space.indexes(settings) is not None else ()
            candidates.append(Candidate(settings, tuple(scores), guessed.get(point) or proposals.mean(scores)))
        return sorted(candidates, key=lambda candidate: -candidate.score)[:count]

    def importances(self) -> dict[str, float]:
        """{variable: share of the variance that it explains}, empty where that cannot be told."""
        return {}

    def _begin(self, settings: dict[str, str], indexes: t.Mapping[str, int] | None) -> int:
        """The number of a trial that begins. indexes: {knob: position of its value}, None outside of the space."""
        return len(self._trials) + len(self._asked)

    def _end(self, trial: Trial, inside: bool) -> None:
        """Take note of a trial that is over. inside: whether it is a point of the space."""

    def _measured(self) -> tuple[dict[Point, list[float]], set[Point]]:
        """({point: scores}, points that failed and never gave a score), of the space's own points."""
        measured: dict[Point, list[float]] = {}
        failed: set[Point] = set()
        for trial in self._trials:
            if self.space.indexes(trial.settings) is None:
                continue
            point = _position(self.space, trial.settings)
            if trial.score is not None and trial.score > 0:
                measured.setdefault(point, []).append(trial.score)
            else:
                failed.add(point)
        return measured, failed - set(measured)


def _position(space: Space, settings: Settings) -> Point:
    indexes = space.indexes(settings) or {}
    return tuple(indexes[knob.name] for knob in space.knobs)
