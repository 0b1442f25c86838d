# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole studies on a simulated cluster: gains, noise, hangs, crashes, a lost node, a kill."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
import time
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.optuna_search import OptunaSearch
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search import Search
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search_space import Settings, Space
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_objective import Objective, Part, for_busbw
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_study import (
    CURRENT,
    LEAST_S,
    ROUNDS,
    NodeLostError,
    Study,
    StudyError,
)
from simulated_tuning import BUDGET, OBJECTIVE, OTHERS, SPACE, Budget, Cluster

pytest.importorskip("numpy")

PLANTED = {"btl_tcp_sndbuf": "1048576"}


def study(
    cluster: Cluster,
    starts: t.Mapping[str, Settings] | None = None,
    budget: Budget = BUDGET,
    objective: Objective = OBJECTIVE,
    search: Search | None = None,
) -> Study:
    search = search or Search(SPACE, budget.trials)
    given = {"default": {}, CURRENT: {}} if starts is None else starts
    return Study(search, objective, given, OTHERS, budget, cluster.measure, cluster.say, cluster.clock)


def test_a_planted_better_setting_is_found_and_told_with_confidence() -> None:
    cluster = Cluster()
    worse = {"btl_tcp_links": "4", "btl_tcp_eager_limit": "16384"}
    one = study(cluster, {"default": {}, CURRENT: {}, "guide": worse})
    outcome = one.run()
    assert outcome["better"] and outcome["best"]["btl_tcp_sndbuf"] == "1048576"
    assert 2.7 < outcome["comparisons"][CURRENT]["low"] < 3 < outcome["comparisons"][CURRENT]["high"] < 3.3
    assert {who: len(values) for who, values in outcome["samples"].items()} == dict.fromkeys(
        outcome["contestants"], ROUNDS
    )
    launched = [trial.settings for trial in one.search.trials()]
    assert launched[:2] == [{}, worse], "what is there is measured first"
    last = [settings for settings, _part, _limit in cluster.launches[-3 * ROUNDS :]]
    assert last == last[:3] * ROUNDS, "in turn"
    trial = next(sentence for sentence in cluster.sentences if sentence.startswith("trial 9 of 20"))
    assert "best so far" in trial and "min left" in trial


def test_luck_is_no_gain() -> None:
    current = {"btl_tcp_links": "2"}
    outcome = study(Cluster(lambda settings: 1.0, noise=0.08), {"default": {}, CURRENT: current}).run()
    assert not outcome["better"]
    assert outcome["best"] == current
    assert "no difference" in outcome["comparisons"][CURRENT]["text"]


def test_settings_in_force_that_are_worse_than_the_defaults_are_told() -> None:
    slow = {"btl_tcp_sndbuf": "65536"}
    speeds = {"65536": 0.2}
    cluster = Cluster(lambda settings: speeds.get(settings.get("btl_tcp_sndbuf", ""), 1.0))
    outcome = study(cluster, {"default": {}, CURRENT: slow}).run()
    assert outcome["better"] and outcome["comparisons"][CURRENT]["low"] > 3
    assert outcome["best"].get("btl_tcp_sndbuf") != "65536"


def test_crashes_and_hangs_are_data() -> None:
    def failing(settings: Settings, part: Part) -> str:
        if settings.get("btl_tcp_links") == "4":
            return "exit_status"
        return "timeout" if settings.get("btl_tcp_eager_limit") == "262144" else ""

    cluster = Cluster(failing=failing)
    one = study(cluster, budget=dataclasses.replace(BUDGET, hopeless=0))
    outcome = one.run()
    assert outcome["best"] == PLANTED or outcome["best"]["btl_tcp_sndbuf"] == "1048576"
    failures = {trial.failure for trial in one.search.trials() if trial.failure}
    assert failures == {"exit_status", "timeout"}
    hung = [limit for settings, part, limit in cluster.launches if failing(settings, part) == "timeout"]
    assert max(hung) <= max(LEAST_S, 4 * cluster.seconds), "a hang costs a few times a good launch, not the whole limit"


def test_what_breaks_another_collective_does_not_win() -> None:
    def failing(settings: Settings, part: Part) -> str:
        broken = part.collective == "all_gather" and settings.get("btl_tcp_sndbuf") == "1048576"
        return "exit_status" if broken else ""

    cluster = Cluster(failing=failing)
    outcome = study(cluster, budget=dataclasses.replace(BUDGET, trials=30)).run()
    assert outcome["best"].get("btl_tcp_sndbuf") != "1048576"
    assert outcome["rejected"] and all(
        one["collectives"] == {"all_gather": "exit_status"} for one in outcome["rejected"]
    )


