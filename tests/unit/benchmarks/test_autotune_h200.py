# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmark of autotune stops in time, goes on from its journal, and its record is whole."""

from __future__ import annotations

import json
import math
import pathlib
import random
import time
import typing as t

import autotune_h200 as benchmark
import nccl_two_ranks
import pytest
import recorded

pytest.importorskip("numpy")

CONFIRMATIONS = 3


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Launches on a made-up machine, and a smaller grid and search than the real ones."""
    started: list[dict[str, str]] = []
    chance = random.Random(1)

    def run(
        build: pathlib.Path, settings: dict[str, str], sockets: bool = True, size: int = 0, iterations: int = 0
    ) -> t.Any:
        started.append(dict(settings))
        speed = 100.0 if not sockets else 2.0 + int(settings.get("NCCL_SOCKET_NTHREADS", 0))
        return nccl_two_ranks.Measured(speed * chance.gauss(1, 0.02), 2.0, "")

    monkeypatch.setattr(nccl_two_ranks, "run", run)
    monkeypatch.setattr(nccl_two_ranks, "versions", lambda build: {"nccl": "2.28.9+cuda13.0", "gpus": "2 x made up"})
    monkeypatch.setattr(benchmark, "TRIALS", 6)
    most = ("16", "8", "4")
    fewer = {
        "NCCL_SOCKET_NTHREADS": ("16",),
        "NCCL_NSOCKS_PERTHREAD": most,
        "NCCL_BUFFSIZE": ("1048576", "2097152", "16777216"),
    }
    monkeypatch.setattr(benchmark, "NOT_IN_GRID", fewer)
    return started


def test_a_run_that_was_stopped_goes_on_and_gives_a_whole_record(
    launches: list[dict[str, str]], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["autotune_h200.py"])
    path = tmp_path / "journal"
    clock = iter(range(10_000))
    with monkeypatch.context() as patched:
        patched.setattr(benchmark.time, "monotonic", lambda: next(clock) * 1.0)
        with pytest.raises(benchmark.OutOfTimeError):
            benchmark.measure_all(tmp_path, benchmark.Journal(path, 40.0), 0, CONFIRMATIONS)
    before = len(launches)
    assert 20 < before < 40
    journal = benchmark.Journal(path, math.inf)
    benchmark.measure_all(tmp_path, journal, 0, CONFIRMATIONS)
    assert len(launches) == len(journal.rows), "nothing was measured twice"
    record = json.loads(benchmark.write_record(journal, tmp_path, confirmations=CONFIRMATIONS).read_text())
    assert recorded.differences("autotune_h200", record) == []
    figures = record["figures"]
    assert figures["grid_points"] == 30 and figures["trials"] == 6
    assert figures["fraction_of_grid_best"] > 0.7 and figures["busbw_ratio_64MiB"] > 2
    assert len(record["rows"]) == 6 + 30 + 6 + 7 * CONFIRMATIONS + 9 * benchmark.VALUED + 5 + 2 * CONFIRMATIONS
    benchmark.measure_all(tmp_path, benchmark.Journal(path, time.monotonic()), 0, CONFIRMATIONS)


def test_the_search_may_choose_the_channels_that_the_grid_leaves_to_nccl(
    launches: list[dict[str, str]], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["--build", str(tmp_path), "--journal", f"{tmp_path}/journal", "--output", str(tmp_path), "--channels"]
    monkeypatch.setattr("sys.argv", ["autotune_h200.py", *argv, "--confirmations", str(CONFIRMATIONS)])
    benchmark.main()
    rows = json.loads((tmp_path / "autotune_h200.json").read_text())["rows"]
    with_channels = {row["phase"] for row in rows if row["size"] < 1 << 30 and "NCCL_MIN_CTAS" in row["settings"]}
    assert "autotune" in with_channels and not with_channels & {"warm", "grid", "value"}


def test_the_chances_of_random_picks_add_up_and_are_valued_by_other_measurements() -> None:
    grid = [{"phase": "grid", "settings": {"A": str(n)}, "busbw": 10.0 + n, "seconds": 1.0} for n in range(20)]
    again = [{"phase": "value", "settings": {"A": str(n)}, "busbw": 5.0, "seconds": 1.0} for n in range(10, 20)]
    picks = benchmark.random_picks([*grid, *again], 5)
    assert sum(chance for chance, _value in picks) == pytest.approx(1.0)
    assert picks[0] == (0.25, 5.0), "the best is drawn with a chance of 5 in 20"
    assert {value for _chance, value in picks} == {5.0}
