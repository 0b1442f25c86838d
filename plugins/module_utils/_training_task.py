# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the ranks of a training are asked to do, as it is handed to them, and the lines in which they answer. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import json
import typing as t

#: a rank's answers are lines that begin so; everything else on its standard output is noise
MARK = "TRAINING "
STRATEGIES = ("ddp", "fsdp2")
BACKENDS = ("nccl", "gloo")


@dataclasses.dataclass(frozen=True)
class Training:
    """One synthetic training: a model with random weights, fed with random tokens.

    config: a Hugging Face config as a mapping, with model_type. lora: peft's arguments, None trains the whole model.
    dtype: of the model. batch: sequences a rank and micro-batch; sequence: tokens in one. accumulation: micro-batches a
    step. options: the strategy's own arguments (bucket_cap_mb, find_unused_parameters; reshard, precision, replicas).
    warmup: steps before the measured ones; repeats: steps that are timed, and as many that are profiled.
    """

    name: str
    config: t.Mapping[str, t.Any]
    strategy: str = "ddp"
    lora: t.Mapping[str, t.Any] | None = None
    dtype: str = "float32"
    batch: int = 1
    sequence: int = 128
    accumulation: int = 1
    clip: bool = False
    options: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    warmup: int = 4
    repeats: int = 5


@dataclasses.dataclass(frozen=True)
class Task:
    """All that the ranks of one launch do. backend: nccl or gloo.

    prices: {collective: sizes in bytes} to be timed alone, with the library and the settings of the trainings; for each
    size iterations are timed at once. memory_mb: what a rank may take of its GPU's memory, or of the node's without one; 0
    for no bound. threads: of a rank's CPU work, 0 for PyTorch's choice. timeout_s: after which a collective gives up.
    """

    backend: str
    trainings: tuple[Training, ...] = ()
    prices: t.Mapping[str, t.Sequence[int]] = dataclasses.field(default_factory=dict)
    iterations: int = 10
    memory_mb: int = 0
    threads: int = 0
    timeout_s: float = 120.0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_dict(cls, given: t.Mapping[str, t.Any]) -> Task:
        """ValueError says in one sentence what of it cannot be."""
        try:
            task = cls(**{**given, "trainings": tuple(Training(**training) for training in given.get("trainings", ()))})
        except TypeError as error:
            raise ValueError(f"the training's task is not understood: {error}") from None
        if task.backend not in BACKENDS:
            raise ValueError(f"the training's backend is {task.backend!r}, expected one of {', '.join(BACKENDS)}")
        for training in task.trainings:
            if training.strategy not in STRATEGIES:
                raise ValueError(
                    f"the strategy of {training.name} is {training.strategy!r}, expected one of {', '.join(STRATEGIES)}"
                )
        return task

    @classmethod
    def from_json(cls, text: str) -> Task:
        return cls.from_dict(json.loads(text))


def answer_line(answer: t.Mapping[str, t.Any]) -> str:
    return MARK + json.dumps(answer) + "\n"


def answers(stdout: str) -> list[dict[str, t.Any]]:
    """What the ranks said so far: {rank, node, ...} with one of ``versions``, ``training``, ``price`` and ``problem``. A line
    that was cut off is left out.
    """
    found = []
    for line in stdout.splitlines():
        if line.startswith(MARK):
            try:
                found.append(json.loads(line[len(MARK) :]))
            except ValueError:
                continue
    return found
