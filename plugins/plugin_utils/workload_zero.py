# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What DeepSpeed's ZeRO sends in one step. Pure.

Source: DeepSpeed 0.19, runtime/zero/stage_1_and_2.py, stage3.py, partitioned_param_coordinator.py and
partition_parameters.py, with its defaults; one optimizer parameter group, no offload, the model in one dtype.
"""

from __future__ import annotations

import math
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.model_parameters import ITEM_BYTES, ROOT, Parameter
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload_state import Message, Strategy, world

ALIGNMENT = 2
"""nccl_start_alignment_factor: a flat group is padded to this many elements a rank."""

PREFETCH = 50_000_000
REUSE = 1_000_000_000
LIVE = 1_000_000_000
"""stage3_prefetch_bucket_size, stage3_max_reuse_distance and stage3_max_live_parameters, in elements."""

NORM = {"zero1": 4, "zero2": 4, "zero3": 8}
"""Bytes of the gradient norm."""

OVERFLOW = 1
"""Bytes that say whether a half-precision gradient overflowed, in stages 1 and 2."""


def zero_messages(made: t.Sequence[Parameter], strategy: Strategy) -> list[Message]:
    """Stages 1 to 3, from the parameters in forward order. DeepSpeed holds adapters in the model's dtype."""
    trained = [parameter for parameter in made if parameter.trainable][::-1]
    item = ITEM_BYTES[strategy.param_dtype or next(p.dtype for p in made if not p.adapter)]
    if strategy.kind == "zero3":
        return _stage3(made, trained, strategy, item)
    reductions = [
        world(strategy, "all_reduce", sum(p.count for p in bucket) * item, "backward")
        for bucket in _buckets(trained, strategy.zero_bucket)
    ]
    times = strategy.accumulation if strategy.kind == "zero2" else 1
    flat = _up(sum(parameter.count for parameter in trained), ALIGNMENT * strategy.ranks)
    return [
        *reductions * times,
        *_checks(strategy, item),
        world(strategy, "all_gather", flat * item, "step"),
    ]


def _checks(strategy: Strategy, item: int) -> list[Message]:
    """The small messages between the gradients and the update."""
    overflow = [OVERFLOW] if item < ITEM_BYTES["float32"] and strategy.kind != "zero3" else []
    return [world(strategy, "all_reduce", size, "step") for size in [*overflow, NORM[strategy.kind]]]


def _up(count: int, unit: int) -> int:
    return math.ceil(count / unit) * unit


def _buckets(trained: t.Sequence[Parameter], limit: int) -> list[list[Parameter]]:
    """A bucket is sent before the parameter that would make it longer than `limit` elements."""
    buckets: list[list[Parameter]] = []
    filled = limit + 1
    for parameter in trained:
        if filled + parameter.count > limit:
            buckets.append([])
            filled = 0
        buckets[-1].append(parameter)
        filled += parameter.count
    return buckets


def _stage3(
    made: t.Sequence[Parameter], trained: t.Sequence[Parameter], strategy: Strategy, item: int
) -> list[Message]:
    def padded(members: t.Iterable[Parameter]) -> int:
        return sum(_up(parameter.count, strategy.ranks) for parameter in members) * item

    gathers = [
        world(strategy, "all_gather", padded(members), phase) for phase, members in _gathers(made, strategy.persistence)
    ]
    scatters = [
        world(strategy, "reduce_scatter", padded(bucket), "backward")
        for bucket in _buckets(trained, strategy.zero_bucket)
    ]
    kept = [parameter for parameter in made if parameter.count <= strategy.persistence]
    sent = (gathers + scatters) * strategy.accumulation + _checks(strategy, item)
    return sent + [world(strategy, "all_gather", padded([parameter]), "step") for parameter in kept]


def _gathers(made: t.Sequence[Parameter], persistence: int) -> list[tuple[str, list[Parameter]]]:
    """What is gathered at once, in the order of the modules' uses: what a module lacks, then what follows up to
    PREFETCH elements.

    A parameter is given up after its use unless it is used again within REUSE elements.
    """
    uses = _uses(made, persistence)
    gathered: list[tuple[str, list[Parameter]]] = []
    present: set[str] = set()
    live = ahead = 0
    for step, (phase, members) in enumerate(uses):
        lacking = [parameter for parameter in members if parameter.name not in present]
        ahead = max(ahead, step + 1)
        fetches = [lacking] if lacking else []
        present.update(parameter.name for parameter in lacking)
        live += sum(parameter.count for parameter in lacking)
        coming: list[Parameter] = []
        while ahead < len(uses) and sum(p.count for p in coming) < min(LIVE - live, PREFETCH):
            coming += [p for p in uses[ahead][1] if p.name not in present and p not in coming]
            ahead += 1
        if coming:
            fetches.append(coming)
            present.update(parameter.name for parameter in coming)
            live += sum(parameter.count for parameter in coming)
        gathered += [(phase, fetch) for fetch in fetches]
        soon = _names_within(uses[step + 1 :], REUSE)
        for parameter in members:
            if parameter.name not in soon:
                present.discard(parameter.name)
                live -= parameter.count
    return gathered


def _uses(made: t.Sequence[Parameter], persistence: int) -> list[tuple[str, list[Parameter]]]:
    """(phase, parameters that are not kept) of each module in the order of its use: forward, then backward from the
    last one down to the first layer that has something to train.
    """
    modules: dict[str, list[Parameter]] = {}
    for parameter in made:
        if parameter.count > persistence:
            modules.setdefault(parameter.name.rpartition(".")[0], []).append(parameter)
    forward = list(modules.values())
    first = min((parameter.layer for parameter in made if parameter.trainable), default=ROOT)
    seen = next((k for k, members in enumerate(forward) if members[0].layer >= first), 0)
    whole: list[Parameter] = []  # the model itself, which has no parameters of its own and comes first
    return [("forward", members) for members in [whole, *forward]] + [
        ("backward", members) for members in forward[seen:][::-1]
    ]


def _names_within(uses: t.Sequence[tuple[str, list[Parameter]]], distance: int) -> set[str]:
    names: set[str] = set()
    passed = 0
    for _phase, members in uses:
        if passed >= distance:
            break
        names.update(parameter.name for parameter in members)
        passed += sum(parameter.count for parameter in members)
    return names
