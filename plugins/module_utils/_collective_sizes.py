# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which sizes a run of nccl-tests steps through, and what its bandwidths mean. PRIVATE to the collection.

Source: src/common.cu and the *.cu files of nccl-tests (getCollByteCount, getBw), doc/PERFORMANCE.md there.
"""

from __future__ import annotations

import re
import typing as t

#: nccl-tests' name of a collective: what makes busbw of algbw with n ranks
FACTORS: dict[str, t.Callable[[int], float]] = {
    "all_reduce": lambda n: 2.0 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "sendrecv": lambda n: 1.0,
}
#: all collectives that nccl-tests has a program for
COLLECTIVES = (*FACTORS, "alltoallv", "hypercube")
#: those whose buffer is divided into one part a rank, each part rounded down to 16 bytes
DIVIDED = frozenset({"all_gather", "reduce_scatter", "alltoall", "gather", "scatter"})
REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce"})
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG]?)B?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes of a size as nccl-tests reads it: 8, 1K, 0.5M, 8G (binary). ValueError says what was found."""
    match = _SIZE.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"a size is a number with K, M or G behind it, such as 8M, not {str(text)!r}")
    return int(float(match.group(1)) * _UNITS[match.group(2).upper()])


def size_text(size: int) -> str:
    """A size as people say it, such as 256 MiB: in the largest unit of which it is a whole number."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    unit = 0
    while size and size % 1024 == 0 and unit < len(units) - 1:
        size, unit = size // 1024, unit + 1
    return f"{size} {units[unit]}"


def steps(minimum: int, maximum: int, factor: float = 2.0, step_bytes: int = 0) -> list[int]:
    """The sizes from *minimum* to *maximum*: times *factor*, or plus *step_bytes* where that is given."""
    sizes = []
    size = minimum
    while size <= maximum:
        sizes.append(size)
        following = size + step_bytes if step_bytes else int(size * factor)
        if following <= size:
            break
        size = following
    return sizes


def counts(collective: str, size: int, ranks: int, width: int) -> tuple[int, int]:
    """(elements a rank, bytes that the row shows) for a buffer of *size* bytes of elements *width* bytes wide."""
    elements = size // width
    if collective not in DIVIDED:
        return elements, elements * width
    part = elements // ranks
    part -= part % max(16 // width, 1)
    return part, part * ranks * width


def bandwidths(collective: str, size: int, seconds: float, ranks: int) -> tuple[float, float]:
    """(algbw, busbw) in GB/s (1e9 bytes/s)."""
    algbw = size / seconds / 1e9 if seconds > 0 else 0.0
    return algbw, algbw * FACTORS[collective](ranks)
