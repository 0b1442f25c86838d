# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How much a report is like those of a fault: learnt from reports whose cause is known, by tools/learn_likeness.py.

Each fault has the words that its reports share and few others have, with weights: a centroid of tf-idf vectors (Rocchio's
classifier; Manning, Raghavan and Schuetze, "Introduction to Information Retrieval", chapter 14). It shows nothing by itself: it
ranks what patterns have found, and names what a report looks like that they do not explain.
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
# So many characters stand for a word, whatever it ends in.
_STEM = 6
_FEWEST_SHARED = 2
_MOST_NAMED = 3
# The likeliest of a text that shares less than this with any fault's reports is likened in part.
_CONVINCING = 500


class Likeness(t.NamedTuple):
    share: float  # of the likeness that the likeliest fault has, or that convinces where that is more: 0 to 1
    words: list[str]  # that speak most for it, three at most


def stems(text: str) -> dict[str, str]:
    """What is compared, the beginnings of words and names of three characters or more: {stem: the first word that has it}."""
    found: dict[str, str] = {}
    for word in _WORD.findall(text.lower()):
        found.setdefault(word[:_STEM], word)
    return found


def likened(text: str) -> dict[str, Likeness]:
    """{fault: how it is likened to the text}, the likeliest first; faults that share one word with it are left out."""
    shared: dict[str, dict[str, int]] = collections.defaultdict(dict)
    weights = _weights()
    for stem, word in stems(text).items():
        for fault, weight in weights.get(stem, ()):
            shared[fault][word] = weight
    sums = {fault: sum(found.values()) for fault, found in shared.items() if len(found) >= _FEWEST_SHARED}
    most = max([_CONVINCING, *sums.values()])
    return {
        fault: Likeness(
            sums[fault] / most, sorted(shared[fault], key=lambda word: (-shared[fault][word], word))[:_MOST_NAMED]
        )
        for fault in sorted(sums, key=lambda name: (-sums[name], name))
    }


@functools.lru_cache(maxsize=1)
def _weights() -> dict[str, list[tuple[str, int]]]:
    """{stem: [(fault, weight)]}"""
    found: dict[str, list[tuple[str, int]]] = collections.defaultdict(list)
    for fault, weights in json.loads(DATA.read_text()).items():
        for stem, weight in weights.items():
            found[stem].append((fault, weight))
    return found
