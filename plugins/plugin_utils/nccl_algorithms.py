# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NCCL_ALGO and NCCL_PROTO: what they say, and which collectives they leave without an algorithm.

Source: NCCL's enqueue.cc and tuning.cc, releases 2.18 to 2.30, and a run of 2.28.9 that died at its first AllGather.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

Version = tuple[int, ...]

#: since this release each collective may have a list of its own, unknown words stop the job, and nothing falls back to Ring
PER_FUNCTION_SINCE = (2, 24, 3)

#: since this release a NCCL_ALGO of named functions beside a plain NCCL_PROTO takes the functions away that it does not name
NAMED_ONLY_SINCE = (2, 31, 2)

FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")

#: algorithms by the release that brought them
ALGORITHMS = {
    "tree": (2, 0, 0),
    "ring": (2, 0, 0),
    "collnetdirect": (2, 0, 0),
    "collnetchain": (2, 0, 0),
    "nvls": (2, 17, 1),
    "nvlstree": (2, 18, 1),
    "pat": (2, 23, 4),
}
PROTOCOLS = ("ll", "ll128", "simple")

#: algorithms that serve a collective on any hardware; the others need NVLink switches, SHARP or one GPU a node
ANYWHERE = {function: {"ring"} for function in FUNCTIONS} | {"allreduce": {"ring", "tree"}}

FORMS = {
    "algo": "algorithms as in ring,tree, or ^tree to leave one out; since 2.24 also allreduce:tree",
    "proto": "protocols as in ll,ll128,simple, or ^ll128 to leave one out; since 2.24 also allreduce:simple",
}


@dataclasses.dataclass(frozen=True)
class Parsed:
    """general: words allowed for functions without a list of their own (None: all); named: {function: words allowed}."""

    general: frozenset[str] | None
    named: t.Mapping[str, frozenset[str]]

    def allowed(self, function: str) -> frozenset[str] | None:
        return self.named.get(function, self.general)


def words_of(grammar: str, version: Version) -> list[str]:
    if grammar == "proto":
        return list(PROTOCOLS)
    return [name for name, since in ALGORITHMS.items() if since <= version]


def form_problem(grammar: str, text: str, version: Version) -> str:
    """One sentence about what this NCCL cannot read in *text*, "" where it reads all of it."""
    known = words_of(grammar, version)
    if re.search(r"\s", text):
        return f"{text} holds blanks, which NCCL takes for a part of the words"
    for part in text.lower().split(";"):
        function, colon, words = part.rpartition(":")
        if (colon or ";" in text) and version < PER_FUNCTION_SINCE:
            return f"{text}: lists for single collectives came with NCCL 2.24"
        if colon and function not in FUNCTIONS:
            return f"{function or 'an empty word'} is no collective; NCCL knows {', '.join(FUNCTIONS)}"
        for word in words.removeprefix("^").split(","):
            if word not in known:
                late = (
                    f" before {'.'.join(map(str, ALGORITHMS[word]))}"
                    if grammar == "algo" and word in ALGORITHMS
                    else ""
                )
                return f"{word or 'an empty word'} is unknown to NCCL{late}; it knows {', '.join(known)}"
    return ""


def parse(grammar: str, text: str, version: Version) -> Parsed:
    """A text without form_problem(), taken apart."""
    known = frozenset(words_of(grammar, version))
    general: frozenset[str] | None = None
    named: dict[str, frozenset[str]] = {}
    for part in text.lower().split(";"):
        function, colon, words = part.rpartition(":")
        listed = frozenset(words.removeprefix("^").split(","))
        allowed = known - listed if words.startswith("^") else listed
        if colon:
            named[function] = allowed
        else:
            general = allowed
    return Parsed(general, named)


def left_without(algo: str, version: Version, proto: str = "") -> list[str]:
    """Collectives for which NCCL_ALGO leaves no algorithm that works on any hardware, and no fall-back to Ring."""
    if version < PER_FUNCTION_SINCE or form_problem("algo", algo, version):
        return []
    parsed = parse("algo", algo, version)
    named_only = version >= NAMED_ONLY_SINCE and proto and ":" not in proto and parsed.named and parsed.general is None
    lost = []
    for function in FUNCTIONS:
        allowed = parsed.allowed(function)
        if allowed is None and named_only or allowed is not None and not allowed & ANYWHERE[function]:
            lost.append(function)
    return lost


def right_form(algo: str, version: Version, proto: str = "") -> str:
    """What asks this NCCL for the same algorithms in all-reduce, and leaves the other collectives alone."""
    if version < PER_FUNCTION_SINCE:
        return algo
    parsed = parse("algo", algo, version)
    wanted = parsed.allowed("allreduce")
    if wanted is None:
        wanted = frozenset(ANYWHERE["allreduce"])
    words = ",".join(word for word in ALGORITHMS if word in wanted)
    if version >= NAMED_ONLY_SINCE and proto:
        return f"ring,tree;allreduce:{words}"
    return f"allreduce:{words}"
