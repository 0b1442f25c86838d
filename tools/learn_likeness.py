#!/usr/bin/env python3
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the words by which a report is likened to a fault, from the threads whose cause is known and from the catalogue itself.

With --check, only say whether they are up to date. A thread counts for the first of its accepted causes.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
THREADS = ROOT / "tests" / "fixtures" / "fault_threads.json"
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import faults  # noqa: E402
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.fault_likeness import DATA, words  # noqa: E402

#: words of a fault that are kept: fewer miss more, and more find nothing else
MOST_WORDS = 80
SCALE = 150

_NO_WORD = re.compile(r"\\[a-zA-Z]|[^\w\s]")


def reports() -> list[tuple[str, set[str]]]:
    """(fault, words) of each thread, and of what the catalogue says of each fault."""
    told = [(thread["expected"][0], words(thread["text"])) for thread in json.loads(THREADS.read_text())["threads"]]
    for fault in json.loads(faults.DATA.read_text())["faults"]:
        said = " ".join(
            [fault["title"], fault["cause"], fault["fix"], _NO_WORD.sub(" ", " ".join(fault["signatures"]))]
        )
        told.append((fault["id"], words(said)))
    return told


def learnt() -> dict[str, dict[str, int]]:
    """{fault: {word: weight}}, the weight of a rare word squared: once as its report's, once as its own in the text to come."""
    told = reports()
    holders = collections.Counter(word for _fault, found in told for word in found)
    rarity = {word: math.log(len(told) / count) for word, count in holders.items()}
    sums: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for fault, found in told:
        length = math.sqrt(sum(rarity[word] ** 2 for word in found)) or 1.0
        for word in sorted(found):
            sums[fault][word] += rarity[word] / length
    return {fault: _heaviest(sums[fault], rarity) for fault in sorted(sums)}


def _heaviest(weights: collections.Counter[str], rarity: dict[str, float]) -> dict[str, int]:
    kept = sorted(weights, key=lambda word: (-weights[word], word))[:MOST_WORDS]
    length = math.sqrt(sum(weights[word] ** 2 for word in kept)) or 1.0
    scaled = {word: round(SCALE * weights[word] * rarity[word] / length) for word in kept}
    return {word: weight for word, weight in sorted(scaled.items()) if weight}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    lines = (
        f"{json.dumps(fault)}: {json.dumps(weights, separators=(',', ':'))}" for fault, weights in learnt().items()
    )
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    if DATA.exists() and DATA.read_text() == text:
        return 0
    if check:
        print(f"{DATA.relative_to(ROOT)} is out of date: run tools/learn_likeness.py", file=sys.stderr)
        return 1
    DATA.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