def test_hopeless_settings_are_cut_off_at_a_small_size() -> None:
    cluster = Cluster(lambda settings: 0.1 if "btl_tcp_links" in settings else 1.0)
    one = study(cluster)
    one.run()
    cut = [trial for trial in one.search.trials() if trial.failure.startswith("hopeless")]
    assert cut and all("btl_tcp_links" in trial.settings and trial.seconds < cluster.seconds / 2 for trial in cut)
    whole = [s for s, part, _limit in cluster.launches if not part.probe and "btl_tcp_links" in s]
    assert whole == []


def test_no_look_is_taken_where_it_does_not_pay() -> None:
    cluster = Cluster()
    wide = for_busbw("all_reduce", ["128K"])
    cluster.seconds = 1.0
    one = study(cluster, objective=wide)
    one._seconds = dict.fromkeys((wide.probe, *wide.parts), 1.0)
    one._measure_whole({}, prune=True)
    assert [part.probe for _settings, part, _limit in cluster.launches] == [False]


def test_a_benchmark_that_never_works_is_said_so() -> None:
    cluster = Cluster(failing=lambda settings, part: "no_rows")
    with pytest.raises(StudyError, match=r"fails with the settings that are there \(no_rows\).*nccl_tests"):
        study(cluster).run()


def test_settings_in_force_that_fail_are_beaten_by_any_that_work() -> None:
    cluster = Cluster(failing=lambda settings, part: "exit_status" if settings.get("btl_tcp_links") == "4" else "")
    outcome = study(cluster, {"default": {}, CURRENT: {"btl_tcp_links": "4"}}).run()
    assert outcome["better"] and "btl_tcp_links" not in outcome["best"] or outcome["best"]["btl_tcp_links"] == "2"
    assert CURRENT not in outcome["comparisons"]


@pytest.mark.parametrize(
    ("budget", "sentence"),
    [
        (Budget(trials=2, minutes=30), "autotune_trials is 2, and at least 3 are needed"),
        (
            Budget(trials=20, minutes=0.5),
            "autotune_minutes is 0.5, and a trial takes 5 s here: .* at least 2 are needed",
        ),
    ],
)
def test_a_budget_that_is_too_small_is_said_in_one_sentence(budget: Budget, sentence: str) -> None:
    with pytest.raises(StudyError, match=sentence):
        study(Cluster(), budget=budget).run()


def test_minutes_end_the_search_and_leave_time_for_the_comparison() -> None:
    cluster = Cluster()
    one = study(cluster, budget=Budget(trials=500, minutes=5))
    outcome = one.run()
    assert len(one.search.trials()) < 60 and len(outcome["samples"]["best"]) == ROUNDS
    assert cluster.now <= 310


def test_a_small_space_does_not_use_up_the_budget() -> None:
    cluster = Cluster()
    small = Search(Space((SPACE.knobs[1],)), 200)
    outcome = study(cluster, budget=dataclasses.replace(BUDGET, trials=200), search=small).run()
    assert outcome["best"] == PLANTED
    assert len(small.trials()) <= 3 * len(SPACE.knobs[1].values)


def test_a_lost_node_keeps_the_study_and_the_same_command_goes_on() -> None:
    first = study(Cluster(lost_after=9))
    with pytest.raises(NodeLostError, match="n2 went away"):
        first.run()
    assert 3 <= len(first.search.trials()) <= 8
    assert study(Cluster(), search=first.search).run()["better"]
    assert len(first.search.trials()) == BUDGET.trials


def test_a_whole_study_is_only_compared_again() -> None:
    first = study(Cluster())
    first.run()
    again = Cluster()
    assert study(again, search=first.search).run()["better"]
    assert len(again.launches) == 1 + len(OTHERS) + 2 * ROUNDS


KILLED = """
import os, pathlib, sys, time
sys.path[:0] = sys.argv[2].split(os.pathsep)
from simulated_tuning import *
from test_tune_study import OptunaSearch, study
cluster = Cluster()
answer = cluster.measure
def slow(settings, part, limit_s):
    time.sleep(0.05)
    print(len(cluster.launches), flush=True)
    return answer(settings, part, limit_s)
cluster.measure = slow
study(cluster, search=OptunaSearch(SPACE, pathlib.Path(sys.argv[1]), "study", BUDGET.trials)).run()
"""


def test_a_study_that_was_killed_goes_on(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("optuna")
    path = os.pathsep.join([str(pathlib.Path(__file__).parent), *filter(None, sys.path)])
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), path], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    for line in process.stdout:
        if int(line) >= 8:
            break
    process.kill()
    process.wait()
    time.sleep(0.1)
    search = OptunaSearch(SPACE, tmp_path, "study", BUDGET.trials)
    assert 3 <= len(search.trials()) < BUDGET.trials
    assert study(Cluster(), search=search).run()["better"]
    assert len(search.trials()) == BUDGET.trials
