# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The TCP benchmark from its launches to its record, with launches that are made up."""

from __future__ import annotations

import json
import pathlib
import sys
import typing as t

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/fixtures"))

import nccl_env_tcp_h200 as benchmark  # noqa: E402
import nccl_torch  # noqa: E402
import recorded  # noqa: E402

GBS = {"default": 3.0, "tcp": 10.0, "guide": 6.0}


STOPPED = {"ok": False, "seconds": 1.0, "result": {}, "log": "No algorithm/protocol available for AllGather"}


def launch(
    task: str, environment: t.Mapping[str, str], arguments: t.Mapping[str, t.Any], timeout: float
) -> dict[str, t.Any]:
    if task == "ddp":
        started = {"ok": True, "seconds": 1.0, "result": {"losses": [1, 0]}, "log": ""}
        return STOPPED if "NCCL_ALGO" in environment else started
    conf = pathlib.Path(environment.get("NCCL_CONF_FILE", "/dev/null")).read_text()
    who = "tcp" if "NCCL_NSOCKS_PERTHREAD=8" in conf else "guide" if "NCCL_BUFFSIZE" in environment else "default"
    return {"ok": True, "seconds": 1.0, "result": {"busbw": GBS[who], "us": 1.0}, "log": ""}


def test_the_record_and_its_figures(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_torch, "run", launch)
    monkeypatch.setattr(nccl_torch, "versions", lambda: {"torch": "2", "nccl": "2.28.9", "gpus": "2 x made up"})
    path = benchmark.measure(3, tmp_path)
    record = json.loads(path.read_text())
    assert recorded.differences("nccl_env_tcp_h200", record) == []
    assert record["figures"]["busbw_ratio_64MiB"] == round(10 / 3, 4)
    assert record["figures"]["training_starts"] == {"the guide's list, resolved": True, "NCCL_ALGO=Tree": False}
    assert record["settings"]["tcp"]["NCCL_SOCKET_NTHREADS"] == "2"
    assert "NCCL_ALGO" not in record["settings"]["the guide's list, resolved"]
    assert len(record["rows"]) == 3 * 3 * 3 + 2
