# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run at a time on a node, for as long as that run lives and no longer."""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import time
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils import _run_lock
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._run_lock import RUN, TTL_S, Holder, RunLock, show_life

FIRST = Holder("20260101T120000Z-aaaa", user="ann", host="desk1", since="2026-01-01T12:00:00+00:00")
SECOND = Holder("20260101T120001Z-bbbb", user="ben", host="desk2")


@pytest.fixture
def lock(tmp_path: pathlib.Path) -> RunLock:
    return RunLock(RootedFs(str(tmp_path)))


def file(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "run/gpufabric/run_lock.json"


def age(tmp_path: pathlib.Path, seconds: float) -> None:
    """Let the lock's last renewal lie so many seconds back."""
    noted = json.loads(file(tmp_path).read_text())
    file(tmp_path).write_text(json.dumps({**noted, "renewed": time.monotonic() - seconds}))


def test_the_second_run_learns_who_holds_the_node(lock: RunLock) -> None:
    assert lock.take(FIRST) is None
    found = lock.take(SECOND)
    assert found is not None and found[0] == FIRST and 0 <= found[1] < 60
    assert lock.take(FIRST) is None, "the run that holds it may take it again"


def test_it_is_given_back_without_a_trace(lock: RunLock, tmp_path: pathlib.Path) -> None:
    lock.take(FIRST)
    assert not lock.give_back(SECOND.run_id) and file(tmp_path).exists(), "only who holds it gives it back"
    assert lock.give_back(FIRST.run_id) and not (tmp_path / "run/gpufabric").exists()
    assert not lock.give_back(FIRST.run_id) and not lock.renew(FIRST.run_id)
    assert lock.take(SECOND) is None


def test_it_ends_by_itself_and_a_renewal_prolongs_it(lock: RunLock, tmp_path: pathlib.Path) -> None:
    lock.take(FIRST)
    age(tmp_path, TTL_S - 5)
    assert lock.take(SECOND) is not None
    assert lock.renew(FIRST.run_id) and not lock.renew(SECOND.run_id)
    held = lock.holder()
    assert held is not None and held[1] < 60
    age(tmp_path, TTL_S + 1)
    assert lock.holder() is None and lock.take(SECOND) is None
    assert not lock.renew(FIRST.run_id), "a run that lost it must not take it back"


def test_two_minutes_are_the_most() -> None:
    assert TTL_S <= 120


@pytest.mark.parametrize("content", ["", "{", "[]", '{"run_id": "x"}', '{"renewed": "soon"}'])
def test_a_torn_file_locks_nobody_out(lock: RunLock, tmp_path: pathlib.Path, content: str) -> None:
    lock.take(FIRST)
    file(tmp_path).write_text(content)
    assert lock.holder() is None and lock.take(SECOND) is None


def test_a_stamp_of_another_boot_is_dead(lock: RunLock, tmp_path: pathlib.Path) -> None:
    lock.take(FIRST)
    age(tmp_path, -1e6)
    assert lock.take(SECOND) is None


def test_a_process_of_the_run_is_a_sign_of_life(lock: RunLock, tmp_path: pathlib.Path) -> None:
    lock.take(FIRST)
    age(tmp_path, TTL_S + 1000)
    process = tmp_path / "proc/4711"
    process.mkdir(parents=True)
    (process / "environ").write_bytes(f"HOME=/root\0{RUN}={FIRST.run_id}\0".encode())
    assert lock.take(SECOND) is not None
    (process / "environ").write_bytes(f"HOME=/root\0X{RUN}={FIRST.run_id}\0".encode())
    assert lock.take(SECOND) is None


def test_a_lease_that_is_renewed_is_a_sign_of_life(lock: RunLock, tmp_path: pathlib.Path) -> None:
    lock.take(FIRST)
    age(tmp_path, TTL_S + 1000)
    alive = tmp_path / "run/gpufabric/260101120000-abc123/alive"
    alive.parent.mkdir()
    alive.write_text("105\n")
    assert lock.take(SECOND) is not None
    os.utime(alive, (time.time() - 200, time.time() - 200))
    assert lock.take(SECOND) is None


def test_it_can_be_broken(lock: RunLock) -> None:
    lock.take(FIRST)
    assert lock.take(SECOND, replaces=FIRST.run_id) is None
    assert lock.take(FIRST) is not None


def test_modules_renew_only_the_lock_of_their_own_run(
    lock: RunLock, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = RootedFs(str(tmp_path))
    lock.take(FIRST)
    age(tmp_path, 100)
    monkeypatch.setenv(RUN, SECOND.run_id)
    show_life(fs)
    assert (lock.holder() or (None, 0))[1] >= 100
    monkeypatch.setenv(RUN, FIRST.run_id)
    show_life(fs)
    assert (lock.holder() or (None, 100))[1] < 60
    monkeypatch.delenv(RUN)
    show_life(RootedFs(str(tmp_path / "nowhere")))
    assert not (tmp_path / "nowhere").exists()


def _race(root: str, number: int, start: t.Any, results: t.Any) -> None:
    lock = RunLock(RootedFs(root))
    start.wait(30)
    found = lock.take(Holder(f"20260101T120000Z-{number:04}"))
    results.put(number if found is None else -1)


def test_of_many_at_once_one_wins(tmp_path: pathlib.Path) -> None:
    context = multiprocessing.get_context("fork")
    start, results = context.Event(), context.Queue()
    racers = [context.Process(target=_race, args=(str(tmp_path), n, start, results)) for n in range(8)]
    for racer in racers:
        racer.start()
    start.set()
    answers = [results.get(timeout=30) for _ in racers]
    for racer in racers:
        racer.join(30)
    winners = [answer for answer in answers if answer >= 0]
    assert len(winners) == 1
    held = RunLock(RootedFs(str(tmp_path))).holder()
    assert held is not None and held[0].run_id.endswith(f"{winners[0]:04}")


def test_a_user_who_is_not_root_sees_roots_lock(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = RootedFs(str(tmp_path))
    RunLock(fs).take(FIRST)
    mine = RunLock(fs, base="/dev/shm/gpufabric-1000")
    assert mine.take(SECOND) is not None
    monkeypatch.setattr(_run_lock, "TTL_S", 0.0)
    assert mine.take(SECOND) is None
    assert (tmp_path / "dev/shm/gpufabric-1000/run_lock.json").exists()
