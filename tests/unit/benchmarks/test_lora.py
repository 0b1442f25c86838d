# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The training benchmark from its launches to its record, with launches that are made up."""

from __future__ import annotations

import json
import pathlib
import sys
import typing as t

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "fixtures"))

import local_training  # noqa: E402
import lora_h200 as benchmark  # noqa: E402
import nccl_torch  # noqa: E402
import recorded  # noqa: E402
from ansible_collections.gpufabric.cluster.plugins.module_utils._training_task import Task  # noqa: E402

#: bytes a second, and seconds of a message on top, when messages follow each other and when they go apart
SPEED = {"default": 3e9, "guide": 6e9, "autotuned": 10e9}
FOLLOWING_S, APART_S = 20e-6, 200e-6
COMPUTES = {"full": 0.1, "lora 8": 0.05, "lora 64": 0.05}


def launch(
    task: Task, folder: pathlib.Path, environment: t.Mapping[str, str], ranks: int, timeout: float
) -> local_training.Trained:
    """Ranks whose messages take just as long as priced, but for those of the LoRA of rank 8: they take a tenth longer."""
    who = (
        "guide"
        if environment.get("NCCL_BUFFSIZE") == "1048576"
        else "autotuned"
        if "NCCL_BUFFSIZE" in environment
        else "default"
    )
    said: list[dict[str, t.Any]] = []
    for training in task.trainings:
        listed = benchmark._listed(small=False)[training.name]
        each = FOLLOWING_S if training.name == "full" else APART_S
        transfer = sum(each + message.size / SPEED[who] for message in listed) * (
            1.1 if training.name == "lora 8" else 1
        )
        computes = COMPUTES[training.name]
        exposed = max(transfer - computes / 2, transfer / 4)
        for rank in range(ranks):
            steps = [
                {"step_s": computes + exposed, "communication_s": transfer * (1 + rank / 10), "exposed_s": exposed,
                 "compute_s": computes, "profiled_s": computes + exposed, "transfer_s": transfer, "cpu_cores": 1.0}
                for _repeat in range(3)
            ]  # fmt: skip
            issued = benchmark._counted(listed)
            said.append(
                {
                    "rank": rank,
                    "training": training.name,
                    "steps": steps,
                    "issued": issued,
                    "messages_s": [],
                    "memory_mb": 9,
                }
            )
    for collective, sizes in task.prices.items():
        for size in sizes:
            following, apart = (1e6 * (each + size / SPEED[who]) for each in (FOLLOWING_S, APART_S))
            said.append({"rank": 0, "price": collective, "size_bytes": size, "time_us": following, "apart_us": apart})
    return local_training.Trained(said, 1.0, "", True)


def test_the_record_and_its_figures(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_training, "run", launch)
    monkeypatch.setattr(nccl_torch, "versions", lambda: {"torch": "2", "nccl": "2.28.9", "gpus": "2 x made up"})
    journal = tmp_path / "journal"
    with journal.open("w") as file:
        benchmark.measure_all(file, 2, 100.0, small=False)
    record = json.loads(benchmark.write_record(journal, tmp_path).read_text())
    assert recorded.differences("lora_h200", record) == []
    found = record["figures"]
    assert found["prediction_errors"]["full"] == {"default": 0.0, "guide": 0.0, "autotuned": 0.0}
    assert found["prediction_error"] == pytest.approx(1 - 1 / 1.1, abs=1e-3)
    assert found["communication_time_reduction"] == pytest.approx(
        1 - found["exposed_ms"]["lora 64"]["autotuned"] / found["exposed_ms"]["lora 64"]["default"], abs=1e-3
    )
    assert found["communication_time_reduction"] > 0.5 and found["messages_as_listed"]
    assert found["rounds"] == {"default": 2, "guide": 2, "autotuned": 2}
    patterns = {(row["workload"], row["pattern"]) for row in record["rows"] if "pattern" in row}
    assert patterns == {("full", "following"), ("lora 8", "apart"), ("lora 64", "apart")}


def test_no_launch_begins_that_may_not_end_in_time(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10000, 50))
    monkeypatch.setattr(benchmark.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(local_training, "run", launch)
    monkeypatch.setattr(nccl_torch, "versions", lambda: {"torch": "2", "nccl": "2.28.9", "gpus": "2 x made up"})
    with (tmp_path / "journal").open("w") as file:
        benchmark.measure_all(file, 10, 440.0, small=False)
    rows = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]
    launches = {(row["round"], row["setting"]) for row in rows if "round" in row}
    assert 0 < len(launches) < 9
