#!/usr/bin/env python3
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the words by which a report is likened to a fault, from the threads whose cause is known and from the catalogue itself.

With --check, only say whether they are up to date. A thread counts for each of its accepted causes, most for the first of them.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import pathlib
import re
import sys
import typing as t

ROOT = pathlib.Path(__file__).resolve().parents[1]
THREADS = ROOT / "tests" / "fixtures" / "fault_threads.json"
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import faults  # noqa: E402
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.fault_likeness import DATA, stems  # noqa: E402
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.fault_words import spoken  # noqa: E402

#: words of a fault that are kept: fewer miss more, and more add size and no right answers
MOST_WORDS = 300
SCALE = 150
#: of a thread that several causes may explain, this much counts for the first, and the rest for the others together
OF_THE_FIRST = 0.6
#: below 1, a fault of many reports is named more readily than one of few, as it is met more often
EVENNESS = 0.85

_NO_WORD = re.compile(r"\\[a-zA-Z]|[^\w\s]")


class Report(t.NamedTuple):
    causes: dict[str, float]  # {fault: how much it counts for it}
    stems: t.Collection[str]


def reports(threads: t.Iterable[t.Mapping[str, t.Any]]) -> list[Report]:
    """What the threads say, and what the catalogue says of each fault."""
    told = [Report(_shares(thread["expected"]), stems(spoken(thread["text"]))) for thread in threads]
    for fault in json.loads(faults.DATA.read_text())["faults"]:
        patterns = _NO_WORD.sub(" ", " ".join([*fault["signatures"], *fault.get("topics", ())]))
        told.append(
            Report({fault["id"]: 1.0}, stems(" ".join([fault["title"], fault["cause"], fault["fix"], patterns])))
        )
    return told


def _shares(expected: t.Sequence[str]) -> dict[str, float]:
    if len(expected) == 1:
        return {expected[0]: 1.0}
    rest = (1 - OF_THE_FIRST) / (len(expected) - 1)
    return {fault: OF_THE_FIRST if fault == expected[0] else rest for fault in expected}


def learnt(threads: t.Iterable[t.Mapping[str, t.Any]]) -> dict[str, dict[str, int]]:
    """{fault: {stem: weight}}, the weight of a rare word squared: once as its report's, once as its own in the text to come."""
    told = reports(threads)
    holders = collections.Counter(stem for report in told for stem in report.stems)
    rarity = {stem: math.log((len(told) + 1) / (count + 0.5)) for stem, count in holders.items()}
    sums: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for report in told:
        length = math.sqrt(sum(rarity[stem] ** 2 for stem in report.stems)) or 1.0
        for fault, share in report.causes.items():
            for stem in report.stems:
                sums[fault][stem] += share * rarity[stem] / length
    return {fault: _heaviest(sums[fault], rarity) for fault in sorted(sums)}


def _heaviest(weights: collections.Counter[str], rarity: dict[str, float]) -> dict[str, int]:
    kept = sorted(weights, key=lambda stem: (-weights[stem], stem))[:MOST_WORDS]
    length = math.sqrt(sum(weights[stem] ** 2 for stem in kept)) or 1.0
    scaled = {stem: round(SCALE * weights[stem] * rarity[stem] / length**EVENNESS) for stem in kept}
    return {stem: weight for stem, weight in sorted(scaled.items()) if weight}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    threads = json.loads(THREADS.read_text())["threads"]
    lines = (
        f"{json.dumps(fault)}: {json.dumps(weights, separators=(',', ':'))}"
        for fault, weights in learnt(threads).items()
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
