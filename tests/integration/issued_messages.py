# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What PyTorch really issues: small models trained for a few steps by processes on this machine (gloo), every
collective of the last step recorded.

Collectives reach the dispatcher whoever calls them (DDP's reducer in C++, FSDP in Python), so a dispatch mode sees
them all.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import socket
import time
import typing as t

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

STEPS = 4
LIMIT_S = 900.0

#: operators of the namespaces c10d and _c10d_functional, by nccl-tests' name of the collective
COLLECTIVES = {
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "broadcast_": "broadcast",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_": "reduce",
}


class Recorder(TorchDispatchMode):
    """Collects [collective, bytes of its whole buffer] of every collective that is issued while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.issued: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: t.Any, types: t.Any, args: t.Any = (), kwargs: t.Any = None) -> t.Any:
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # let it unfold into plain tensors, whose collectives come here again
        if func.namespace in ("c10d", "_c10d_functional"):
            name = func._schema.name.partition("::")[2]
            if name not in ("wait_tensor", "barrier", "_wrap_tensor_autograd"):
                self.issued.append((COLLECTIVES.get(name, name), max((_bytes(one) for one in args), default=0)))
        return func(*args, **(kwargs or {}))


def _bytes(given: t.Any) -> int:
    if isinstance(given, torch.Tensor):
        return given.numel() * given.element_size()
    return sum(map(_bytes, given)) if isinstance(given, (list, tuple)) else 0


def issued_by(cases: t.Sequence[dict[str, t.Any]], ranks: int, folder: pathlib.Path) -> list[list[tuple[str, int]]]:
    """What rank 0 of `ranks` issued in the last step of each case.

    A case: {config, dtype, lora: peft's arguments or None, strategy, options}, see _train. All run one after the
    other in the same processes, which are ended after LIMIT_S.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    out = folder / f"issued-{ranks}.json"
    context = mp.spawn(_work, args=(ranks, port, list(cases), str(out)), nprocs=ranks, join=False)
    end = time.monotonic() + LIMIT_S
    try:
        while not context.join(timeout=1.0):
            if time.monotonic() > end:
                raise TimeoutError(f"{len(cases)} cases on {ranks} ranks took more than {LIMIT_S:.0f} s")
    finally:
        for process in context.processes:
            process.kill()
    return [[(name, size) for name, size in issued] for issued in json.loads(out.read_text())]


def _work(rank: int, ranks: int, port: int, cases: list[dict[str, t.Any]], out: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    os.environ.update(
        LOCAL_RANK=str(rank), GLOO_SOCKET_IFNAME="lo", DS_ACCELERATOR="cpu", TOKENIZERS_PARALLELISM="false"
    )
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    issued = [_attempt(case, ranks) for case in cases]
    if rank == 0:
        pathlib.Path(out).write_text(json.dumps(issued))
    dist.destroy_process_group()


def _attempt(case: t.Mapping[str, t.Any], ranks: int) -> list[tuple[str, int]]:
    """What one case issued; one that cannot be trained, on every rank alike, says why in the place of a collective."""
    try:
        return _train(case, ranks)
    except Exception as error:
        return [(f"failed: {error!r}", 0)]


def _model(case: t.Mapping[str, t.Any]) -> torch.nn.Module:
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**case["config"])
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, case["dtype"]))
    if case["lora"] is not None:
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **case["lora"]))
    return t.cast("torch.nn.Module", model)


def _layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    return next(
        list(m) for n, m in model.named_modules() if isinstance(m, torch.nn.ModuleList) and n.endswith(("layers", ".h"))
    )


def _train(case: t.Mapping[str, t.Any], ranks: int) -> list[tuple[str, int]]:
    """strategy: ddp, fsdp2, fsdp or zero1 to 3, with its own arguments as options; beside them accumulation, clip,
    replicas, wrap and precision.
    """
    options = dict(case["options"])
    accumulation, clip = options.pop("accumulation", 1), options.pop("clip", False)
    model = _model(case)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine = None
    if case["strategy"].startswith("zero"):
        model = engine = _deepspeed(model, trained, case, options, accumulation)
    else:
        model = {"ddp": _ddp, "fsdp2": _fsdp2, "fsdp": _fsdp1}[case["strategy"]](model, options, ranks)
    optimizer = None if engine else torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _step in range(STEPS):
        with Recorder() as recorder:
            for micro in range(accumulation):
                tokens = torch.randint(1, 60, (2, 8))
                quiet = case["strategy"] == "ddp" and micro < accumulation - 1
                with model.no_sync() if quiet else contextlib.nullcontext():  # type: ignore[operator]
                    loss = model(input_ids=tokens, labels=tokens).loss
                    if engine is not None:
                        engine.backward(loss)
                        engine.step()
                    else:
                        loss.backward()
            if optimizer is not None:
                if clip:
                    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
                optimizer.step()
                optimizer.zero_grad()
    return recorder.issued


def _ddp(model: torch.nn.Module, options: dict[str, t.Any], _ranks: int) -> torch.nn.Module:
    return torch.nn.parallel.DistributedDataParallel(model, **options)


def _fsdp2(model: torch.nn.Module, options: dict[str, t.Any], ranks: int) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    given: dict[str, t.Any] = {}
    if "precision" in options:
        param, reduce = (getattr(torch, name) for name in options["precision"])
        given["mp_policy"] = MixedPrecisionPolicy(param_dtype=param, reduce_dtype=reduce)
    if "replicas" in options:
        shape = (options["replicas"], ranks // options["replicas"])
        given["mesh"] = init_device_mesh("cpu", shape, mesh_dim_names=("copy", "shard"))
    if options.get("reshard") is False:
        given["reshard_after_forward"] = False
    for layer in _layers(model):
        fully_shard(layer, **given)
    return t.cast("torch.nn.Module", fully_shard(model, **given))


def _fsdp1(model: torch.nn.Module, options: dict[str, t.Any], _ranks: int) -> torch.nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    kind = type(_layers(model)[0])
    if options.get("wrap") == "adapter":
        from peft.utils.other import fsdp_auto_wrap_policy

        os.environ["FSDP_TRANSFORMER_CLS_TO_WRAP"] = kind.__name__
        policy = fsdp_auto_wrap_policy(model)
    else:
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={kind})
    sharding = "SHARD_GRAD_OP" if options.get("reshard") is False else "FULL_SHARD"
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=policy,
        device_id=torch.device("cpu"),
        use_orig_params=True,
        sharding_strategy=ShardingStrategy[sharding],
    )


def _deepspeed(
    model: torch.nn.Module,
    trained: list[torch.nn.Parameter],
    case: t.Mapping[str, t.Any],
    options: dict[str, t.Any],
    accumulation: int,
) -> t.Any:
    import deepspeed

    settings = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "zero_optimization": {"stage": int(case["strategy"][-1]), **options},
        "bf16": {"enabled": case["dtype"] == "bfloat16"},
        "zero_force_ds_cpu_optimizer": False,
    }
    engine, *_rest = deepspeed.initialize(
        model=model, model_parameters=trained, config=settings, dist_init_required=False
    )
    return engine
