# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which faults are told in such words: learnt from reports whose cause is known, by tools/learn_likeness.py.

Each fault has the words that its reports share and few others have, with weights: a centroid of tf-idf vectors (Rocchio's
classifier; Manning, Raghavan and Schuetze, "Introduction to Information Retrieval", chapter 14). It shows nothing by itself: it
says which fault a report that no signature explains looks most like.
"""

from __future__ import annotations

import collections
import functools
import json
import pathlib
import re
import typing as t

DATA = pathlib.Path(__file__).parent / "data" / "fault_likeness.json"

_WORD = re.compile(r"[a-z_][a-z_0-9]{2,}")
_FEWEST_SHARED = 2
_MOST_NAMED = 3


def words(text: str) -> set[str]:
    """What is compared: words and names of three characters or more."""
    return set(_WORD.findall(text.lower()))


def likeliest(text: str) -> t.Iterator[tuple[str, list[str]]]:
    """(fault, the words that speak most for it, three at most), the likeliest first; faults that share one word are left out."""
    shared: dict[str, dict[str, int]] = collections.defaultdict(dict)
    weights = _weights()
    for word in words(text):
        for fault, weight in weights.get(word, ()):
            shared[fault][word] = weight
    for fault in sorted(shared, key=lambda name: (-sum(shared[name].values()), name)):
        if len(shared[fault]) >= _FEWEST_SHARED:
            yield fault, sorted(shared[fault], key=lambda word: (-shared[fault][word], word))[:_MOST_NAMED]


@functools.lru_cache(maxsize=1)
def _weights() -> dict[str, list[tuple[str, int]]]:
    """{word: [(fault, weight)]}"""
    found: dict[str, list[tuple[str, int]]] = collections.defaultdict(list)
    for fault, weights in json.loads(DATA.read_text()).items():
        for word, weight in weights.items():
            found[word].append((fault, weight))
    return found
