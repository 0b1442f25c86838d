# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A whole study: what is in force first, then the search, then the best against it in turn, until it is known what is better.

Who measures is the caller's: a cluster, one machine with two GPUs, a simulation.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_samples import Comparison, compare
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.proposals import mean
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search import Candidate, Search
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search_space import Settings
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_objective import (
    Objective,
    Part,
    is_hopeless,
    speed_of,
)

#: how often the best and what it is compared with are measured in turn at the end
ROUNDS = 5

#: a part may take so many times what it took with the settings in force, and at least so long, before it is ended, in seconds
PATIENCE, LEAST_S = 4.0, 20.0

#: a look at a small size is taken first only where it takes less than this share of the whole trial
PROBE_PAYS = 0.5

#: leaders of the search that may fail with other collectives before none is left
LEADERS = 4

#: rounds of the search that must fit besides what is always measured
LEAST_TRIALS = 2

#: what the settings in force are called
CURRENT = "current"

Run = t.Mapping[str, t.Any]


class StudyError(Exception):
    """The study cannot begin or go on; the sentence says why, and what to do."""


class NodeLostError(StudyError):
    """A node went away. What was measured is kept, and the same command goes on once it is back."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """One part of a trial. run: of the record's shape; failure: its kind, "" where it is whole."""

    run: Run
    failure: str
    seconds: float


#: (settings, part, time limit in seconds) -> what came of it. NodeLostError ends the study.
Measure = t.Callable[[Settings, Part, float], Measured]


@dataclasses.dataclass(frozen=True)
class Budget:
    """trials: launches of the search in all, earlier sessions included; minutes: likewise, the comparison at the end included.

    timeout_s: of a part before anything is known of it; hopeless: the share of the best speed below which a trial is cut off.
    """

    trials: int
    minutes: float
    timeout_s: float = 300.0
    hopeless: float = 0.4


