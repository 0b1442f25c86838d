# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The message list equals what PyTorch, peft and DeepSpeed issue, message by message, over models, ranks and strategies."""

from __future__ import annotations

import collections
import importlib.util
import pathlib
import typing as t

import pytest

for needed in ("torch", "transformers", "peft"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}: make setup-lora", allow_module_level=True)

import issued_messages
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import workload
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.model_parameters import Lora
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload_state import Strategy

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
WIDE = {**LLAMA, "num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 512}
DEEP = {**LLAMA, "num_hidden_layers": 5}
QWEN2 = {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True}
QWEN3 = {**LLAMA, "model_type": "qwen3", "head_dim": 16}
GEMMA2 = {**LLAMA, "model_type": "gemma2", "head_dim": 8}
PHI3 = {**LLAMA, "model_type": "phi3", "pad_token_id": 0}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4}
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 64}
NEOX = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"} | {"model_type": "gpt_neox"}
OPT = {**NEOX, "model_type": "opt", "ffn_dim": 48, "word_embed_proj_dim": 32}

ALL = {"r": 4, "target_modules": "all-linear"}


def case(
    strategy: str,
    config: dict[str, t.Any],
    lora: dict[str, t.Any] | None = None,
    dtype: str = "float32",
    ranks: int = 2,
    **options: t.Any,
) -> dict[str, t.Any]:
    return {"strategy": strategy, "config": config, "lora": lora, "dtype": dtype, "ranks": ranks, "options": options}


CASES = {
    "llama, all, ddp": case("ddp", LLAMA),
    "llama, all, ddp, default buckets": case("ddp", WIDE),
    "llama, all, ddp, many buckets": case("ddp", WIDE, bucket_cap_mb=1),
    "llama, rank 4, ddp, micro-batches": case("ddp", LLAMA, ALL, bucket_cap_mb=0.005, accumulation=2),
    "llama, rank 64, ddp": case("ddp", LLAMA, {"r": 64, "target_modules": ["q_proj", "v_proj"]}, bucket_cap_mb=0.02),
    "llama, all, ddp, unused parameters": case("ddp", WIDE, bucket_cap_mb=1, find_unused_parameters=True),
    "gpt2, all, ddp": case("ddp", GPT2, bucket_cap_mb=0.01),
    "gpt2, rank 5, ddp": case("ddp", GPT2, {"r": 5}, bucket_cap_mb=0.001, find_unused_parameters=True),
    "qwen2, tied, ddp": case("ddp", QWEN2, bucket_cap_mb=0.01),
    "qwen2, dora and biases, bfloat16, ddp": case(
        "ddp", QWEN2, {**ALL, "use_dora": True, "bias": "all"}, "bfloat16", bucket_cap_mb=0.002
    ),
    "qwen3, all, ddp": case("ddp", QWEN3, bucket_cap_mb=0.01),
    "gemma2, all, ddp": case("ddp", GEMMA2, bucket_cap_mb=0.01),
    "phi3, rank 4, ddp": case("ddp", PHI3, ALL, bucket_cap_mb=0.002),
    "mixtral, all, ddp": case("ddp", MIXTRAL, bucket_cap_mb=0.03),
    "gpt_neox, all, ddp": case("ddp", NEOX, bucket_cap_mb=0.01),
    "opt, all, ddp, unused parameters": case("ddp", OPT, bucket_cap_mb=0.01, find_unused_parameters=True),
    "llama, all, fsdp2": case("fsdp2", LLAMA),
    "llama, rank 3, bfloat16, fsdp2, micro-batches": case("fsdp2", LLAMA, {"r": 3}, "bfloat16", accumulation=2),
    "llama, all, fsdp2, clipped": case("fsdp2", LLAMA, clip=True),
    "llama, all, fsdp2, mixed precision": case("fsdp2", LLAMA, precision=["bfloat16", "float32"]),
    "llama, all, fsdp2, kept gathered": case("fsdp2", LLAMA, reshard=False),
    "llama, rank 4 in late layers, fsdp2": case("fsdp2", DEEP, {"r": 4, "layers_to_transform": [3, 4]}),
    "llama, rank 4 and the embedding, fsdp2": case("fsdp2", LLAMA, {"r": 4, "modules_to_save": ["embed_tokens"]}),
    "qwen2, dora, fsdp2": case("fsdp2", QWEN2, {**ALL, "use_dora": True}),
    "gpt2, all, fsdp2": case("fsdp2", GPT2),
    "mixtral, rank 4, fsdp2": case("fsdp2", MIXTRAL, {"r": 4, "target_modules": ["q_proj", "v_proj"]}),
    "llama, all, fsdp": case("fsdp", LLAMA),
    "llama, rank 4, fsdp": case("fsdp", LLAMA, ALL),
    "llama, rank 4, fsdp, adapters apart": case("fsdp", LLAMA, ALL, wrap="adapter"),
    "llama, all, fsdp, kept gathered": case("fsdp", LLAMA, reshard=False),
}
#: on more ranks than a quick test should start
WIDER_CASES = {
    "llama, rank 4, fsdp2, three ranks": case("fsdp2", LLAMA, ALL, ranks=3),
    "llama, rank 4, ddp, three ranks": case("ddp", LLAMA, ALL, ranks=3),
    "llama, all, fsdp2, two copies of two shards": case("fsdp2", LLAMA, ranks=4, replicas=2, clip=True),
}
ZERO_CASES = {
    "llama, all, zero1": case("zero1", LLAMA),
    "llama, all, zero1, micro-batches": case("zero1", LLAMA, accumulation=2),
    "llama, rank 4, zero2, micro-batches": case("zero2", LLAMA, ALL, accumulation=2),
    "llama, all, zero2, small buckets": case("zero2", LLAMA, reduce_bucket_size=20000),
    "llama, all, zero3": case("zero3", LLAMA, stage3_param_persistence_threshold=100),
    "llama, rank 4, zero3": case("zero3", LLAMA, ALL, stage3_param_persistence_threshold=100),
    "llama, rank 4, zero3, all kept": case("zero3", LLAMA, ALL),
    "llama, rank 4, bfloat16, zero1": case("zero1", LLAMA, ALL, "bfloat16"),
    "llama, rank 4, bfloat16, zero2": case("zero2", LLAMA, ALL, "bfloat16"),
    "llama, rank 4, bfloat16, zero3": case("zero3", WIDE, ALL, "bfloat16", stage3_param_persistence_threshold=5000),
}

