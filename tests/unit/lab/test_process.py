# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes: only the one that was started is ended."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import time

import pytest

from lab import process
from lab.errors import LabError

LAB = "test-lab"


def start(tmp_path: pathlib.Path, code: str, lab_id: str = LAB) -> process.Process:
    return process.spawn([sys.executable, "-c", code], tmp_path, tmp_path / "log", lab_id)


def wait_for(path: pathlib.Path) -> None:
    deadline = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_process_is_ended_when_asked(tmp_path: pathlib.Path) -> None:
    one = start(tmp_path, "import time; time.sleep(60)")
    assert one.alive()
    begun = time.monotonic()
    process.end([one])
    assert not one.alive()
    assert time.monotonic() - begun < 5


def test_one_that_does_not_listen_is_killed(tmp_path: pathlib.Path) -> None:
    one = start(
        tmp_path,
        "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); pathlib.Path('deaf').touch(); time.sleep(60)",
    )
    wait_for(tmp_path / "deaf")
    process.end([one], grace_s=0.2)
    assert not one.alive()


def test_another_process_with_the_same_id_is_left_alone(tmp_path: pathlib.Path) -> None:
    one = start(tmp_path, "import time; time.sleep(60)")
    process.end([dataclasses.replace(one, start=one.start - 1)])
    assert one.alive()
    process.end([one])


def test_what_has_ended_is_ended_without_error(tmp_path: pathlib.Path) -> None:
    one = start(tmp_path, "pass")
    deadline = time.monotonic() + 10
    while one.alive():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.end([one, process.Process(2**22 + 1, 1)])


def test_what_was_never_recorded_is_found_by_its_lab(tmp_path: pathlib.Path) -> None:
    mine = start(tmp_path, "import time; time.sleep(60)")
    other = start(tmp_path, "import time; time.sleep(60)", "test-lab-2")
    assert process.marked(LAB) == [mine]
    process.end([mine, other])
    assert process.marked(LAB) == []


def test_output_goes_to_the_log(tmp_path: pathlib.Path) -> None:
    start(tmp_path, "print('said')")
    deadline = time.monotonic() + 10
    while "said" not in (tmp_path / "log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_program_that_is_not_there_is_said(tmp_path: pathlib.Path) -> None:
    with pytest.raises(LabError, match="cannot start no-such-program"):
        process.spawn(["no-such-program"], tmp_path, tmp_path / "log", LAB)


def test_memory_of_a_running_process_is_told(tmp_path: pathlib.Path) -> None:
    one = start(tmp_path, "import pathlib, time; pathlib.Path('there').touch(); time.sleep(60)")
    wait_for(tmp_path / "there")
    assert process.resident_mib(one) > 0
    process.end([one])
    assert process.resident_mib(one) == 0
