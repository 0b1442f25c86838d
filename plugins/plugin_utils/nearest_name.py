# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The name that was probably meant by a misspelt one."""

from __future__ import annotations

import collections
import functools
import re
import typing as t

#: single edits up to which a name counts as a misspelling of another, per length of the name
EDITS_PER_LETTER = 1 / 4

#: share of common words from which two names count as alike although many letters differ
COMMON_WORDS = 0.5

#: letters from which a word counts as the abbreviation of another that begins with it
ABBREVIATION = 3

#: what people write out and NCCL abbreviates in another way
WRITTEN_OUT = {"TRAFFIC_CLASS": "TC", "SERVICE_LEVEL": "SL", "INTERFACE_NAME": "IFNAME", "INTERFACE": "IFNAME"}


def nearest_names(name: str, known: t.Iterable[str], limit: int = 3) -> list[str]:
    """Names of *known* that *name* may stand for, the likeliest first; empty where none is near.

    Case, dashes and blanks do not count. Misspellings come first (Damerau's four edits), then names of the same words in
    another number or order, as in NCCL_HCA for NCCL_IB_HCA.
    """
    asked = _normal(name)
    words, letters = _words(asked), _letters(asked)
    scored = []
    for candidate in known:
        bound = max(2, int(len(candidate) * EDITS_PER_LETTER))
        alike = _letters_apart(letters, _letters(candidate)) <= bound
        edits = edit_distance(asked, candidate, bound) if alike else bound + 1
        common = _common_words(words, _words(candidate))
        if edits <= bound:
            scored.append((0, float(edits), -common, candidate))
        elif common >= COMMON_WORDS:
            scored.append((1, -common, float(abs(len(asked) - len(candidate))), candidate))
    return [entry[-1] for entry in sorted(scored)[:limit]]


def _normal(name: str) -> str:
    text = re.sub(r"[\s\-.]+", "_", name.strip().upper())
    for long, short in WRITTEN_OUT.items():
        text = text.replace(long, short)
    return text


@functools.lru_cache(maxsize=1024)
def _words(name: str) -> frozenset[str]:
    return frozenset(name.split("_")) - {"NCCL", ""}


@functools.lru_cache(maxsize=1024)
def _letters(name: str) -> collections.Counter[str]:
    return collections.Counter(name)


def _letters_apart(one: collections.Counter[str], other: collections.Counter[str]) -> int:
    """Letters that one name has more of than the other: never more than the edits between them."""
    return max((one - other).total(), (other - one).total())


def _common_words(words: frozenset[str], theirs: frozenset[str]) -> float:
    """Share of words that two names have in common, an abbreviation counting as its word."""
    shared = len(words & theirs)
    left = theirs - words
    shared += sum(any(_same_word(word, their) for their in left) for word in words - theirs)
    return shared / max(1, len(words) + len(theirs) - shared)


def _same_word(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return len(short) >= ABBREVIATION and long.startswith(short)


def edit_distance(one: str, other: str, bound: int) -> int:
    """Insertions, deletions, substitutions and swaps of neighbours from one to the other; above *bound* any larger number."""
    if abs(len(one) - len(other)) > bound:
        return bound + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, their in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != their))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == their:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
        if min(row) > bound and (not before or min(before) > bound):
            return bound + 1
    return row[-1]
