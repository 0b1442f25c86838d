# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The search: finds planted optima, remembers, survives a kill, and calls noise noise."""

from __future__ import annotations

import json
import random
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_samples import compare
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search import Search
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search_space import Knob, ProductLimit, Space, space_for

pytest.importorskip("numpy")

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
        search.tell(number, busbw(settings) * chance.gauss(1, noise))


def test_the_space_holds_what_this_nccl_knows_and_nccl_itself_would_accept() -> None:
    names = [knob.name for knob in SOCKET.knobs]
    assert names == ["NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD", "NCCL_BUFFSIZE"]
    assert "NCCL_BUFFSIZE" not in [k.name for k in space_for("socket", "2.28.9").knobs]
    assert len(SOCKET.points()) >= 90
    assert all(
        int(p.get("NCCL_SOCKET_NTHREADS", 1)) * int(p.get("NCCL_NSOCKS_PERTHREAD", 1)) <= 64 for p in SOCKET.points()
    )
    with pytest.raises(ValueError, match="nvlink are debug variables: autotune_debug_variables"):
        space_for("nvlink", "2.28.9")
    with pytest.raises(ValueError, match="carrier pigeon"):
        space_for("carrier pigeon", "2.28.9")


def test_twenty_five_noisy_trials_come_close_to_the_grid() -> None:
    search = Search(SOCKET, 25)
    for settings in ({}, GUIDE):
        number, told = search.ask_for(settings)
        search.tell(number, busbw(told))
    run(search, 23, noise=0.05)
    assert busbw(search.best()[0].settings) >= 0.92 * max(map(busbw, SOCKET.points()))


def test_the_end_of_the_budget_goes_to_the_leaders_again() -> None:
    search = Search(SOCKET, 18)
    run(search, 18, noise=0.05)
    launches = [json.dumps(trial.settings, sort_keys=True) for trial in search.trials()]
    assert len(set(launches[:12])) == 12
    assert set(launches[12:]) < set(launches[:12])
    assert len(search.best()[0].scores) > 1


def test_a_small_space_is_searched_to_its_end_and_then_its_leaders() -> None:
    space = Space((Knob("A", (None, "1", "2")), Knob("B", ("1", "2"))), (ProductLimit(("A", "B"), 3),))
    search = Search(space, 40)
    for _trial in range(len(space.points()) + 2):
        number, settings = search.ask()
        search.tell(number, 1.0 + int(settings.get("A", 0)))
    launches = [json.dumps(trial.settings, sort_keys=True) for trial in search.trials()]
    assert len(set(launches[:5])) == 5
    assert json.loads(launches[5])["A"] == "2"


def test_failures_are_data_and_never_win() -> None:
    search = Search(SOCKET, 9)
    number, settings = search.ask_for({"NCCL_SOCKET_NTHREADS": "16"})
    search.tell(number, None, failure="timeout", seconds=60.0)
    number, _settings = search.ask_for({})
    search.tell(number, 3.0)
    assert [(t.settings, t.failure, t.seconds) for t in search.trials()] == [(settings, "timeout", 60.0), ({}, "", 0.0)]
    assert [t.settings for t in search.best(5)] == [{}]


def test_what_failed_is_not_proposed_again() -> None:
    search = Search(SOCKET, 20)
    for _trial in range(13):
        number, settings = search.ask()
        broken = settings.get("NCCL_SOCKET_NTHREADS") in ("8", "16")
        search.tell(number, None if broken else 3.0, "exit_status" if broken else "")
    asked = [json.dumps(trial.settings) for trial in search.trials()]
    assert len(set(asked)) == 13
    late = [trial for trial in search.trials()[8:] if trial.failure]
    assert len(late) <= 1


def test_settings_in_force_outside_the_space_are_measured_all_the_same() -> None:
    search = Search(SOCKET, 9)
    for score in (9.0, 9.5, 8.5):
        number, settings = search.ask_for({"NCCL_SOCKET_NTHREADS": "3", "NCCL_IB_DISABLE": "1"})
        search.tell(number, score)
    best = search.best()[0]
    assert best.settings == settings == {"NCCL_SOCKET_NTHREADS": "3", "NCCL_IB_DISABLE": "1"}
    assert best.scores == (9.0, 9.5, 8.5)
    assert best.score == pytest.approx(9.0, rel=0.01)


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
