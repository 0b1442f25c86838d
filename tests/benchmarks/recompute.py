#!/usr/bin/env python3
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Derive every figure of every recorded result again from its rows: python tests/benchmarks/recompute.py [NAME ...].
Exits 1 where one differs. With --write it puts the derived ones into the records, after a change of how they are derived.
"""

from __future__ import annotations

import json
import sys

import recorded


def main(names: list[str]) -> int:
    write = "--write" in names
    names = [name for name in names if name != "--write"]
    paths = [recorded.RESULTS / f"{name}.json" for name in names] or sorted(recorded.RESULTS.glob("*.json"))
    wrong: list[str] = []
    for path in paths:
        record = json.loads(path.read_text())
        try:
            if write:
                record["figures"] = recorded.derive(path.stem, record)
                path.write_text(recorded.text_of(record))
            found = recorded.differences(path.stem, record)
        except LookupError as error:
            found = [str(error)]
        wrong += found
        print(f"{path.stem}: {len(record.get('rows', []))} rows, {'differs' if found else 'the figures hold'}")
        for key, value in record.get("figures", {}).items():
            print(f"  {key}: {value}")
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    print(f"{len(paths)} results, {len(wrong)} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
