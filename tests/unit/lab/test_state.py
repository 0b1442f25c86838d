# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of a lab."""

from __future__ import annotations

import contextlib
import pathlib

import pytest

from lab import state
from lab.errors import LabError
from lab.faults import KINDS, Parameters, design
from lab.plan import make_plan
from lab.process import Process
from lab.state import Settings, State


def a_lab() -> State:
    plan = make_plan(2, 2)
    return State(
        "0123456789abcdef",
        Settings(releases=("bookworm", "trixie")),
        phase="up",
        images={"bookworm": "bookworm-base-1"},
        ports={"n1": 22001, "n2": 22002},
        host_keys={"n1": "ssh-ed25519 AAAA"},
        processes={"n1": Process(4711, 99), "switch rail0": Process(4712, 100)},
        faults=[design(plan, kind, "n2", Parameters(rail=1)).fault for kind, one in KINDS.items() if not one.simulated],
    )


def test_what_is_saved_is_loaded(tmp_path: pathlib.Path) -> None:
    state.save(tmp_path, a_lab())
    assert state.load(tmp_path) == a_lab()
    assert (tmp_path / "state.json").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_no_record_is_no_lab(tmp_path: pathlib.Path) -> None:
    assert state.load(tmp_path) is None
    state.remove(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 99}', '{"schema": 1, "settings": {"releases": []}}'])
def test_a_record_that_cannot_be_read_is_said_in_one_sentence(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(LabError, match="is no record of a lab that this version can read"):
        state.load(tmp_path)


def test_two_commands_do_not_change_a_lab_at_once(tmp_path: pathlib.Path) -> None:
    def hold() -> contextlib.AbstractContextManager[None]:
        return state.locked(tmp_path / "run")

    with hold(), pytest.raises(LabError, match="another command is changing the lab"), hold():
        pass
    with hold():
        pass
