# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Makes a model with random weights from its config, with or without LoRA, and spreads it over the ranks. PRIVATE to the collection.

Only a node that trains has torch, transformers and peft, so they are imported by what uses them.
"""

from __future__ import annotations

import contextlib
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._training_task import Training

#: the last part of the name of the list that holds a model's layers
LAYER_LISTS = ("layers", ".h")


def build(training: Training, device: str) -> t.Any:
    """The model on *device*. The same weights on every rank."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**training.config)
    config.use_cache = False
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, training.dtype))
        if training.lora is not None:
            import peft

            model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **training.lora))
    return model.to(device)


def layers(model: t.Any) -> list[t.Any]:
    """The model's decoder layers. ValueError where they cannot be told."""
    import torch

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and name.endswith(LAYER_LISTS):
            return list(module)
    raise ValueError(f"{type(model).__name__} has no list of layers that FSDP could take one by one")


def spread(model: t.Any, training: Training, ranks: int, device: str) -> t.Any:
    """The model as the strategy trains it."""
    import torch

    options = dict(training.options)
    if training.strategy == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model, **options)
    return fully_sharded(model, options, ranks, device)


def fully_sharded(model: t.Any, options: t.Mapping[str, t.Any], ranks: int, device: str) -> t.Any:
    """FSDP2, a unit a layer. options: precision [of parameters, of reductions], replicas, reshard."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    given: dict[str, t.Any] = {}
    if "precision" in options:
        param, reduce = (getattr(torch, name) for name in options["precision"])
        given["mp_policy"] = MixedPrecisionPolicy(param_dtype=param, reduce_dtype=reduce)
    if "replicas" in options:
        shape = (options["replicas"], ranks // options["replicas"])
        given["mesh"] = init_device_mesh(device.partition(":")[0], shape, mesh_dim_names=("copy", "shard"))
    if options.get("reshard") is False:
        given["reshard_after_forward"] = False
    for layer in layers(model):
        fully_shard(layer, **given)
    return fully_shard(model, **given)


def trained(model: t.Any) -> list[t.Any]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def step(model: t.Any, optimizer: t.Any, training: Training, tokens: t.Any) -> None:
    """One step: every micro-batch forward and backward, then the update. DDP reduces with the last micro-batch only."""
    import torch

    for micro in range(training.accumulation):
        quiet = training.strategy == "ddp" and micro < training.accumulation - 1
        with model.no_sync() if quiet else contextlib.nullcontext():
            model(input_ids=tokens, labels=tokens).loss.backward()
    if training.clip:
        torch.nn.utils.clip_grad_norm_(trained(model), 1.0)
    optimizer.step()
    optimizer.zero_grad()
