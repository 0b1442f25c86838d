# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which nodes train, with how many ranks, and what; and each kind of bad input in one sentence."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._training_task import Task
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import training_plan
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.training_plan import NodeMeans, Plan
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload_state import Message

SETTINGS: dict[str, t.Any] = {
    "model": "auto",
    "strategies": ["ddp"],
    "lora_ranks": [8],
    "full": True,
    "target_modules": "all-linear",
    "dtype": "auto",
    "batch": 1,
    "sequence": 64,
    "accumulation": 1,
    "bucket_mb": 0,
    "settings": {"before": {"NCCL_CONF_FILE": "/dev/null"}, "after": {}},
    "rounds": 2,
    "warmup": 4,
    "repeats": 5,
    "iterations": 5,
    "backend": "auto",
    "processes_per_node": 0,
    "threads": 0,
    "memory_mb": 0,
    "timeout_s": 300,
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
}


def node(name: str, gpus: int = 0, machine: str = "", **means: t.Any) -> NodeMeans:
    known = {"python": "/opt/train/bin/python", "problem": "", "memory_mb": 64000, "cores": 16}
    return NodeMeans(name, {**known, "gpus": [140000] * gpus, **means}, machine or name)


def planned(*nodes: NodeMeans, **settings: t.Any) -> Plan:
    return training_plan.plan(nodes, nodes[0].name, {**SETTINGS, **settings})


def test_all_gpus_train_over_nccl_with_every_setting_in_turn() -> None:
    made = planned(node("a", 8), node("b", 8))
    assert (made.problem, made.backend, made.ranks_per_node, made.ranks, made.left_out) == ("", "nccl", 8, 16, [])
    assert [run["name"] for run in made.runs] == ["before", "after", "before", "after"]
    task = Task.from_dict(made.task)
    assert [(one.name, one.dtype) for one in task.trainings] == [("full, ddp", "bfloat16"), ("LoRA 8, ddp", "bfloat16")]
    assert task.memory_mb == int(0.9 * 140000)
    listed = {
        entry["size"]
        for training in made.trainings
        for entry in training["listed"]
        if entry["collective"] == "all_reduce"
    }
    assert set(task.prices["all_reduce"]) <= listed and training_plan.REFERENCE["nccl"] in task.prices["broadcast"]
    assert len(task.prices["all_reduce"]) <= training_plan.MOST_SIZES


def test_without_gpus_gloo_trains_a_small_model_in_full_precision() -> None:
    made = planned(node("a"), node("b"))
    task = Task.from_dict(made.task)
    assert (made.problem, made.backend, made.ranks, task.threads) == ("", "gloo", 2, 16)
    assert {training.dtype for training in task.trainings} == {"float32"}


def test_two_names_of_one_machine_share_its_gpus_cores_and_memory() -> None:
    gpus = planned(node("a", 2, "m"), node("b", 2, "m"))
    assert (gpus.problem, gpus.ranks_per_node, gpus.ranks) == ("", 1, 2)
    cores = planned(node("a", machine="m"), node("b", machine="m"))
    assert (cores.task["threads"], cores.task["memory_mb"]) == (8, int(0.6 * 64000 / 2))


def test_nodes_that_cannot_train_are_left_out_with_what_to_type() -> None:
    made = planned(
        node("a", 4),
        node("b", 4),
        node("bare", problem="/usr/bin/python3 has no torch", python="/usr/bin/python3"),
        node("cpu"),
    )
    assert (made.problem, made.nodes, made.ranks) == ("", ["a", "b"], 8)
    why = {entry["node"]: entry["why"] for entry in made.left_out}
    assert "has no torch: /usr/bin/python3 -m pip install torch transformers peft" in why["bare"]
    assert "no GPU" in why["cpu"]


def test_fsdp2_and_ddp_are_trainings_of_their_own() -> None:
    made = planned(node("a", 2), model=LLAMA, strategies=["ddp", "fsdp2"], full="False", lora_ranks=["8", 64])
    assert [one["name"] for one in made.trainings] == ["LoRA 8, ddp", "LoRA 64, ddp", "LoRA 8, fsdp2", "LoRA 64, fsdp2"]
    assert set(made.task["prices"]) == {"all_reduce", "all_gather", "reduce_scatter", "broadcast"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lora_ranks": [0]}, "lora_workload_lora_ranks holds 0, expected whole numbers of 1 or more"),
        ({"lora_ranks": ["eight"]}, "lora_workload_lora_ranks holds 'eight'"),
        ({"lora_ranks": [], "full": False}, "nothing is to be trained"),
        ({"processes_per_node": 9}, "lora_workload_processes_per_node is 9, and a has 8 GPUs"),
        ({"processes_per_node": -1}, "expected 0 for all GPUs"),
        ({"strategies": ["ddq"]}, "lora_workload_strategies holds 'ddq', expected ddp or fsdp2"),
        ({"backend": "mpi"}, "lora_workload_backend is 'mpi'"),
        ({"model": {**LLAMA, "model_type": "lama"}}, "the model type 'lama' is not known (did you mean"),
        ({"model": {**LLAMA, "hidden_size": None}}, "hidden_size of the model's config is None"),
        ({"model": {"hidden_size": 64}}, "lora_workload_model has no model_type"),
        ({"model": "nowhere"}, "lora_workload_model is 'nowhere'"),
        ({"target_modules": ["q_porj"]}, "target_modules names q_porj"),
        ({"settings": {}}, "lora_workload_settings is empty"),
        ({"warmup": 0}, "lora_workload_warmup is 0, expected 3 or more"),
        (
            {"model": {**LLAMA, "hidden_size": 65536, "intermediate_size": 262144, "num_hidden_layers": 8}},
            "a rank needs at least",
        ),
    ],
)
def test_bad_input_is_one_sentence(settings: dict[str, t.Any], said: str) -> None:
    made = planned(node("a", 8), node("b", 8), **settings)
    assert said in made.problem and "\n" not in made.problem and made.runs == []


def test_one_rank_has_nobody_to_send_to() -> None:
    assert "one rank sends nothing" in planned(node("a", 1)).problem


def test_a_launching_node_that_cannot_train_is_named() -> None:
    made = planned(node("a", problem="/x has no peft"), node("b", 2))
    assert made.problem.startswith("the launching node a cannot train: /x has no peft")


def test_of_many_sizes_the_ends_and_the_heaviest_are_timed() -> None:
    messages = [Message("all_reduce", size, 4, False, "backward") for size in range(1, 101)]
    chosen = training_plan.sizes_to_time(messages)["all_reduce"]
    assert len(chosen) == training_plan.MOST_SIZES and chosen[0] == 1 and chosen[1:] == list(range(90, 101))
    assert training_plan.sizes_to_time(messages, 1 << 20)["all_reduce"] == [*chosen, 1 << 20]
    assert training_plan.sizes_to_time(messages, 50)["all_reduce"] == chosen
