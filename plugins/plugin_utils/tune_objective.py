# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What autotune measures of some settings, and the one number that this gives: a larger one is better. Pure."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import parse_size
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import workload, workload_cost
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.model_parameters import Lora
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.user_path import user_path
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload_state import Message, Strategy

Run = t.Mapping[str, t.Any]

#: the size by which hopeless settings are told from others, as a share of the objective's smallest, and its least, in bytes
PROBE_SHARE, PROBE_LEAST = 1 / 16, 64 << 10

#: iterations of the look at it, as a share of the objective's
PROBE_ITERATIONS = 1 / 4


@dataclasses.dataclass(frozen=True)
class Part:
    """One launch of a trial. sizes in bytes, by *factor* from the first to the last; probe: only tells hopeless settings."""

    collective: str
    min_bytes: int
    max_bytes: int
    factor: float = 2.0
    probe: bool = False

    def as_run(self, iterations: int, warmup: int) -> dict[str, t.Any]:
        """What of a run of the module nccl_tests it says."""
        count = max(2, int(iterations * PROBE_ITERATIONS)) if self.probe else iterations
        return {
            "collective": self.collective,
            "min_bytes": str(self.min_bytes),
            "max_bytes": str(self.max_bytes),
            "step_factor": self.factor,
            "iterations": count,
            "warmup": min(warmup, count),
        }


@dataclasses.dataclass(frozen=True)
class Objective:
    """parts: cheapest first; messages: of a step of training, none where busbw itself counts."""

    parts: tuple[Part, ...]
    messages: tuple[Message, ...] = ()

    @property
    def unit(self) -> str:
        return "steps of communication a second" if self.messages else "GB/s"

    @property
    def probe(self) -> Part:
        """A short look at the smallest size, by which settings that are hopeless can be told in a fraction of the time."""
        first = self.parts[0]
        size = max(PROBE_LEAST, int(first.min_bytes * PROBE_SHARE))
        return Part(first.collective, size, size, probe=True)

    def score(self, runs: t.Sequence[Run]) -> float | None:
        """Of one whole trial, a run for each part: the geometric mean of busbw (GB/s) over all sizes, or one over the
        predicted seconds of communication in a step. None where something is missing.
        """
        if self.messages:
            priced = workload_cost.price(self.messages, workload_cost.curves_of(runs))
            return 1 / priced["seconds"] if priced["seconds"] and not priced["missing"] else None
        speeds = [speed_of(run) for run in runs]
        return None if None in speeds else statistics.geometric_mean(t.cast("list[float]", speeds))

    def say(self, score: float) -> str:
        return f"{1e3 / score:.4g} ms of communication a step" if self.messages else f"{score:.4g} GB/s"

    def as_dict(self) -> dict[str, t.Any]:
        """For the record, and for the fingerprint: studies of different objectives have nothing to say to each other."""
        return {
            "kind": "workload" if self.messages else "busbw",
            "unit": self.unit,
            "parts": [dataclasses.asdict(part) for part in self.parts],
            "messages": workload.tally(self.messages) if self.messages else [],
        }


def speed_of(run: Run) -> float | None:
    """GB/s of one run over its sizes, out of place; of a run that each node made alone, of the slowest. None if one is missing."""
    speeds = [row["out_of_place"]["busbw_gbs"] for row in run["rows"]]
    if not speeds or not all(isinstance(speed, float) and speed > 0 for speed in speeds):
        return None
    return statistics.geometric_mean(speeds)


def for_busbw(collective: str, sizes: t.Sequence[str]) -> Objective:
    """busbw of *collective* at *sizes*, such as 64M. ValueError names a size that is none."""
    if not sizes:
        raise ValueError("autotune_sizes is empty, and sizes such as [64M] are expected")
    wanted = sorted({parse_size(str(size)) for size in sizes})
    ratios = {round(larger / smaller, 6) for smaller, larger in zip(wanted, wanted[1:])}
    if len(wanted) > 1 and len(ratios) == 1 and ratios.copy().pop() >= 2:
        return Objective((Part(collective, wanted[0], wanted[-1], ratios.pop()),))
    return Objective(tuple(Part(collective, size, size) for size in wanted))


def for_workload(given: t.Mapping[str, t.Any], ranks: int, ranks_per_node: int) -> Objective:
    """Communication time of a training step. given: {config: of the model, or the path of its config.json; strategy: ddp,
    fsdp2 or fields of Strategy; lora: fields of Lora, none for full training; dtype}. ValueError says what cannot be.
    """
    unknown = set(given) - {"config", "strategy", "lora", "dtype"}
    if unknown or "config" not in given:
        raise ValueError(
            f"autotune_workload has {', '.join(sorted(map(str, given))) or 'nothing'}; expected are config, strategy, lora, dtype"
        )
    strategy = given.get("strategy") or "ddp"
    fields = {"kind": strategy} if isinstance(strategy, str) else dict(strategy)
    try:
        made = Strategy(**{**fields, "ranks": ranks, "ranks_per_node": ranks_per_node})
        adapters: dict[str, t.Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in (given.get("lora") or {}).items()
        }
        lora = Lora(**adapters) if adapters else None
        messages = workload.step_messages(_config(given["config"]), made, lora, given.get("dtype"))
    except TypeError as error:
        raise ValueError(f"autotune_workload: {error}") from error
    alien = sorted({message.ranks for message in messages} - {ranks})
    if alien:
        raise ValueError(
            f"autotune_workload: it sends among {alien[0]} of the {ranks} ranks, which no run here measures"
        )
    plan = workload_cost.size_plan(messages)
    if not plan:
        raise ValueError("autotune_workload: it sends nothing, so there is nothing to tune")
    parts = [Part(p["collective"], p["min_bytes"], p["max_bytes"], float(p["step_factor"])) for p in plan]
    measured = {part.collective for part in parts}
    kept = tuple(message for message in messages if message.collective in measured)
    return Objective(tuple(sorted(parts, key=lambda part: part.max_bytes)), kept)


def _config(given: t.Any) -> t.Mapping[str, t.Any]:
    if isinstance(given, t.Mapping):
        return given
    path = user_path(str(given))
    try:
        return t.cast("dict[str, t.Any]", json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise ValueError(f"autotune_workload.config: {path} is no config.json that can be read: {error}") from error


def is_hopeless(speed: float | None, best: float | None, share: float) -> bool:
    """Whether a part's speed is so far below the best known one that the rest of the trial is not worth its time."""
    return speed is not None and best is not None and math.isfinite(best) and speed < share * best
