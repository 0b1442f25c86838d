# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/lora.yml from end to end: two inventory hosts that are this machine, and one that has no PyTorch."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.tests.fixtures import local_playbook

if any(importlib.util.find_spec(needed) is None for needed in ("torch", "transformers", "peft")):
    pytest.skip("needs PyTorch, transformers and peft: make setup-lora", allow_module_level=True)

MODEL = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "tie_word_embeddings": True,
}
#: all hosts are this one machine, which a run says
MEANT = "duplicate_boot_id"
SHORT = {"sequence": 16, "warmup": 3, "repeats": 2, "iterations": 2, "poll_s": 0.5}


def play(folder: pathlib.Path, **variables: t.Any) -> local_playbook.Run:
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    hosts = {"t1": host, "t2": host, "bare": {**host, "lora_workload_python": "/usr/bin/false"}}
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    (folder / "config.json").write_text(json.dumps(MODEL))
    short = {f"lora_workload_{name}": value for name, value in SHORT.items()}
    model = {"lora_workload_model": str(folder / "config.json"), "gpufabric_busy": "ignore"}
    return local_playbook.run(folder, "lora.yml", **{**short, **model, **variables})


@pytest.mark.slow
def test_two_nodes_train_and_one_that_cannot_is_named(tmp_path: pathlib.Path) -> None:
    settings = {"before": {"OMP_NUM_THREADS": "1"}, "after": {}}
    done = play(tmp_path, lora_workload_settings=settings, lora_workload_strategies=["ddp", "fsdp2"])
    assert [error[0] for error in done.errors()] == [MEANT], done.out[-6000:]
    found = {finding["id"] for finding in done.record["findings"]}
    assert {"lora_communication", "lora_settings_compared", "node_left_out"} <= found
    assert not found & {"lora_messages_unlisted", "lora_rank_failed", "lora_not_run"}, done.record["findings"]
    trainings = done.record["nodes"]["t1"]["lora"]["trainings"]
    names = ["full, ddp", "LoRA 8, ddp", "full, fsdp2", "LoRA 8, fsdp2"]
    assert [(one["setting"], one["name"]) for one in trainings] == [(s, n) for n in names for s in settings]
    assert all(one["as_listed"] and 0 < one["communication_share"] < 1 for one in trainings)
    left = [finding for finding in done.record["findings"] if finding["id"] == "node_left_out"]
    assert [finding["node"] for finding in left] == ["bare"] and "lora_workload_python" in left[0]["evidence"]


@pytest.mark.slow
def test_bad_input_starts_nothing_and_is_one_finding(tmp_path: pathlib.Path) -> None:
    done = play(tmp_path, lora_workload_lora_ranks=[0])
    assert done.rc == 2, done.out[-4000:]
    errors = [f for f in done.record["findings"] if f["severity"] == "error" and f["id"] != MEANT]
    assert [(finding["id"], finding["evidence"]) for finding in errors] == [
        ("lora_not_run", "lora_workload_lora_ranks holds 0, expected whole numbers of 1 or more")
    ]
