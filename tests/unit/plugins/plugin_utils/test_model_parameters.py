# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import model_parameters as mp

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
MORE: dict[str, dict[str, t.Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 64},
    "opt": {**SMALL, "ffn_dim": 48},
    "mixtral": {**SMALL, "num_local_experts": 4},
    "qwen3_moe": {**SMALL, "num_experts": 4, "moe_intermediate_size": 16},
}

LLAMA_3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
QWEN2_0_5B = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}


def total(made: list[mp.Parameter], trainable: bool = False) -> int:
    return sum(parameter.count for parameter in made if parameter.trainable or not trainable)


@pytest.mark.parametrize(
    ("config", "count"), [(LLAMA_3_8B, 8_030_261_248), (QWEN2_0_5B, 494_032_768), (GPT2, 124_439_808)]
)
def test_published_models_have_their_published_number_of_parameters(config: dict[str, t.Any], count: int) -> None:
    assert total(mp.parameters(mp.Model(config))) == count


def test_lora_on_a_published_model_trains_its_known_number_of_parameters() -> None:
    made = mp.parameters(mp.Model(LLAMA_3_8B), mp.Lora(rank=8, target_modules=("q_proj", "v_proj")))
    assert total(made, trainable=True) == 3_407_872
    assert total(made) - 3_407_872 == 8_030_261_248
    made = mp.parameters(mp.Model(LLAMA_3_8B), mp.Lora(rank=64, target_modules="all-linear"))
    assert total(made, trainable=True) == 167_772_160
    assert {p.dtype for p in made if p.trainable} == {"float32"}, "peft keeps adapters in float32"
    assert {p.dtype for p in made if not p.trainable} == {"bfloat16"}


@pytest.mark.parametrize("model_type", mp.families())
def test_every_family_reads_and_registers_each_parameter_once(model_type: str) -> None:
    model = mp.Model({"model_type": model_type, **MORE.get(model_type, SMALL)})
    made = mp.parameters(model)
    assert sorted(parameter.registered for parameter in made) == list(range(len(made)))
    assert len({parameter.name for parameter in made}) == len(made)
    assert {parameter.layer for parameter in made} == {mp.ROOT, 0, 1}
    assert all(parameter.trainable for parameter in made)
    assert (made[-1].module == "lm_head") != model.tied


def test_sizes_alone_are_taken_for_a_llama() -> None:
    assert mp.parameters(mp.Model(SMALL)) == mp.parameters(mp.Model({**SMALL, "model_type": "llama"}))


def test_the_text_part_of_a_model_of_several_is_used() -> None:
    inner = {"model_type": "qwen2_text", **SMALL}
    assert mp.parameters(mp.Model({"model_type": "some_vl", "text_config": inner})) == mp.parameters(
        mp.Model({"model_type": "qwen2", **SMALL})
    )


def test_targets_are_matched_as_peft_matches_them() -> None:
    def adapted(**kwargs: t.Any) -> set[str]:
        made = mp.parameters(mp.Model(SMALL), mp.Lora(rank=2, **kwargs))
        return {p.module.partition(".lora_")[0].partition("layers.")[2] for p in made if p.adapter}

    assert adapted() == {f"{k}.self_attn.{name}_proj" for k in (0, 1) for name in "qv"}
    assert adapted(target_modules=("o_proj",), layers=(1,)) == {"1.self_attn.o_proj"}
    assert adapted(target_modules=r".*\.0\.mlp\.(up|down)_proj") == {"0.mlp.up_proj", "0.mlp.down_proj"}
    assert len(adapted(target_modules="all-linear")) == 14


def test_what_lora_adds_has_its_shapes_and_follows_its_base() -> None:
    made = mp.parameters(
        mp.Model(SMALL), mp.Lora(rank=4, target_modules=("up_proj",), dora=True, rank_pattern={"1.mlp.up_proj": 6})
    )
    added = [(p.name.partition("mlp.up_proj.")[2], p.shape) for p in made if p.adapter]
    assert added[:3] == [
        ("lora_magnitude_vector.default.weight", (48,)),
        ("lora_A.default.weight", (4, 32)),
        ("lora_B.default.weight", (48, 4)),
    ]
    assert added[4:] == [("lora_A.default.weight", (6, 32)), ("lora_B.default.weight", (48, 6))]
    gpt2 = mp.parameters(mp.Model(GPT2), mp.Lora(rank=4))
    assert [p.shape for p in gpt2 if p.adapter][:2] == [(4, 768), (2304, 4)], "Conv1D holds its weight the other way"


def test_whole_modules_and_biases_can_be_trained_beside_adapters() -> None:
    model = mp.Model({"model_type": "qwen2", **SMALL})
    made = mp.parameters(model, mp.Lora(modules_to_save=("lm_head",), target_modules=("q_proj",), bias="lora_only"))
    trained = [p.name for p in made if p.trainable and not p.adapter]
    assert [name.partition("layers.")[2] or name for name in trained] == [
        "0.self_attn.q_proj.base_layer.bias",
        "1.self_attn.q_proj.base_layer.bias",
        "lm_head.modules_to_save.default.weight",
    ]
    every = mp.parameters(model, mp.Lora(target_modules=("q_proj",), bias="all"))
    assert sum(p.trainable and p.name.endswith("bias") for p in every) == 6


@pytest.mark.parametrize(
    ("config", "lora", "said"),
    [
        ({"model_type": "lama", **SMALL}, None, "did you mean llama"),
        ({"model_type": "mamba", **SMALL}, None, "'mamba' is not known"),
        (
            {key: value for key, value in SMALL.items() if key != "vocab_size"},
            None,
            "vocab_size of the model's config is None",
        ),
        ({**SMALL, "hidden_size": "32"}, None, "hidden_size of the model's config is 32"),
        ({**SMALL, "dtype": "int4"}, None, "the dtype is 'int4'"),
        (SMALL, {"target_modules": ("qproj",)}, "target_modules names qproj, a llama has"),
        (SMALL, {"target_modules": "nothing"}, "match no module"),
        (SMALL, {"modules_to_save": ("head",)}, "modules_to_save names head"),
        ({"model_type": "phi3", **SMALL}, {}, "name target_modules"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(config: dict[str, t.Any], lora: dict[str, t.Any] | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        mp.parameters(mp.Model(config), None if lora is None else mp.Lora(**lora))


def test_a_lora_that_cannot_be_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="rank is 0"):
        mp.Lora(rank=0)
    with pytest.raises(ValueError, match="bias is 'some'"):
        mp.Lora(bias="some")
