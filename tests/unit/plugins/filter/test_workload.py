# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter that names the sizes which nccl-tests should measure for a training."""

from __future__ import annotations

import typing as t

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpufabric.cluster.plugins.filter.workload import workload_sizes

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}


def test_lora_under_ddp_sends_less_and_smaller_than_fsdp2_gathers() -> None:
    ddp = workload_sizes(LLAMA, 16, lora_rank=8, dtype="bfloat16")
    fsdp = workload_sizes(LLAMA, 16, strategy="fsdp2", lora_rank=8, dtype="bfloat16")
    assert ddp["collectives"][0] == "all_reduce" and set(fsdp["collectives"]) == {"all_gather", "reduce_scatter"}
    assert ddp["bytes"] < fsdp["bytes"] / 10
    assert all(int(size).bit_count() == 1 for size in (ddp["min_bytes"], ddp["max_bytes"], fsdp["max_bytes"]))


def test_the_range_holds_that_of_each_collective() -> None:
    made = workload_sizes(LLAMA, 8, lora_rank=64)
    assert int(made["min_bytes"]) == min(entry["min_bytes"] for entry in made["plan"])
    assert int(made["max_bytes"]) == max(entry["max_bytes"] for entry in made["plan"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"strategy": "ddq"}, "the strategy is ddq"),
        ({"lora_rank": -1}, "the LoRA rank is -1"),
        ({"ranks": 0}, "ranks is 0"),
        ({"target_modules": ["q_porj"], "lora_rank": 8}, "target_modules names q_porj"),
    ],
)
def test_bad_input_is_one_sentence(arguments: dict[str, t.Any], said: str) -> None:
    with pytest.raises(AnsibleFilterError, match=said):
        workload_sizes(LLAMA, **{"ranks": 8, **arguments})
