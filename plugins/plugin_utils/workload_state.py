# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a workload is made of: how the training is spread, and the messages that it sends. Pure data."""

from __future__ import annotations

import dataclasses

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.model_parameters import ITEM_BYTES

STRATEGIES = ("ddp", "fsdp", "fsdp2", "zero1", "zero2", "zero3")
WRAPS = ("layer", "adapter")


@dataclasses.dataclass(frozen=True)
class Message:
    """One collective. size: bytes. ranks: how many take part. within_node: whether these share a node. phase:
    forward, backward or step.
    """

    collective: str
    size: int
    ranks: int
    within_node: bool
    phase: str


@dataclasses.dataclass(frozen=True)
class Strategy:
    """How the training is spread over `ranks` processes, `ranks_per_node` on each node.

    bucket_mb: DDP's bucket_cap_mb, None for its default (25 MiB, the first bucket 1 MiB). find_unused: DDP's
    find_unused_parameters (buckets then stay in the order of the parameters). broadcast_buffers: DDP's. compress:
    dtype that a DDP communication hook sends gradients in.
    accumulation: micro-batches a step. param_dtype, reduce_dtype: mixed precision of FSDP. reshard_after_forward:
    False keeps gathered layers until the backward pass (FSDP's SHARD_GRAD_OP). replicas: FSDP shards over ranks /
    replicas and keeps that many copies (hybrid). wrap: FSDP1's units,
    ``layer`` or peft's policy ``adapter``, in which every adapter matrix is a unit. inputs_require_grad: set by
    gradient checkpointing with adapters: the backward pass then runs through all layers. clip: whether the gradient
    norm is clipped. zero_bucket: elements in ZeRO's buckets (reduce_bucket_size and allgather_bucket_size).
    persistence: elements up to which ZeRO-3 keeps a parameter gathered.
    """

    kind: str
    ranks: int
    ranks_per_node: int = 1
    bucket_mb: float | None = None
    find_unused: bool = False
    broadcast_buffers: bool = True
    compress: str | None = None
    accumulation: int = 1
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    reshard_after_forward: bool = True
    replicas: int = 1
    wrap: str = "layer"
    inputs_require_grad: bool = False
    clip: bool = False
    zero_bucket: int = 500_000_000
    persistence: int = 100_000

    def __post_init__(self) -> None:
        _demand(self.kind in STRATEGIES, "the strategy", self.kind, f"one of {', '.join(STRATEGIES)}")
        _demand(self.wrap in WRAPS, "wrap", self.wrap, f"one of {', '.join(WRAPS)}")
        for name in ("ranks", "ranks_per_node", "accumulation", "replicas", "zero_bucket"):
            _demand(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        _demand(self.ranks % self.replicas == 0, "replicas", self.replicas, f"a divisor of {self.ranks} ranks")
        _demand(self.bucket_mb is None or self.bucket_mb > 0, "bucket_mb", self.bucket_mb, "a number above 0")
        for name in ("compress", "param_dtype", "reduce_dtype"):
            given = getattr(self, name)
            _demand(given is None or given in ITEM_BYTES, name, given, f"one of {', '.join(ITEM_BYTES)}")


def _demand(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ValueError(f"workload: {name} is {value}, expected {wanted}")


def world(strategy: Strategy, collective: str, size: int, phase: str) -> Message:
    """A message among all ranks."""
    return Message(collective, size, strategy.ranks, strategy.ranks <= strategy.ranks_per_node, phase)