class Study:
    """starts: {who: settings}, measured first and compared with at the end; CURRENT is one of them. others: parts of further
    collectives that must still work. say: takes a sentence on how far it is.
    """

    def __init__(
        self,
        search: Search,
        objective: Objective,
        starts: t.Mapping[str, Settings],
        others: t.Sequence[Part],
        budget: Budget,
        measure: Measure,
        say: t.Callable[[str], None],
        clock: t.Callable[[], float] = time.monotonic,
    ) -> None:
        self.search, self.objective, self.budget = search, objective, budget
        self.starts = {who: dict(settings) for who, settings in starts.items()}
        self.others = others
        self.rejected: list[dict[str, t.Any]] = []
        self._measure, self._say, self._clock = measure, say, clock
        self._seconds: dict[Part, float] = {}
        self._speeds: dict[Part, float] = {}
        self._deadline = clock() + 60 * budget.minutes - sum(trial.seconds for trial in search.trials())

    def run(self) -> dict[str, t.Any]:
        """{best, better, contestants, comparisons, samples, rejected}, see _conclude(). StudyError where it cannot be carried out."""
        least = len(self._distinct_starts()) + LEAST_TRIALS
        if self.budget.trials < least:
            raise StudyError(
                f"autotune_trials is {self.budget.trials}, and at least {least} are needed: the settings that are there "
                f"({', '.join(self.starts)}) are measured too"
            )
        self._warm_up()
        self._measure_starts()
        while (launches := len(self.search.trials())) < self.budget.trials and self._time_left() > self._reserve():
            if self.search.is_exhausted():
                break
            number, settings = self.search.ask()
            self._trial(number, settings, launches + 1)
        return self._conclude()

    # -- the search

    def _distinct_starts(self) -> list[dict[str, str]]:
        return list({json.dumps(settings, sort_keys=True): settings for settings in self.starts.values()}.values())

    def _warm_up(self) -> None:
        """A look at a small size with what is in force: it opens the launch, and tells what such a look takes."""
        probe = self.objective.probe
        done = self._measure(self.starts[CURRENT], probe, self._limit(probe))
        if not done.failure:
            self._learn(probe, done)

    def _learn(self, part: Part, done: Measured) -> None:
        self._seconds[part] = min(self._seconds.get(part, done.seconds), done.seconds)
        self._speeds[part] = max(self._speeds.get(part, 0.0), speed_of(done.run) or 0.0)

    def _measure_starts(self) -> None:
        """Whatever is there already. With none of it does the benchmark work: then there is nothing to tune."""
        known = {json.dumps(trial.settings, sort_keys=True) for trial in self.search.trials()}
        starts = self._distinct_starts()
        for place, settings in enumerate(starts):
            if json.dumps(settings, sort_keys=True) not in known:
                number, _settings = self.search.ask_for(settings)
                self._trial(number, settings, len(self.search.trials()) + 1)
                self._check_minutes(len(starts) - place - 1 + LEAST_TRIALS)
        tried = self.search.trials()
        if not any(trial.score for trial in tried):
            failures = ", ".join(sorted({trial.failure for trial in tried}))
            raise StudyError(
                f"the benchmark fails with the settings that are there ({failures}), so nothing can be compared: "
                "run the playbook nccl_tests, and repair what it names"
            )

    def _check_minutes(self, trials_to_come: int) -> None:
        seconds = self._trial_seconds() * trials_to_come + self._reserve()
        if self._time_left() < seconds and len(self.search.trials()) <= len(self.starts):
            needed = (60 * self.budget.minutes - self._time_left() + seconds) / 60
            raise StudyError(
                f"autotune_minutes is {self.budget.minutes:g}, and a trial takes {self._trial_seconds():.0f} s here: with the "
                f"comparison at the end at least {needed + 0.5:.0f} are needed"
            )

    def _trial(self, number: int, settings: Settings, launch: int) -> None:
        began = self._clock()
        score, failure = self._measure_whole(settings, prune=True)
        self.search.tell(number, score, failure, round(self._clock() - began, 3))
        best = self.search.best()
        told = self.objective.say(score) if score is not None else failure
        self._say(
            f"trial {launch} of {self.budget.trials}: {told} with {_words(settings)}; best so far "
            f"{self.objective.say(mean(best[0].scores)) if best else 'none'}; {max(self._time_left(), 0) / 60:.1f} min left"
        )

    def _measure_whole(self, settings: Settings, prune: bool = False) -> tuple[float | None, str]:
        """(score, "") of all parts, or (None, the kind of failure); with *prune*, hopeless settings are cut off early."""
        runs = []
        whole = sum(self._seconds.get(part, 0.0) for part in self.objective.parts)
        probe = self.objective.probe
        looks = prune and self._seconds.get(probe, whole) < PROBE_PAYS * whole
        for part in (*((probe,) if looks else ()), *self.objective.parts):
            done = self._measure(settings, part, self._limit(part))
            if done.failure:
                return None, done.failure
            speed = speed_of(done.run)
            last = part is self.objective.parts[-1]
            if prune and not last and is_hopeless(speed, self._speeds.get(part), self.budget.hopeless):
                return None, f"hopeless: {speed:.3g} GB/s at {part.max_bytes} bytes"
            self._learn(part, done)
            if not part.probe:
                runs.append(done.run)
        score = self.objective.score(runs)
        return score, "" if score is not None else "no measurement"

    def _limit(self, part: Part) -> float:
        known = self._seconds.get(part)
        return self.budget.timeout_s if known is None else min(self.budget.timeout_s, max(LEAST_S, PATIENCE * known))

    def _time_left(self) -> float:
        return self._deadline - self._clock()

    def _trial_seconds(self) -> float:
        whole = [trial.seconds for trial in self.search.trials() if not trial.failure]
        return statistics.median(whole or [trial.seconds for trial in self.search.trials()])

    def _reserve(self) -> float:
        """What the comparison at the end will take, in seconds."""
        contestants = len(self._distinct_starts()) + 1
        return self._trial_seconds() * (ROUNDS * contestants + len(self.others))

    # -- the end

    def _conclude(self) -> dict[str, t.Any]:
        """best: the settings, those in force where nothing is better outside the noise; better: whether something is.

        contestants: {who: settings}, the search's candidate as ``best``; samples: {who: scores in turn};
        comparisons: {who: {ratio, low, high, text}} of the candidate against each start; rejected: what breaks collectives.
        """
        candidate = self._working_leader()
        if candidate is None:
            return self._outcome(self.starts[CURRENT], False, {}, {}, {})
        contestants = {"best": candidate.settings, **self.starts}
        samples = self._in_turn(contestants)
        comparisons = {
            who: compare(samples["best"], samples[who])
            for who in self.starts
            if who in samples and samples[who] and samples["best"]
        }
        against = comparisons.get(CURRENT)
        same = candidate.settings == self.starts[CURRENT]
        # Settings in force with which nothing could be measured are beaten by any that work.
        better = not same and bool(samples["best"]) and (against.better if against else not samples[CURRENT])
        best = candidate.settings if better else self.starts[CURRENT]
        return self._outcome(best, better, contestants, comparisons, samples)

    def _outcome(
        self,
        best: Settings,
        better: bool,
        contestants: t.Mapping[str, Settings],
        comparisons: t.Mapping[str, Comparison],
        samples: t.Mapping[str, t.Sequence[float]],
    ) -> dict[str, t.Any]:
        return {
            "best": dict(best),
            "better": better,
            "contestants": {who: dict(settings) for who, settings in contestants.items()},
            "comparisons": {
                who: {"ratio": c.ratio, "low": c.low, "high": c.high, "text": c.text} for who, c in comparisons.items()
            },
            "samples": {who: list(values) for who, values in samples.items()},
            "rejected": self.rejected,
        }

    def _working_leader(self) -> Candidate | None:
        """The first leader with which the other collectives work, too. What is there already needs no such proof."""
        for leader in self.search.best(LEADERS):
            if leader.settings in self.starts.values():
                return leader
            failed = {}
            for part in self.others:
                done = self._measure(leader.settings, part, self._limit(part))
                if done.failure:
                    failed[part.collective] = done.failure
            if not failed:
                return leader
            self.rejected.append({"settings": leader.settings, "collectives": failed})
            self._say(f"{_words(leader.settings)} does not work with {', '.join(failed)}, and so cannot be chosen")
        return None

    def _in_turn(self, contestants: t.Mapping[str, Settings]) -> dict[str, list[float]]:
        """{who: scores}, ROUNDS of each, one after the other, so that a drift hits all alike. Equal settings share theirs."""
        samples: dict[str, list[float]] = {json.dumps(s, sort_keys=True): [] for s in contestants.values()}
        for number in range(1, ROUNDS + 1):
            self._say(f"comparison, round {number} of {ROUNDS}: {', '.join(contestants)}")
            for key in list(samples):
                score, _failure = self._measure_whole(json.loads(key))
                if score is not None:
                    samples[key].append(score)
        return {who: samples[json.dumps(settings, sort_keys=True)] for who, settings in contestants.items()}


def _words(settings: Settings) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(settings.items())) or "nothing set"
