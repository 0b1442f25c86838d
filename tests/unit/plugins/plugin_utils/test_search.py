# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The search: finds planted optima, remembers, survives a kill, and calls noise noise."""

from __future__ import annotations

import json
import pathlib
import random
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_samples import compare
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search import Search, StudyBusyError
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search_space import Knob, ProductLimit, Space, space_for

pytest.importorskip("optuna")

SOCKET = space_for("socket", "2.28.9", debug_too=True, leave_out=["NCCL_MIN_CTAS"])
GUIDE = {"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "8", "NCCL_BUFFSIZE": "1048576"}


def busbw(settings: t.Mapping[str, str]) -> float:
    """GB/s of a made-up fabric with its best at 4 threads, 4 sockets and 8 MiB, shaped as measured ones are."""
    threads, sockets = int(settings.get("NCCL_SOCKET_NTHREADS", 1)), int(settings.get("NCCL_NSOCKS_PERTHREAD", 1))
    buffer = int(settings.get("NCCL_BUFFSIZE", 4 << 20))
    shape = {1: 0.4, 2: 0.8, 4: 1.0, 8: 0.6, 16: 0.3}
    return 10 * shape[threads] * (0.6 + 0.4 * shape[sockets]) * min(1.0, 0.3 + buffer / (8 << 20) * 0.7)


def run(search: Search, trials: int, noise: float = 0.0, seed: int = 0) -> None:
    chance = random.Random(seed)
    for _trial in range(trials):
        number, settings = search.ask()
        search.tell(number, [busbw(settings) * chance.gauss(1, noise)])


def test_the_space_holds_what_this_nccl_knows_and_nccl_itself_would_accept() -> None:
    names = [knob.name for knob in SOCKET.knobs]
    assert names == ["NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD", "NCCL_BUFFSIZE"]
    assert "NCCL_BUFFSIZE" not in [k.name for k in space_for("socket", "2.28.9").knobs]
    assert len(SOCKET.points()) >= 90
    assert all(
        int(p.get("NCCL_SOCKET_NTHREADS", 1)) * int(p.get("NCCL_NSOCKS_PERTHREAD", 1)) <= 64 for p in SOCKET.points()
    )
    with pytest.raises(ValueError, match="carrier pigeon"):
        space_for("carrier pigeon", "2.28.9")


@pytest.mark.parametrize("seed", range(2))
def test_twenty_five_noisy_trials_come_within_three_percent_of_the_grid(tmp_path: pathlib.Path, seed: int) -> None:
    search = Search(SOCKET, tmp_path, "study", seed=seed)
    for settings in ({}, GUIDE):
        number, told = search.ask_for(settings)
        search.tell(number, [busbw(told)])
    run(search, 23, noise=0.05, seed=seed)
    best = max(map(busbw, SOCKET.points()))
    assert max(busbw(trial.settings) for trial in search.best(3)) >= 0.97 * best


def test_no_point_is_measured_twice_and_a_small_space_is_exhausted(tmp_path: pathlib.Path) -> None:
    space = Space((Knob("A", (None, "1", "2")), Knob("B", ("1", "2"))), (ProductLimit(("A", "B"), 3),))
    search = Search(space, tmp_path, "small")
    for _trial in range(len(space.points())):
        number, settings = search.ask()
        search.tell(number, [1.0 + int(settings.get("A", 0))])
    assert len({json.dumps(trial.settings, sort_keys=True) for trial in search.trials()}) == 5
    with pytest.raises(LookupError):
        search.ask()


def test_a_killed_search_goes_on_where_it_stopped(tmp_path: pathlib.Path) -> None:
    first = Search(SOCKET, tmp_path, "study")
    run(first, 5)
    first.ask()  # killed while measuring
    first.close()
    second = Search(SOCKET, tmp_path, "study")
    assert len(second.trials()) == 5
    run(second, 3)
    assert len(second.trials()) == 8


def test_two_searches_on_one_study_exclude_each_other(tmp_path: pathlib.Path) -> None:
    first = Search(SOCKET, tmp_path, "study")
    with pytest.raises(StudyBusyError, match="study"):
        Search(SOCKET, tmp_path, "study")
    first.close()
    Search(SOCKET, tmp_path, "study").close()


def test_failures_are_data_and_never_win(tmp_path: pathlib.Path) -> None:
    search = Search(SOCKET, tmp_path, "study")
    number, settings = search.ask_for({"NCCL_SOCKET_NTHREADS": "16"})
    search.tell(number, [], failure="timeout")
    number, _settings = search.ask_for({})
    search.tell(number, [3.0])
    assert [(t.settings, t.failure) for t in search.trials()] == [(settings, "timeout"), ({}, "")]
    assert [t.settings for t in search.best(5)] == [{}]


def test_settings_in_force_outside_the_space_are_measured_all_the_same(tmp_path: pathlib.Path) -> None:
    search = Search(SOCKET, tmp_path, "study")
    number, settings = search.ask_for({"NCCL_SOCKET_NTHREADS": "3", "NCCL_IB_DISABLE": "1"})
    search.tell(number, [9.0, 9.5, 8.5])
    assert search.best()[0].settings == settings == {"NCCL_SOCKET_NTHREADS": "3", "NCCL_IB_DISABLE": "1"}
    assert search.best()[0].score == 9.0


def test_importance_names_the_variable_that_matters(tmp_path: pathlib.Path) -> None:
    search = Search(SOCKET, tmp_path, "study")
    for point in SOCKET.points()[::4]:
        number, settings = search.ask_for(point)
        search.tell(number, [float(settings.get("NCCL_BUFFSIZE", "4194304"))])
    assert max(search.importances().items(), key=lambda item: item[1])[0] == "NCCL_BUFFSIZE"


@pytest.mark.parametrize(
    ("candidate", "reference", "better", "worse"),
    [
        ([10.0, 10.2, 9.9, 10.1, 10.0], [3.0, 3.3, 2.9, 3.1, 3.0], True, False),
        ([3.0, 3.4, 2.8, 3.1, 3.2], [3.1, 2.9, 3.3, 3.0, 3.2], False, False),
        ([2.0, 2.1, 2.0, 1.9, 2.0], [3.0, 3.1, 2.9, 3.0, 3.0], False, True),
        ([9.0, 9.1], [3.0, 3.1], False, False),
    ],
)
def test_only_what_is_outside_the_noise_counts(
    candidate: list[float], reference: list[float], better: bool, worse: bool
) -> None:
    comparison = compare(candidate, reference)
    assert (comparison.better, comparison.worse) == (better, worse)


def test_equal_distributions_are_rarely_called_better() -> None:
    chance = random.Random(7)
    samples = [[chance.gauss(10, 0.7) for _sample in range(5)] for _set in range(200)]
    assert sum(compare(a, b).better for a, b in zip(samples[::2], samples[1::2])) <= 8


@pytest.mark.parametrize("bad", [([], [1.0]), ([1.0], []), ([0.0], [1.0])])
def test_samples_that_say_nothing_are_refused(bad: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ValueError, match="above zero"):
        compare(*bad)
