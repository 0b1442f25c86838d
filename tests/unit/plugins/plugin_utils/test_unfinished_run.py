# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measurements that are kept while others go on."""

from __future__ import annotations

import json
import pathlib

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.benchmark import without_secrets
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.unfinished_run import UnfinishedRun


def test_each_line_is_whole_and_no_other_run_s(tmp_path: pathlib.Path) -> None:
    for _again in range(2):
        unfinished = UnfinishedRun(tmp_path / "results", "20260101T000000Z-0a1b")
        unfinished.begin("20260101T000000Z-0a1b", "n1", 3)
        unfinished.add({"rows": [1]})
        unfinished.add({"rows": [2], "stdout": "two\nlines"})
    lines = [json.loads(line) for line in unfinished.path.read_text().splitlines()]
    assert lines[0]["planned"] == 3 and [line["rows"] for line in lines[1:]] == [[1], [2]]
    assert unfinished.path.stat().st_mode & 0o777 == 0o600 and unfinished.path.parent.stat().st_mode & 0o077 == 0
    unfinished.remove()
    unfinished.remove()
    assert list(unfinished.path.parent.iterdir()) == []


def test_a_place_that_cannot_be_written_is_an_error_at_once(tmp_path: pathlib.Path) -> None:
    (tmp_path / "results").write_text("a file where a directory should be")
    unfinished = UnfinishedRun(tmp_path / "results", "20260101T000000Z-0a1b")
    with pytest.raises(OSError, match="exists"):
        unfinished.begin("20260101T000000Z-0a1b", "n1", 1)
    unfinished.remove()


def test_no_secret_is_kept() -> None:
    kept = without_secrets({"rows": [], "environment": {"HF_TOKEN": "planted-1c2d"}, "stderr": "HF_TOKEN=planted-1c2d"})
    assert "planted-1c2d" not in json.dumps(kept) and kept["rows"] == []
