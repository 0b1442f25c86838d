# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Typed options of one run of nccl-tests, and the arguments that this version of it knows. PRIVATE to the collection.

nccl-tests ends with exit status 0 on an option that it does not know, and measures nothing: so an option is passed only
where the program's own usage text lists it.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import (
    COLLECTIVES,
    REDUCING,
    ROOTED,
    parse_size,
    steps,
)

DATATYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2", "all"
)  # fmt: skip
OPERATIONS = ("sum", "prod", "max", "min", "avg", "mulsum", "all")
#: an endless list of sizes is a typing mistake
MOST_SIZES = 10_000

_USAGE = re.compile(r"^\s*\[-(\w),--", re.MULTILINE)


def letters_of(usage: str) -> frozenset[str]:
    """The option letters that a usage text (`all_reduce_perf -h`) lists."""
    return frozenset(_USAGE.findall(usage))


@dataclasses.dataclass(frozen=True)
class Options:
    """One run's options. Sizes as nccl-tests writes them (8, 1K, 0.5M, 8G; binary); operation and root only where they mean something.

    per_iteration: ask for statistics of single iterations (-I); timeout_s: nccl-tests' own (-T), 0 for none.
    """

    collective: str
    min_bytes: str = "8"
    max_bytes: str = "128M"
    step_factor: float = 2.0
    step_bytes: str = ""
    datatype: str = "float"
    operation: str = "sum"
    root: int = 0
    iterations: int = 20
    warmup: int = 5
    check: bool = True
    gpus_per_rank: int = 1
    threads_per_rank: int = 1
    per_iteration: bool = False
    timeout_s: int = 0
    blocking: int = 0
    cuda_graph: int = 0

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise ValueError(f"collective: one of {', '.join(COLLECTIVES)} is expected, not {self.collective!r}")
        if self.datatype not in DATATYPES:
            raise ValueError(f"datatype: one of {', '.join(DATATYPES)} is expected, not {self.datatype!r}")
        if self.operation not in OPERATIONS:
            raise ValueError(f"operation: one of {', '.join(OPERATIONS)} is expected, not {self.operation!r}")
        sizes = {
            name: parse_size(value) for name, value in (("min_bytes", self.min_bytes), ("max_bytes", self.max_bytes))
        }
        if not 0 < sizes["min_bytes"] <= sizes["max_bytes"]:
            raise ValueError(f"min_bytes ({self.min_bytes}) must be above 0 and at most max_bytes ({self.max_bytes})")
        if not self.step_bytes and self.step_factor <= 1.0:
            raise ValueError(f"step_factor must be above 1, not {self.step_factor:g}; equal steps are step_bytes")
        if self.iterations < 1 or self.warmup < 0:
            raise ValueError(
                f"iterations must be 1 or more and warmup 0 or more, not {self.iterations} and {self.warmup}"
            )
        if len(self.sizes()) > MOST_SIZES:
            raise ValueError(f"from {self.min_bytes} to {self.max_bytes} there are more than {MOST_SIZES} sizes")

    def sizes(self) -> list[int]:
        """The sizes in bytes that the run steps through."""
        step = parse_size(self.step_bytes) if self.step_bytes else 0
        minimum, maximum = parse_size(self.min_bytes), parse_size(self.max_bytes)
        if step and (maximum - minimum) // step > MOST_SIZES:
            return [0] * (MOST_SIZES + 1)
        return steps(minimum, maximum, self.step_factor, step)

    def argv(self, letters: t.Collection[str] | None = None) -> list[str]:
        """Arguments for a program that knows *letters*; None for one that knows all of them (the MPI collectives)."""
        step = ["-i", str(parse_size(self.step_bytes))] if self.step_bytes else ["-f", f"{self.step_factor:g}"]
        argv = ["-b", self.min_bytes, "-e", self.max_bytes, *step, "-n", str(self.iterations), "-w", str(self.warmup)]
        argv += ["-c", str(int(self.check)), "-d", self.datatype]
        if self.collective in REDUCING:
            argv += ["-o", self.operation]
        if self.collective in ROOTED:
            argv += ["-r", str(self.root)]
        if letters is None:
            return argv
        argv += ["-g", str(self.gpus_per_rank)]
        wanted = {
            "t": (self.threads_per_rank, 1),
            "z": (self.blocking, 0),
            "G": (self.cuda_graph, 0),
            "T": (self.timeout_s, 0),
            "I": (int(self.per_iteration and not self.cuda_graph), 0),
        }
        for letter, (value, default) in wanted.items():
            if value != default and letter in letters:
                argv += [f"-{letter}", str(value)]
        return argv
