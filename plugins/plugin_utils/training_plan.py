# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a synthetic training of these nodes consists of: which nodes, how many ranks, which trainings, which messages to time. Pure."""

from __future__ import annotations

import collections
import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._training_task import (
    BACKENDS,
    STRATEGIES,
    Task,
    Training,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import workload
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.model_parameters import Lora, Model, parameters
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload_state import Message, Strategy

Settings = t.Mapping[str, t.Any]

MIB = 1 << 20

#: where no model is named: 1.1 billion parameters on GPUs, 3 million without
GPU_MODEL = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}
CPU_MODEL = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
}

#: sizes of one collective that are timed alone; what lies between is interpolated
MOST_SIZES = 12

#: bytes of one more message of each collective, large enough to show the bandwidth that small ones do not reach
REFERENCE = {"nccl": 32 << 20, "gloo": 4 << 20}

#: the part of a GPU's memory, and of a node's without GPUs, that its ranks may take together
GPU_SHARE, NODE_SHARE = 0.9, 0.6
#: MiB that PyTorch itself takes, before it has made anything
LIBRARIES_MB = 1200

#: what numbers must at least be. A list of messages is that of DDP's third step and those after it, and quartiles need two steps.
LEAST = {"batch": 1, "sequence": 2, "accumulation": 1, "warmup": 3, "repeats": 2, "iterations": 1, "rounds": 1}

#: tensors as large as the trained parameters: the gradient, and AdamW's two moments
TRAINED_COPIES = 3


@dataclasses.dataclass(frozen=True)
class NodeMeans:
    """What one node brings: what training_info returned. machine: the same for two names of one machine."""

    name: str
    means: Settings
    machine: str


@dataclasses.dataclass
class Plan:
    """problem: why nothing can be run, "" if something can. trainings: [{name, strategy, lora_rank, listed}], see described()."""

    backend: str = ""
    nodes: list[str] = dataclasses.field(default_factory=list)
    pythons: dict[str, str] = dataclasses.field(default_factory=dict)
    ranks_per_node: int = 1
    ranks: int = 0
    task: dict[str, t.Any] = dataclasses.field(default_factory=dict)
    trainings: list[dict[str, t.Any]] = dataclasses.field(default_factory=list)
    runs: list[dict[str, t.Any]] = dataclasses.field(default_factory=list)
    left_out: list[dict[str, str]] = dataclasses.field(default_factory=list)
    problem: str = ""


def plan(nodes: t.Sequence[NodeMeans], here: str, settings: Settings) -> Plan:
    """settings: the variables of the role lora_workload without their prefix; here: the launching node."""
    made = Plan()
    try:
        fit = _fit(made, nodes, settings)
        if here not in made.nodes:
            why = next((entry["why"] for entry in made.left_out if entry["node"] == here), "it takes no part")
            raise ValueError(f"the launching node {here} cannot train: {why}")
        _fill(made, fit, settings)
    except ValueError as error:
        made.problem = str(error)
        made.runs = []
    return made


def _fit(made: Plan, nodes: t.Sequence[NodeMeans], settings: Settings) -> list[NodeMeans]:
    """The nodes that take part; the others go to left_out."""
    wanted = settings["backend"]
    if wanted not in ("auto", *BACKENDS):
        raise ValueError(f"lora_workload_backend is {wanted!r}, expected auto, {' or '.join(BACKENDS)}")
    able = [node for node in nodes if not node.means["problem"]]
    gpus = any(node.means["gpus"] for node in able)
    made.backend = ("nccl" if gpus else "gloo") if wanted == "auto" else wanted
    fit = []
    for node in nodes:
        why = _unfit(node, made.backend)
        if why:
            made.left_out.append({"node": node.name, "why": why})
        else:
            fit.append(node)
    made.nodes = [node.name for node in fit]
    made.pythons = {node.name: str(node.means["python"]) for node in fit}
    return fit


def _unfit(node: NodeMeans, backend: str) -> str:
    if node.means["problem"]:
        how = f"{node.means['python']} -m pip install torch transformers peft"
        return f"{node.means['problem']}: {how}, or name one that has them in lora_workload_python"
    if backend == "nccl" and not node.means["gpus"]:
        return "it has no GPU that PyTorch can use, and a training over NCCL takes only nodes that have"
    return ""


