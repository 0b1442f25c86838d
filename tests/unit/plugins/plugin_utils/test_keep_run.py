# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A results directory that cannot be written costs nothing that was measured, and fails the run."""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.keep_run import keep_run

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from example_record import example_record  # noqa: E402

PASSED = {"verdict": {"status": "pass", "text": "PASS"}, "logs": {"a.txt": "said"}}


def test_a_run_is_written_where_it_belongs(tmp_path: pathlib.Path) -> None:
    directory, record = keep_run(tmp_path / "results", example_record(**PASSED))
    assert directory == tmp_path / "results" / record["run_id"] and record["verdict"]["status"] == "pass"
    assert (directory / "logs/a.txt").read_text() == "said"


@pytest.mark.parametrize("verdict", ["pass", "fail"])
def test_an_unwritable_place_is_told_and_the_run_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, verdict: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "file").write_text("in the way")
    given = example_record(**{**PASSED, "verdict": {"status": verdict, "text": "as it was"}})
    directory, record = keep_run(tmp_path / "file" / "results", given)
    written = json.loads((directory / "run.json").read_text())
    assert written["benchmark"]["runs"][0]["rows"] == given["benchmark"]["runs"][0]["rows"]
    first = written["findings"][0]
    assert (first["id"], first["subject"]) == ("results_not_written", "fabric_report_results_dir")
    assert str(directory) in first["evidence"] and "Not a directory" in first["evidence"]
    assert record["verdict"]["status"] == "fail" and (record["verdict"]["text"] == "as it was") == (verdict == "fail")
    assert (directory / "report.html").exists() and "results_not_written" in (directory / "report.html").read_text()


@pytest.mark.parametrize("how", ["a directory in the way", "no links"])
def test_a_latest_that_stays_is_told_and_no_second_run_is_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def refused(self: pathlib.Path, target: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    if how == "no links":
        monkeypatch.setattr(pathlib.Path, "symlink_to", refused)
    else:
        (tmp_path / "results" / "latest").mkdir(parents=True)
    directory, record = keep_run(tmp_path / "results", example_record(**PASSED))
    assert directory == tmp_path / "results" / record["run_id"] and (directory / "run.json").exists()
    first = record["findings"][0]
    assert (first["id"], first["severity"], record["verdict"]["status"]) == ("latest_not_moved", "warning", "pass")
    assert {entry.name for entry in (tmp_path / "results").iterdir()} <= {record["run_id"], "latest"}


def test_a_disk_without_room_anywhere_is_said(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(OSError):
        keep_run(tmp_path / "file" / "results", example_record(**PASSED))
