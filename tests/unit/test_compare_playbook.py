# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/compare.yml itself: without an inventory, with its exit status, and with one sentence for bad input."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FIRST, SECOND = "20260101T000000Z-0001", "20260102T000000Z-0002"


def run_json(run_id: str, kernel: str) -> str:
    return json.dumps(
        {
            "schema_version": 1, "run_id": run_id, "collection_version": "0.1.0", "ansible_core": "2.19.0", "inventory": ["n1"],
            "started": "2026-01-01T00:00:00+00:00", "finished": "2026-01-01T00:01:00+00:00", "check_mode": False,
            "python": "3.11.7", "log_files": [], "settings": {}, "benchmark": {}, "verdicts": [], "notes": [],
            "nodes": {"n1": {"node": {"observed": {"kernel": kernel}}}},
            "findings": [], "verdict": {"status": "pass", "text": "PASS"},
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "status", "said"), [("previous", 0, "kernel: 6.1 -> 6.8"), ("/nowhere/run.json", 2, "")]
)
def test_compare(tmp_path: pathlib.Path, before: str, status: int, said: str) -> None:
    for run_id, kernel in ((FIRST, "6.1"), (SECOND, "6.8")):
        (tmp_path / run_id).mkdir()
        (tmp_path / run_id / "run.json").write_text(run_json(run_id, kernel))
    extra = {"gpufabric_results_dir": str(tmp_path), "compare_before": before}
    done = subprocess.run(
        [str(pathlib.Path(sys.executable).with_name("ansible-playbook")), "playbooks/compare.yml", "-e", json.dumps(extra)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    directory = tmp_path / f"compare-{FIRST}-{SECOND}"
    if status:
        assert "/nowhere/run.json is neither a file nor a run of" in done.stdout + done.stderr
        assert not directory.exists()
    else:
        assert said in done.stdout
        assert sorted(p.name for p in directory.iterdir()) == ["compare.html", "compare.json", "compare.md"]