def _fill(made: Plan, nodes: t.Sequence[NodeMeans], settings: Settings) -> None:
    for name, least in LEAST.items():
        if int(settings[name]) < least:
            raise ValueError(f"lora_workload_{name} is {settings[name]}, expected {least} or more")
    made.ranks_per_node = _ranks_per_node(nodes, made.backend, int(settings["processes_per_node"]))
    made.ranks = made.ranks_per_node * len(nodes)
    if made.ranks < 2:
        raise ValueError(
            f"a training with one rank sends nothing, and only {made.nodes[0]} can take part, with one process"
        )
    config = _model(settings["model"], made.backend)
    dtype = settings["dtype"] if settings["dtype"] != "auto" else ("bfloat16" if made.backend == "nccl" else "float32")
    wanted = _trainings(settings, config, dtype)
    memory = _memory_mb(nodes, made.backend, made.ranks_per_node)
    for training in wanted:
        _hold_against(training, memory, made.ranks)
    made.trainings = [described(training, made.ranks, made.ranks_per_node) for training in wanted]
    messages = [message for training in wanted for message in listed(training, made.ranks, made.ranks_per_node)]
    cores = min(int(node.means["cores"]) for node in nodes)
    made.task = dataclasses.asdict(
        Task(
            backend=made.backend,
            trainings=tuple(wanted),
            prices=sizes_to_time(messages, REFERENCE[made.backend]),
            iterations=int(settings["iterations"]),
            memory_mb=int(settings["memory_mb"]) or memory,
            threads=0 if made.backend == "nccl" else int(settings["threads"]) or max(cores // _crowd(nodes, made), 1),
            timeout_s=float(settings["timeout_s"]) / 2,
        )
    )
    rounds = range(int(settings["rounds"]))
    named = settings["settings"].items()
    made.runs = [{"name": name, "environment": dict(variables or {})} for _round in rounds for name, variables in named]
    if not made.runs:
        raise ValueError(
            "lora_workload_settings is empty, expected variables by a name for them, such as {current: {}}"
        )


def _crowd(nodes: t.Sequence[NodeMeans], made: Plan) -> int:
    """Ranks on the machine that has most of them."""
    return made.ranks_per_node * max(collections.Counter(node.machine for node in nodes).values())


def _ranks_per_node(nodes: t.Sequence[NodeMeans], backend: str, wanted: int) -> int:
    if wanted < 0:
        raise ValueError(f"lora_workload_processes_per_node is {wanted}, expected 0 for all GPUs, or a number above it")
    if backend == "gloo":
        return wanted or 1
    names = collections.Counter(node.machine for node in nodes)
    room = {node.name: len(node.means["gpus"]) // names[node.machine] for node in nodes}
    fewest = min(room, key=lambda name: room[name])
    if wanted > room[fewest] or not room[fewest]:
        raise ValueError(
            f"lora_workload_processes_per_node is {wanted}, and {fewest} has {room[fewest]} GPUs: each process needs its own"
        )
    return wanted or room[fewest]


def _model(given: t.Any, backend: str) -> dict[str, t.Any]:
    """The model's config, as both transformers and the message list take it."""
    if given == "auto":
        return dict(GPU_MODEL if backend == "nccl" else CPU_MODEL)
    if not isinstance(given, t.Mapping):
        raise ValueError(f"lora_workload_model is {given!r}, expected auto, a config.json's path or its content")
    if not given.get("model_type"):
        raise ValueError(
            "lora_workload_model has no model_type, such as llama: transformers needs one to make the model"
        )
    Model(given)  # says which size is missing, and which model types are known
    return dict(given)


def _trainings(settings: Settings, config: dict[str, t.Any], dtype: str) -> list[Training]:
    """One a strategy and LoRA rank, and one that trains the whole model where that is asked for."""
    modules = settings["target_modules"]
    # Ansible before 2.19 hands templated values over as text.
    loras: list[dict[str, t.Any] | None] = [None] if str(settings["full"]).lower() == "true" else []
    for rank in settings["lora_ranks"]:
        if not str(rank).isdigit() or int(rank) < 1:
            raise ValueError(f"lora_workload_lora_ranks holds {rank!r}, expected whole numbers of 1 or more")
        loras.append({"r": int(rank), **({"target_modules": modules} if modules else {})})
    made = []
    for strategy in settings["strategies"]:
        if strategy not in STRATEGIES:
            raise ValueError(f"lora_workload_strategies holds {strategy!r}, expected {' or '.join(STRATEGIES)}")
        bucket_mb = float(settings["bucket_mb"])
        options = {"bucket_cap_mb": bucket_mb} if bucket_mb and strategy == "ddp" else {}
        for lora in loras:
            made.append(
                Training(
                    name=f"{'full' if lora is None else 'LoRA ' + str(lora['r'])}, {strategy}",
                    config=config,
                    strategy=strategy,
                    lora=lora,
                    dtype=dtype,
                    options=options,
                    batch=int(settings["batch"]),
                    sequence=int(settings["sequence"]),
                    accumulation=int(settings["accumulation"]),
                    warmup=int(settings["warmup"]),
                    repeats=int(settings["repeats"]),
                )
            )
    if not made:
        raise ValueError("nothing is to be trained: lora_workload_lora_ranks is empty and lora_workload_full is false")
    return made


def _lora(training: Training) -> Lora | None:
    if training.lora is None:
        return None
    modules = training.lora.get("target_modules")
    return Lora(rank=training.lora["r"], target_modules=tuple(modules) if isinstance(modules, list) else modules)


def listed(training: Training, ranks: int, ranks_per_node: int) -> list[Message]:
    """What one step of it sends, from its config alone. ValueError says what of it cannot be trained so."""
    strategy = Strategy(
        training.strategy,
        ranks,
        ranks_per_node,
        bucket_mb=training.options.get("bucket_cap_mb"),
        accumulation=training.accumulation,
    )
    return workload.step_messages(training.config, strategy, _lora(training), training.dtype)


def described(training: Training, ranks: int, ranks_per_node: int) -> dict[str, t.Any]:
    """{name, strategy, lora_rank: None for the whole model, listed: [{collective, size, ranks, within_node, count}]}."""
    return {
        "name": training.name,
        "strategy": training.strategy,
        "lora_rank": training.lora["r"] if training.lora else None,
        "listed": workload.tally(listed(training, ranks, ranks_per_node)),
    }


def sizes_to_time(messages: t.Sequence[Message], reference: int = 0) -> dict[str, list[int]]:
    """{collective: sizes in bytes} to be timed alone: all of them, or of many the smallest, the largest, and those that make up
    most of the bytes; and one of *reference* bytes, where none is larger.
    """
    weights: dict[str, collections.Counter[int]] = {}
    for message in messages:
        weights.setdefault(message.collective, collections.Counter())[message.size] += message.size
    chosen = {}
    for collective, by_size in weights.items():
        ends = {min(by_size), max(by_size)}
        heavy = [size for size, _weight in by_size.most_common() if size not in ends]
        chosen[collective] = sorted(
            ends | set(heavy[: MOST_SIZES - len(ends)]) | ({reference} if reference > max(ends) else set())
        )
    return chosen


def _memory_mb(nodes: t.Sequence[NodeMeans], backend: str, ranks_per_node: int) -> int:
    """What one rank may take, in MiB, on the node that has least."""
    if backend == "nccl":
        return int(GPU_SHARE * min(memory for node in nodes for memory in node.means["gpus"]))
    names = collections.Counter(node.machine for node in nodes)
    return min(int(NODE_SHARE * node.means["memory_mb"] / ranks_per_node / names[node.machine]) for node in nodes)


def _hold_against(training: Training, memory_mb: int, ranks: int) -> None:
    """ValueError where the weights, gradients and moments alone do not fit."""
    made = parameters(Model(training.config), _lora(training), training.dtype)
    needed = sum(one.size * (1 + TRAINED_COPIES * one.trainable) for one in made)
    if training.strategy == "fsdp2":
        needed //= ranks
    if needed // MIB + LIBRARIES_MB > memory_mb:
        raise ValueError(
            f"{training.name}: a rank needs at least {needed // MIB + LIBRARIES_MB} MiB, and may take {memory_mb} MiB: "
            "name a smaller lora_workload_model, or fsdp2, which spreads it"
        )
