# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What one training step sends: every collective with its bytes, from a model's parameters and the strategy. Pure.

Sizes are nccl-tests' column ``size``: the whole buffer (an all_gather's output, a reduce_scatter's input). Sources:
torch 2.13 (nn/parallel/distributed.py, csrc/distributed/c10d/reducer.cpp, distributed/fsdp) and DeepSpeed 0.19
(runtime/zero), which the tests compare with message by message.
"""

from __future__ import annotations

import collections
import math
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.model_parameters import (
    ITEM_BYTES,
    ROOT,
    Lora,
    Model,
    Parameter,
    parameters,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload_state import Message, Strategy, world
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload_zero import zero_messages

MIB = 1 << 20
DDP_BUCKET_MIB = 25.0
DDP_FIRST_BUCKET = MIB
FLAT_ALIGNMENT = 16


def step_messages(
    config: t.Mapping[str, t.Any], strategy: Strategy, lora: Lora | None = None, dtype: str | None = None
) -> list[Message]:
    """Every message of one step in its steady state (DDP: from the third step on), in about the order in which they
    are issued.

    config, lora, dtype: as model_parameters takes them. A single rank sends nothing. Raises ValueError, one sentence,
    for what cannot be trained so.
    """
    model = Model(config)
    return messages_of(parameters(model, lora, dtype), strategy, model.buffers())


def messages_of(made: t.Sequence[Parameter], strategy: Strategy, buffers: t.Sequence[int] = ()) -> list[Message]:
    """step_messages() for parameters that are known already, in forward order (buffers: bytes of each, float32)."""
    if not any(parameter.trainable for parameter in made):
        raise ValueError("workload: no parameter is trainable, so there is nothing to train")
    if strategy.ranks == 1:
        return []
    if strategy.kind == "ddp":
        return _ddp(made, strategy, buffers)
    issue = {"fsdp": _fsdp1, "fsdp2": _fsdp2}.get(strategy.kind, zero_messages)
    return issue(made, strategy)


def tally(messages: t.Iterable[Message]) -> list[dict[str, t.Any]]:
    """The list with counts: [{collective, size, ranks, within_node, count}], most bytes first."""
    counted = collections.Counter((m.collective, m.size, m.ranks, m.within_node) for m in messages)
    entries = [
        {"collective": collective, "size": size, "ranks": ranks, "within_node": within, "count": count}
        for (collective, size, ranks, within), count in counted.items()
    ]
    return sorted(entries, key=lambda entry: (-entry["size"] * entry["count"], entry["collective"], entry["size"]))


def _ddp(made: t.Sequence[Parameter], strategy: Strategy, buffers: t.Sequence[int]) -> list[Message]:
    """A broadcast of the buffers, and an all_reduce a bucket; only the last micro-batch of a step reduces."""
    trained = [parameter for parameter in made if parameter.trainable]
    given = strategy.bucket_mb
    limits = [DDP_FIRST_BUCKET, int(DDP_BUCKET_MIB * MIB)] if given is None else [int(given * MIB)]
    registered = sorted(trained, key=lambda one: one.registered)
    buckets = _buckets(registered, limits)[::-1] if strategy.find_unused else _buckets(trained[::-1], limits)
    sent = [world(strategy, "broadcast", sum(buffers), "forward")] if buffers and strategy.broadcast_buffers else []
    for bucket in buckets:
        size = sum(parameter.size for parameter in bucket)
        if strategy.compress:
            size = sum(parameter.count for parameter in bucket) * ITEM_BYTES[strategy.compress]
        sent.append(world(strategy, "all_reduce", size, "backward"))
    if strategy.find_unused:
        sent.append(world(strategy, "all_reduce", 4 * len(trained), "backward"))
    return sent


def _buckets(trained: t.Sequence[Parameter], limits: t.Sequence[int]) -> list[list[Parameter]]:
    """Fill buckets in this order, a dtype each; one is closed as soon as it holds its limit: the first limit once a
    dtype, then the last for good.
    """
    done: list[list[Parameter]] = []
    filling: dict[str, list[Parameter]] = {}
    closed: collections.Counter[str] = collections.Counter()
    for parameter in trained:
        bucket = filling.setdefault(parameter.dtype, [])
        bucket.append(parameter)
        if sum(one.size for one in bucket) >= limits[min(closed[parameter.dtype], len(limits) - 1)]:
            done.append(filling.pop(parameter.dtype))
            closed[parameter.dtype] += 1
    return done + list(filling.values())


class _Unit(t.NamedTuple):
    """What FSDP gathers at once. backward: whether the backward pass needs its weights again."""

    layer: int
    members: list[Parameter]
    backward: bool


def _units(made: t.Sequence[Parameter], strategy: Strategy) -> list[_Unit]:
    """A unit a layer, and one of all the rest; in wrap ``adapter`` one a trainable adapter matrix too.

    Layers before the first one with something to train pass no gradient on, so their weights are not needed again; but
    the last of these is fetched ahead all the same.
    """
    first = min((p.layer for p in made if p.trainable), default=0)
    groups: dict[tuple[int, str], list[Parameter]] = {(ROOT, ""): []}
    for parameter in made:
        own = parameter.module if strategy.wrap == "adapter" and parameter.adapter and strategy.kind == "fsdp" else ""
        groups.setdefault((parameter.layer, own), []).append(parameter)
    early = any(p.trainable and p.layer == ROOT for p in made[: _first_layer(made)])
    return [
        _Unit(layer, members, layer != ROOT and (strategy.inputs_require_grad or early or layer >= first - 1))
        for (layer, _own), members in groups.items()
        if members
    ]


def _first_layer(made: t.Sequence[Parameter]) -> int:
    return next((k for k, parameter in enumerate(made) if parameter.layer != ROOT), len(made))


def _shard(strategy: Strategy, collective: str, size: int, phase: str) -> Message:
    ranks = strategy.ranks // strategy.replicas
    return Message(collective, size, ranks, ranks <= strategy.ranks_per_node, phase)


def _replicate(strategy: Strategy, size: int) -> Message:
    """The all_reduce between copies of one shard: their ranks are a shard's width apart."""
    width = strategy.ranks // strategy.replicas
    within = width * (strategy.replicas - 1) < strategy.ranks_per_node
    return Message("all_reduce", size, strategy.replicas, within, "backward")


