# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What PyTorch really issues: small models trained for a few steps by processes on this machine (gloo), every
collective of the last step recorded, DDP and FSDP2 through the code that the role lora_workload runs on nodes.

A program of its own, since PyTorch cannot be imported beside Ansible, which replaces sys.intern:
issued_messages.py CASES RANKS PORT OUT, where CASES and OUT are files of JSON.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import typing as t

STEPS = 4
LIMIT_S = 900.0
COLLECTIONS = pathlib.Path(__file__).resolve().parents[2] / "collections"

#: the keys of a case that are none of the recipe's further options
OWN = ("accumulation", "clip", "wrap")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def issued_by(cases: t.Sequence[dict[str, t.Any]], ranks: int, folder: pathlib.Path) -> list[list[tuple[str, int]]]:
    """What rank 0 of `ranks` issued in the last step of each case.

    A case: {config, dtype, lora: peft's arguments or None, strategy, options}, see _train. All run one after the
    other in the same processes, which are ended after LIMIT_S.
    """
    given, out = folder / f"cases-{ranks}.json", folder / f"issued-{ranks}.json"
    given.write_text(json.dumps(cases))
    command = [sys.executable, __file__, str(given), str(ranks), str(free_port()), str(out)]
    environment = {**os.environ, "PYTHONPATH": f"{COLLECTIONS}:{os.environ.get('PYTHONPATH', '')}"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            said, _nothing = process.communicate(timeout=LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise RuntimeError(f"the processes that train ended with {process.returncode}: {said[-2000:]}")
    return [[(name, size) for name, size in issued] for issued in json.loads(out.read_text())]


def _work(rank: int, ranks: int, port: int, cases: list[dict[str, t.Any]], out: str) -> None:
    import torch
    import torch.distributed as dist

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


def _train(case: t.Mapping[str, t.Any], ranks: int) -> list[tuple[str, int]]:
    """strategy: ddp, fsdp2, fsdp or zero1 to 3, with its own arguments as options; beside them accumulation, clip,
    replicas, wrap and precision.
    """
    import torch
    from ansible_collections.gpufabric.cluster.plugins.module_utils import _training_model
    from ansible_collections.gpufabric.cluster.plugins.module_utils._issued_collectives import Recorder
    from ansible_collections.gpufabric.cluster.plugins.module_utils._training_task import Training

    options = {name: value for name, value in case["options"].items() if name not in OWN}
    kept = {name: case["options"][name] for name in ("accumulation", "clip") if name in case["options"]}
    training = Training(
        "case",
        case["config"],
        case["strategy"],
        case["lora"],
        case["dtype"],
        batch=2,
        sequence=8,
        options=options,
        **kept,
    )
    model = _training_model.build(training, "cpu")
    if training.strategy.startswith("zero"):
        return _train_deepspeed(model, training)
    own = training.strategy == "fsdp"
    model = _fsdp1(model, case["options"]) if own else _training_model.spread(model, training, ranks, "cpu")
    optimizer = torch.optim.SGD(_training_model.trained(model), lr=0.01)
    for _step in range(STEPS):
        with Recorder() as recorder:
            _training_model.step(model, optimizer, training, torch.randint(1, 60, (2, 8)))
    return recorder.issued


def _fsdp1(model: t.Any, options: t.Mapping[str, t.Any]) -> t.Any:
    import torch
    from ansible_collections.gpufabric.cluster.plugins.module_utils import _training_model
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    kind = type(_training_model.layers(model)[0])
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


def _train_deepspeed(model: t.Any, training: t.Any) -> list[tuple[str, int]]:
    import deepspeed
    import torch
    from ansible_collections.gpufabric.cluster.plugins.module_utils import _training_model
    from ansible_collections.gpufabric.cluster.plugins.module_utils._issued_collectives import Recorder

    settings = {
        "train_micro_batch_size_per_gpu": training.batch,
        "gradient_accumulation_steps": training.accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "zero_optimization": {"stage": int(training.strategy[-1]), **training.options},
        "bf16": {"enabled": training.dtype == "bfloat16"},
        "zero_force_ds_cpu_optimizer": False,
    }
    engine, *_rest = deepspeed.initialize(
        model=model,
        model_parameters=_training_model.trained(model),
        config=settings,
        dist_init_required=False,
    )
    for _step in range(STEPS):
        with Recorder() as recorder:
            for _micro in range(training.accumulation):
                tokens = torch.randint(1, 60, (training.batch, training.sequence))
                engine.backward(engine(input_ids=tokens, labels=tokens).loss)
                engine.step()
    return recorder.issued


def main(arguments: t.Sequence[str]) -> None:
    import torch.multiprocessing as mp

    cases, ranks, port, out = arguments
    mp.spawn(_work, args=(int(ranks), int(port), json.loads(pathlib.Path(cases).read_text()), out), nprocs=int(ranks))


if __name__ == "__main__":
    main(sys.argv[1:])
