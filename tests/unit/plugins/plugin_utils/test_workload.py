# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be worked out by hand; tests/integration/test_workload_messages.py compares with what PyTorch issues."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import model_parameters as mp
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import workload
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload_state import STRATEGIES, Strategy
from hypothesis import given
from hypothesis import strategies as st
from test_model_parameters import LLAMA_3_8B, SMALL

R8 = mp.Lora(rank=8, target_modules=("q_proj", "v_proj"))


def sizes(messages: list[workload.Message], collective: str, phase: str = "") -> list[int]:
    return [m.size for m in messages if m.collective == collective and phase in ("", m.phase)]


def parameter(name: str, count: int, dtype: str = "float32") -> mp.Parameter:
    return mp.Parameter(name, name, 0, (count,), dtype, True)


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_single_rank_sends_nothing(kind: str) -> None:
    assert workload.step_messages(SMALL, Strategy(kind, ranks=1)) == []


def test_ddp_closes_a_bucket_once_it_is_full_and_a_small_one_first() -> None:
    mib = 1 << 18  # float32 elements in one MiB
    made = [parameter(f"p{k}", 5 * mib) for k in range(12)]
    sent = workload.messages_of(made, Strategy("ddp", ranks=2))
    assert sizes(sent, "all_reduce") == [size << 20 for size in (5, 25, 25, 5)]
    sent = workload.messages_of(made, Strategy("ddp", ranks=2, bucket_mb=12))
    assert sizes(sent, "all_reduce") == [15 << 20] * 4


def test_ddp_never_mixes_dtypes_in_a_bucket() -> None:
    made = [parameter("a", 100), parameter("b", 100, "bfloat16"), parameter("c", 50)]
    assert sorted(sizes(workload.messages_of(made, Strategy("ddp", ranks=2)), "all_reduce")) == [200, 600]


@given(st.lists(st.integers(min_value=1, max_value=10**7), min_size=1, max_size=40), st.floats(0.001, 50.0))
def test_ddp_sends_every_gradient_once_whatever_the_buckets(counts: list[int], bucket_mb: float) -> None:
    made = [parameter(f"p{k}", count) for k, count in enumerate(counts)]
    sent = workload.messages_of(made, Strategy("ddp", ranks=4, bucket_mb=bucket_mb))
    assert sum(sizes(sent, "all_reduce")) == 4 * sum(counts)


def test_lora_under_ddp_sends_adapters_only_and_its_buffers() -> None:
    sent = workload.step_messages(LLAMA_3_8B, Strategy("ddp", ranks=16, ranks_per_node=8), R8)
    assert sum(sizes(sent, "all_reduce")) == 4 * 3_407_872
    assert sizes(sent, "broadcast") == [2 * 64 * 4]
    assert not any(message.within_node for message in sent)
    assert {message.ranks for message in sent} == {16}
    assert workload.step_messages(LLAMA_3_8B, Strategy("ddp", ranks=8, ranks_per_node=8), R8)[0].within_node


def test_ddp_options_change_what_is_sent() -> None:
    plain = Strategy("ddp", ranks=2)
    assert len(workload.step_messages(SMALL, plain)) == 2
    quiet = workload.step_messages(SMALL, Strategy("ddp", ranks=2, broadcast_buffers=False))
    assert [message.collective for message in quiet] == ["all_reduce"]
    halved = workload.step_messages(SMALL, Strategy("ddp", ranks=2, compress="bfloat16"))
    assert 2 * sizes(halved, "all_reduce")[0] == sizes(quiet, "all_reduce")[0]
    assert workload.step_messages(SMALL, Strategy("ddp", ranks=2, accumulation=4)) == workload.step_messages(
        SMALL, plain
    )
    unused = workload.step_messages(SMALL, Strategy("ddp", ranks=2, find_unused=True))
    assert sizes(unused, "all_reduce")[-1] == 4 * 21, "the map of 21 used parameters"


