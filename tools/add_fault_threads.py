#!/usr/bin/env python3
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Append threads to tests/fixtures/fault_threads.json as a set of their own, with the score of the catalogue that has not seen them.

    add_fault_threads.py FILE     FILE: a JSON list of {expected: [fault ids], text}

Add a set before you tune the catalogue for it: afterwards its score says nothing of threads that nobody has seen.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
THREADS = ROOT / "tests" / "fixtures" / "fault_threads.json"
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_log import parse_nccl_log  # noqa: E402
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.faults import explain_log  # noqa: E402


def causes(text: str) -> list[str]:
    """The ids that the catalogue finds in a thread, the likeliest first."""
    return [finding["id"] for finding in explain_log(parse_nccl_log(text), {"text": text})]


def score(threads: list[dict]) -> dict[str, int]:
    """How many threads have a right cause first, and among the first three."""
    found = [(causes(thread["text"]), set(thread["expected"])) for thread in threads]
    return {
        "threads": len(threads),
        "first": sum(bool(ids[:1]) and ids[0] in expected for ids, expected in found),
        "in_three": sum(bool(expected.intersection(ids[:3])) for ids, expected in found),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=pathlib.Path)
    added = json.loads(parser.parse_args().file.read_text(encoding="utf-8"))
    kept = json.loads(THREADS.read_text(encoding="utf-8"))
    number = max(thread.get("set", 1) for thread in kept["threads"]) + 1
    unseen = score(added)
    kept["unseen"] = {**kept.get("unseen", {}), str(number): unseen}
    kept["threads"] += [{"set": number, "expected": each["expected"], "text": each["text"]} for each in added]
    THREADS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"set {number}: {unseen}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