def _sharded(
    units: t.Sequence[_Unit],
    strategy: Strategy,
    gathered: t.Callable[[_Unit], int],
    reduced: t.Callable[[_Unit], int],
) -> list[Message]:
    """What FSDP sends: every unit gathered for the forward pass, again for the backward pass but for the root, and
    its gradients scattered.
    """
    shards = strategy.ranks // strategy.replicas
    sent: list[Message] = []
    for _micro in range(strategy.accumulation):
        if shards > 1:
            sent += [_shard(strategy, "all_gather", gathered(unit), "forward") for unit in units]
        for unit in units[::-1]:
            if shards > 1 and strategy.reshard_after_forward and unit.backward:
                sent.append(_shard(strategy, "all_gather", gathered(unit), "backward"))
            size = reduced(unit)
            if not size:
                continue
            if shards > 1:
                sent.append(_shard(strategy, "reduce_scatter", size, "backward"))
            if strategy.replicas > 1:
                sent.append(_replicate(strategy, size // shards))
    return sent


def _item(parameter: Parameter, dtype: str | None) -> int:
    return ITEM_BYTES[dtype or parameter.dtype]


def _fsdp2(made: t.Sequence[Parameter], strategy: Strategy) -> list[Message]:
    """fully_shard: each parameter is cut along its first dimension, which is padded to a multiple of the ranks."""
    shards = strategy.ranks // strategy.replicas

    def padded(parameter: Parameter) -> int:
        return math.ceil(parameter.shape[0] / shards) * shards * math.prod(parameter.shape[1:])

    def gathered(unit: _Unit) -> int:
        return sum(padded(parameter) * _item(parameter, strategy.param_dtype) for parameter in unit.members)

    def reduced(unit: _Unit) -> int:
        dtype = strategy.reduce_dtype or strategy.param_dtype
        return sum(padded(p) * _item(p, dtype) for p in unit.members if p.trainable)

    units = _units(made, strategy)
    for unit in units:
        _one_dtype([p for p in unit.members if p.trainable], "FSDP2 wants the trainable parameters of a layer")
    sent = _sharded(units, strategy, gathered, reduced)
    norms = sum(_item(parameter, None) for parameter in made if parameter.trainable)
    return sent + ([_shard(strategy, "all_reduce", norms, "step")] if strategy.clip else [])


def _one_dtype(members: t.Sequence[Parameter], who: str) -> None:
    dtypes = sorted({parameter.dtype for parameter in members})
    if len(dtypes) > 1:
        raise ValueError(f"workload: {who} in one dtype, these have {' and '.join(dtypes)}")


def _fsdp1(made: t.Sequence[Parameter], strategy: Strategy) -> list[Message]:
    """FullyShardedDataParallel with use_orig_params: a unit is one flat buffer, frozen parts and all, and its
    gradient as long as that.
    """
    shards = strategy.ranks // strategy.replicas
    units = _units(made, strategy)
    for unit in units:
        _one_dtype(unit.members, "FSDP wants all parameters of a unit (wrap: adapter makes adapters their own)")

    def flat(unit: _Unit) -> int:
        total = 0
        aligned = FLAT_ALIGNMENT // _item(unit.members[0], strategy.param_dtype)
        for parameter in unit.members:
            total = math.ceil(total / aligned) * aligned + parameter.count
        return math.ceil(total / shards) * shards

    def gathered(unit: _Unit) -> int:
        return flat(unit) * _item(unit.members[0], strategy.param_dtype)

    def reduced(unit: _Unit) -> int:
        dtype = strategy.reduce_dtype or strategy.param_dtype
        return flat(unit) * _item(unit.members[0], dtype) if any(p.trainable for p in unit.members) else 0

    return _sharded(units, strategy, gathered, reduced)