#: an option of the recipe, as workload's Strategy names it
OPTIONS = {
    "bucket_cap_mb": "bucket_mb",
    "find_unused_parameters": "find_unused",
    "reshard": "reshard_after_forward",
    "reduce_bucket_size": "zero_bucket",
    "stage3_param_persistence_threshold": "persistence",
}
LORA = {"r": "rank", "use_dora": "dora", "layers_to_transform": "layers"}


def predicted(recipe: dict[str, t.Any]) -> list[tuple[str, int]]:
    options = dict(recipe["options"])
    precision = options.pop("precision", (None, None))
    strategy = Strategy(
        recipe["strategy"],
        recipe["ranks"],
        param_dtype=precision[0],
        reduce_dtype=precision[1],
        **{OPTIONS.get(name, name): value for name, value in options.items()},
    )
    given = recipe["lora"] or {}
    frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    lora = Lora(**{LORA.get(name, name): value for name, value in frozen.items()}) if recipe["lora"] else None
    return [(m.collective, m.size) for m in workload.step_messages(recipe["config"], strategy, lora, recipe["dtype"])]


def run_all(cases: dict[str, dict[str, t.Any]], folder: pathlib.Path) -> dict[str, list[tuple[str, int]]]:
    issued = {}
    for ranks in sorted({recipe["ranks"] for recipe in cases.values()}):
        names = [name for name, recipe in cases.items() if recipe["ranks"] == ranks]
        results = issued_messages.issued_by([cases[name] for name in names], ranks, folder)
        issued.update(zip(names, results, strict=True))
    return issued


def check(recipe: dict[str, t.Any], sent: list[tuple[str, int]]) -> None:
    """DDP's messages in their very order; FSDP fetches ahead, so its are compared as a bag."""
    want = predicted(recipe)
    assert sent, "something must have been sent"
    if recipe["strategy"] == "ddp":
        assert sent == want
    assert collections.Counter(sent) == collections.Counter(want)


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, int]]]:
    return run_all(CASES, tmp_path_factory.mktemp("issued"))


@pytest.fixture(scope="module")
def issued_by_more(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, int]]]:
    return run_all(WIDER_CASES, tmp_path_factory.mktemp("issued"))


@pytest.fixture(scope="module")
def issued_by_deepspeed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, int]]]:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("needs DeepSpeed: pip install deepspeed")
    return run_all(ZERO_CASES, tmp_path_factory.mktemp("issued"))


@pytest.mark.parametrize("name", CASES)
def test_every_message_that_pytorch_issues_is_predicted(name: str, issued: dict[str, list[tuple[str, int]]]) -> None:
    check(CASES[name], issued[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDER_CASES)
def test_every_message_among_more_ranks_is_predicted(
    name: str, issued_by_more: dict[str, list[tuple[str, int]]]
) -> None:
    check(WIDER_CASES[name], issued_by_more[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ZERO_CASES)
def test_every_message_that_deepspeed_issues_is_predicted(
    name: str, issued_by_deepspeed: dict[str, list[tuple[str, int]]]
) -> None:
    check(ZERO_CASES[name], issued_by_deepspeed[name])