def test_fsdp2_gathers_frozen_weights_twice_and_scatters_adapters_only() -> None:
    sent = workload.step_messages(LLAMA_3_8B, Strategy("fsdp2", ranks=8), R8)
    layer = 2 * 218_112_000 + 4 * (3_407_872 // 32)
    root = 2 * (2 * 128256 * 4096 + 4096)
    assert sizes(sent, "all_gather", "forward") == [root] + [layer] * 32
    assert sizes(sent, "all_gather", "backward") == [layer] * 32
    assert sizes(sent, "reduce_scatter") == [4 * 106_496] * 32


def test_fsdp2_pads_each_parameter_to_the_ranks() -> None:
    lora = mp.Lora(rank=3, target_modules=("q_proj",))
    two = workload.step_messages(SMALL, Strategy("fsdp2", ranks=2), lora, "float32")
    eight = workload.step_messages(SMALL, Strategy("fsdp2", ranks=8), lora, "float32")
    assert sizes(two, "reduce_scatter") == [4 * (4 * 32 + 32 * 3)] * 2, "3 rows are padded to 4"
    assert sizes(eight, "reduce_scatter") == [4 * (8 * 32 + 32 * 3)] * 2, "3 rows are padded to 8"


def test_layers_before_the_first_adapter_are_not_gathered_again() -> None:
    deep = {**SMALL, "num_hidden_layers": 5}
    late = mp.Lora(rank=4, layers=(3, 4))
    sent = workload.step_messages(deep, Strategy("fsdp2", ranks=2), late)
    counts = [len(sizes(sent, "all_gather", phase)) for phase in ("forward", "backward")]
    assert counts == [6, 3], "layers 4 and 3, and layer 2 that is fetched ahead in vain"
    checkpointed = workload.step_messages(deep, Strategy("fsdp2", ranks=2, inputs_require_grad=True), late)
    assert len(sizes(checkpointed, "all_gather", "backward")) == 5


def test_hybrid_sharding_reduces_shards_between_its_copies() -> None:
    strategy = Strategy("fsdp2", ranks=16, ranks_per_node=8, replicas=2)
    sent = workload.step_messages(SMALL, strategy)
    reduced = [m for m in sent if m.collective == "all_reduce"]
    assert {(m.ranks, m.within_node) for m in sent if m.collective != "all_reduce"} == {(8, True)}
    assert {(m.ranks, m.within_node) for m in reduced} == {(2, False)}
    assert [m.size * 8 for m in reduced] == sizes(sent, "reduce_scatter")


def test_keeping_layers_gathered_saves_the_backward_gathers_and_micro_batches_multiply() -> None:
    kept = workload.step_messages(SMALL, Strategy("fsdp2", ranks=2, reshard_after_forward=False))
    assert sizes(kept, "all_gather", "backward") == []
    once = workload.step_messages(SMALL, Strategy("fsdp2", ranks=2))
    assert workload.step_messages(SMALL, Strategy("fsdp2", ranks=2, accumulation=3)) == once * 3


def test_clipping_sends_the_norm_of_every_gradient() -> None:
    sent = workload.step_messages(SMALL, Strategy("fsdp2", ranks=2, clip=True), mp.Lora(rank=4))
    assert sizes(sent, "all_reduce", "step") == [4 * 8]


def test_fsdp1_reduces_frozen_weights_too_unless_adapters_are_units_of_their_own() -> None:
    lora = mp.Lora(rank=4)
    whole = workload.step_messages(SMALL, Strategy("fsdp", ranks=2), lora)
    apart = workload.step_messages(SMALL, Strategy("fsdp", ranks=2, wrap="adapter"), lora)
    assert sum(sizes(whole, "reduce_scatter")) > 10 * sum(sizes(apart, "reduce_scatter"))
    assert len(sizes(apart, "reduce_scatter")) == 8
    assert sum(sizes(apart, "reduce_scatter")) == 4 * 2 * (4 * 32 + 32 * 4 + 4 * 32 + 16 * 4)


def test_what_a_strategy_cannot_train_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="FSDP wants all parameters of a unit"):
        workload.step_messages({**SMALL, "dtype": "bfloat16"}, Strategy("fsdp", ranks=2), mp.Lora(rank=4))
    frozen = [mp.Parameter("a", "a", 0, (4,), "float32", False)]
    with pytest.raises(ValueError, match="nothing to train"):
        workload.messages_of(frozen, Strategy("ddp", ranks=2))


def test_zero_1_and_2_reduce_all_and_gather_what_was_updated() -> None:
    for kind in ("zero1", "zero2"):
        sent = workload.step_messages(SMALL, Strategy(kind, ranks=2))
        (reduced, norm), (gathered,) = sizes(sent, "all_reduce"), sizes(sent, "all_gather")
        assert (reduced, norm) == (gathered, 4)
    twice = workload.step_messages(SMALL, Strategy("zero2", ranks=2, accumulation=2))
    assert len(sizes(twice, "all_reduce", "backward")) == 2
    assert (
        len(sizes(workload.step_messages(SMALL, Strategy("zero1", ranks=2, accumulation=2)), "all_reduce", "backward"))
        == 1
    )


def test_zero_buckets_end_before_what_would_make_them_too_long() -> None:
    made = [parameter(f"p{k}", 40) for k in range(5)]
    sent = workload.messages_of(made, Strategy("zero2", ranks=2, zero_bucket=100))
    assert sizes(sent, "all_reduce", "backward") == [4 * 80, 4 * 80, 4 * 40]


def test_zero_3_gathers_all_that_is_not_kept_and_scatters_every_gradient() -> None:
    sent = workload.step_messages(LLAMA_3_8B, Strategy("zero3", ranks=8), R8)
    big = 2 * sum(p.count for p in mp.parameters(mp.Model(LLAMA_3_8B), R8) if p.count > 100_000)
    gathered = sum(sizes(sent, "all_gather", "forward")) + sum(sizes(sent, "all_gather", "backward"))
    assert big < gathered < 2 * big, "what is used again soon is not given up"
    assert sum(sizes(sent, "reduce_scatter")) == 2 * 3_407_872


def test_the_list_is_counted_dearest_first() -> None:
    counted = workload.tally(workload.step_messages(LLAMA_3_8B, Strategy("fsdp2", ranks=8), R8))
    assert [entry["count"] for entry in counted] == [64, 1, 32]
    volumes = [entry["size"] * entry["count"] for entry in counted]
    assert volumes == sorted(volumes, reverse=True)


@pytest.mark.parametrize(
    ("given_strategy", "said"),
    [
        ({"kind": "fdsp"}, "the strategy is fdsp"),
        ({"kind": "ddp", "ranks": 0}, "ranks is 0"),
        ({"kind": "fsdp2", "ranks": 8, "replicas": 3}, "replicas is 3, expected a divisor of 8"),
        ({"kind": "ddp", "bucket_mb": 0}, "bucket_mb is 0"),
        ({"kind": "ddp", "compress": "int8"}, "compress is int8"),
    ],
)
def test_strategies_that_make_no_sense_are_refused(given_strategy: dict[str, t.Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Strategy(**{"ranks": 2, **given_strategy})
