# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Optuna keeps of a search on disk."""

from __future__ import annotations

import pathlib

import pytest

pytest.importorskip("optuna")

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.optuna_search import OptunaSearch
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search_space import space_for

SOCKET = space_for("socket", "2.28.9", debug_too=True, leave_out=["NCCL_MIN_CTAS"])


def test_a_killed_search_goes_on_where_it_stopped(tmp_path: pathlib.Path) -> None:
    first = OptunaSearch(SOCKET, tmp_path, "study", 9)
    outside = {"NCCL_IB_DISABLE": "1"}
    for settings, score in ((outside, 2.0), ({"NCCL_SOCKET_NTHREADS": "2"}, 3.0), ({}, None)):
        number, _settings = first.ask_for(settings)
        first.tell(number, score, "" if score else "timeout", 4.0)
    first.ask()  # killed while measuring
    second = OptunaSearch(SOCKET, tmp_path, "study", 9)
    assert [trial.settings for trial in second.trials()] == [trial.settings for trial in first.trials()]
    assert [trial.failure for trial in second.trials()] == ["", "", "timeout"]
    number, settings = second.ask()
    second.tell(number, 4.0)
    assert settings not in [trial.settings for trial in first.trials()]
    assert second.best()[0].settings == settings


def test_importance_names_the_variable_that_matters(tmp_path: pathlib.Path) -> None:
    search = OptunaSearch(SOCKET, tmp_path, "study", 99)
    for point in SOCKET.points()[::8]:
        number, settings = search.ask_for(point)
        search.tell(number, float(settings.get("NCCL_BUFFSIZE", "4194304")))
    assert max(search.importances().items(), key=lambda item: item[1])[0] == "NCCL_BUFFSIZE"


def test_a_file_that_is_no_study_is_said_in_one_sentence(tmp_path: pathlib.Path) -> None:
    (tmp_path / "study.db").write_bytes(b"half of a copy" * 100)
    with pytest.raises(
        ValueError, match=r"study\.db cannot be used: file is not a database; make room, or move"
    ) as told:
        OptunaSearch(SOCKET, tmp_path, "study", 9)
    assert "\n" not in str(told.value)


def test_a_study_that_breaks_while_it_is_measured_is_said_in_one_sentence(tmp_path: pathlib.Path) -> None:
    search = OptunaSearch(SOCKET, tmp_path, "study", 9)
    number, _settings = search.ask()
    (tmp_path / "study.db").write_bytes(b"")
    with pytest.raises(ValueError, match=r"study\.db cannot be used: "):
        search.tell(number, 3.0)
