# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A training through the code of the module lora_step: torchrun on this machine, gloo, two ranks, under a lease."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import sys
import time
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils import _benchmark_run, _run_processes
from ansible_collections.gpufabric.cluster.plugins.module_utils._lease import Lease
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._training_task import Task, Training
from ansible_collections.gpufabric.cluster.plugins.modules import lora_step
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import training_plan
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_lora import judge_lora
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.training_result import shape

if any(importlib.util.find_spec(needed) is None for needed in ("torch", "transformers", "peft")):
    pytest.skip("needs PyTorch, transformers and peft: make setup-lora", allow_module_level=True)

FS = RootedFs("/")
MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 64,
}
SHORT: dict[str, t.Any] = {"batch": 1, "sequence": 16, "warmup": 3, "repeats": 2}
LORA = {"r": 4, "target_modules": "all-linear"}


@pytest.fixture
def lease() -> t.Iterator[Lease]:
    made = Lease(FS, f"test-lora-{os.getpid()}-{time.monotonic_ns() % 1000000}")
    yield made
    made.release()
    assert not os.path.exists(made.directory) and not os.path.exists(made.note)
    assert _run_processes.of_run(FS, made.run_id, made.directory) == []


def parameters(lease: Lease, task: Task, **more: t.Any) -> dict[str, t.Any]:
    """Arguments of the module as Ansible would hand them over: two names of this machine, a rank each."""
    given: dict[str, t.Any] = {name: option.get("default") for name, option in lora_step.argument_spec().items()}
    node = {"address": "127.0.0.1", "port": 22, "networks": {}, "python": sys.executable}
    given.update(run_id=lease.run_id, here="n1", nodes=[{"name": "n1", **node}, {"name": "n2", **node}])
    given.update(runs=[{"name": "current", "environment": {}}], task=json.loads(task.to_json()))
    return {**given, **more}


def start(lease: Lease, params: dict[str, t.Any]) -> None:
    _benchmark_run.start(lora_step.build_job(params, FS), FS, params["ttl_s"])


def results(lease: Lease, timeout_s: float) -> list[dict[str, t.Any]]:
    """What the launch brought back, once it is done; the lease is renewed meanwhile."""
    status, deadline = pathlib.Path(lease.directory, "status"), time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        lease.renew()
        if status.exists() and json.loads(status.read_text())["state"] == "done":
            known: list[dict[str, t.Any]] = json.loads(pathlib.Path(lease.directory, "results.json").read_text())[
                "results"
            ]
            return known
        time.sleep(0.1)
    raise AssertionError(f"not done within {timeout_s} s")


def test_two_ranks_train_and_what_they_measure_holds_together(lease: Lease) -> None:
    trainings = (
        Training("LoRA", MODEL, lora=LORA, **SHORT),
        Training("full", MODEL, strategy="fsdp2", **SHORT),
    )
    messages = [message for training in trainings for message in training_plan.listed(training, 2, 2)]
    task = Task("gloo", trainings, training_plan.sizes_to_time(messages), iterations=2, threads=1)
    start(lease, parameters(lease, task, timeout_s=400.0))
    raws = results(lease, 420.0)
    shaped = shape(raws, task, 1)
    assert shaped["failures"] == [], raws
    assert (shaped["ranks"], shaped["backend"], [one["name"] for one in shaped["trainings"]]) == (
        2,
        "gloo",
        ["LoRA", "full"],
    )
    for one in shaped["trainings"]:
        assert one["as_listed"], one["differences"]
        assert 0 < one["exposed_s"]["median"] <= one["communication_s"]["median"] < one["profiled_s"]["median"]
        assert 0 < one["communication_share"] < 1 and 0 <= one["overlap"] < 1 and 0 < one["bandwidth_utilisation"] <= 1
        assert 0 < one["transfer_s"]["median"] <= one["communication_s"]["high"]
        assert one["predicted_s"] > 0 and one["unpriced"] == [] and one["rules"] in ("latency", "bandwidth")
        assert [rank["rank"] for rank in one["by_rank"]] == [0, 1]
        assert len(one["samples_s"]) == SHORT["repeats"] and 0 <= one["cpu_utilisation"]["n1"] <= 1
    sent = {one["name"]: one["sent_bytes"] for one in shaped["trainings"]}
    assert sent["LoRA"] < sent["full"]
    found = judge_lora({"n1": {**shaped, "problem": "", "nodes_left_out": []}}, {"lora_workload_tolerated_error": 1e9})
    assert [finding.id for finding in found] == ["lora_communication"] * 2


def test_a_launch_that_does_not_end_is_ended_at_its_time_limit(lease: Lease) -> None:
    task = Task("gloo", (Training("LoRA", MODEL, lora=LORA, **SHORT),), threads=1)
    start(lease, parameters(lease, task, timeout_s=2.0))
    failure = shape(results(lease, 60.0), task, 1)["failures"][0]
    assert (failure["kind"], failure["missing"], failure["silent"]) == ("timeout", ["LoRA"], ["n1"])


@pytest.mark.slow
def test_a_rank_that_runs_out_of_memory_says_so_and_ends_all(lease: Lease) -> None:
    task = Task("gloo", (Training("big", {**MODEL, "vocab_size": 20_000_000}, **SHORT),), memory_mb=1500, threads=1)
    start(lease, parameters(lease, task, timeout_s=300.0))
    failure = shape(results(lease, 320.0), task, 1)["failures"][0]
    assert failure["kind"] == "out_of_memory" and failure["missing"] == ["big"]
    assert failure["ranks"][0]["while"] == "big" and failure["ranks"][0]["node"] == "n1"


@pytest.mark.slow
def test_ranks_end_with_the_lease_when_nobody_renews_it(lease: Lease) -> None:
    endless = Training("endless", MODEL, lora=LORA, **{**SHORT, "warmup": 1_000_000})
    start(lease, parameters(lease, Task("gloo", (endless,), threads=1), timeout_s=600.0, ttl_s=5))
    deadline = time.monotonic() + 200
    while len(_run_processes.of_run(FS, lease.run_id, lease.directory, with_services=False)) < 3:
        lease.renew()  # torchrun and two ranks
        assert time.monotonic() < deadline, "the ranks did not start"
        time.sleep(0.2)
    deadline = time.monotonic() + 60
    while _run_processes.of_run(FS, lease.run_id, lease.directory) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert _run_processes.of_run(FS, lease.run_id, lease.directory) == []
