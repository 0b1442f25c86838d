# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A directory of results appears whole, and what it replaces is lost only once it does."""

from __future__ import annotations

import pathlib

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.run_directory import write_whole


def test_an_older_directory_is_replaced_as_a_whole(tmp_path: pathlib.Path) -> None:
    write_whole(tmp_path, "pair", {"a": "1", "b": "1"})
    write_whole(tmp_path, "pair", {"a": "2"}, in_place_of_older=True)
    assert [(path.name, path.read_text()) for path in (tmp_path / "pair").iterdir()] == [("a", "2")]
    assert [path.name for path in tmp_path.iterdir()] == ["pair"]


def test_an_older_directory_stays_where_the_new_one_cannot_be_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole(tmp_path, "pair", {"a": "1"})

    def full(*_arguments: object, **_options: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(pathlib.Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            write_whole(tmp_path, "pair", {"a": "2"}, in_place_of_older=True)
    assert (tmp_path / "pair" / "a").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["pair"]


def test_what_is_there_already_is_not_overwritten_unasked(tmp_path: pathlib.Path) -> None:
    write_whole(tmp_path, "run", {"a": "1"})
    with pytest.raises(OSError):
        write_whole(tmp_path, "run", {"a": "2"})
    assert (tmp_path / "run" / "a").read_text() == "1"
