#!/usr/bin/env python3
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How often isolate names every slow node of a simulated fleet, and how often a healthy one.

512 nodes, 0 to 5 of them at 92% speed, 3% noise on every measurement, racks that differ by up to 5% either way. A row
is a fleet; its seed gives it again to the last digit. Fleets already in --rows are not run again, so that a long run
can be done in pieces, with PYTHONPATH=collections:

    python tests/benchmarks/isolate_simulation.py --fleets 3200 --rows /tmp/rows.jsonl --minutes 5
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import statistics
import sys
import time
import typing as t

WHAT = (
    "isolate on simulated fleets: detection of slow nodes, false accusations and launches. main: racks of 16, a pair as "
    "fast as its slower end. The other scenes: other rack sizes, and rack biases of both ends multiplied in place of the "
    "smaller one taken."
)
SETTINGS: dict[str, t.Any] = {
    "nodes": 512,
    "slow_nodes": [0, 1, 2, 3, 4, 5],
    "speed_of_slow_nodes": 0.92,
    "noise": 0.03,
    "rack_bias": 0.05,
    "scenes": {
        "main": {"rack": 16, "combine": "min", "share": 0.9375},
        "racks_of_4": {"rack": 4, "combine": "min", "share": 0.015625},
        "racks_of_8": {"rack": 8, "combine": "min", "share": 0.015625},
        "racks_of_32": {"rack": 32, "combine": "min", "share": 0.015625},
        "racks_multiply": {"rack": 16, "combine": "product", "share": 0.015625},
    },
}


def simulate(scene: str, seed: int) -> dict[str, t.Any]:
    """One fleet, as a row: its slow nodes, and what isolate said of it."""
    from ansible_collections.gpufabric.cluster.plugins.plugin_utils import isolate, isolate_verdict
    from fleet_simulator import racked

    shape = SETTINGS["scenes"][scene]
    fleet = racked(
        SETTINGS["nodes"],
        shape["rack"],
        seed,
        SETTINGS["rack_bias"],
        noise=SETTINGS["noise"],
        combine=shape["combine"],
    )
    count = SETTINGS["slow_nodes"][seed % len(SETTINGS["slow_nodes"])]
    slow = sorted(random.Random(f"{scene} {seed}").sample(list(fleet.speed), count))
    for name in slow:
        fleet.speed[name] *= SETTINGS["speed_of_slow_nodes"]
    state = isolate.begin({name: {"rack": rack} for name, rack in fleet.rack.items()})
    while launches := isolate.plan(state):
        rows, vanished = fleet.run(launches)
        state = isolate.observe(state, rows, vanished)
    said = isolate_verdict.verdict(state)
    return {
        "scene": scene,
        "seed": seed,
        "slow": slow,
        "accused": sorted(entry["node"] for entry in said["accused"]),
        "links": said["links"],
        "shared": said["racks"] + said["uplinks"] + said["paths"] + said["rails"],
        "undecided": [entry["node"] for entry in said["undecided"]],
        "launches": said["launches_by_stage"],
    }


def figures(record: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """detection_rate: share of slow nodes named. false_fleets_per_1000: fleets in which a healthy node was accused,
    with the upper end of its 95% interval where
    none was seen. launches: mean over fleets, printed beside what other ways need (bisection: noiseless, so that it
    sees every slow node in a set).
    """
    rows = [row for row in record["rows"] if row["scene"] == "main"]
    nodes = record["settings"]["nodes"]
    others = {
        scene: _summary([row for row in record["rows"] if row["scene"] == scene])
        for scene in record["settings"]["scenes"]
        if scene != "main"
    }
    return {
        **_summary(rows),
        "rounds_of_pairs_at_most": max(row["launches"]["pairs"] for row in rows),
        "launches_by_slow_nodes": {
            str(count): statistics.fmean(_total(row) for row in rows if len(row["slow"]) == count)
            for count in record["settings"]["slow_nodes"]
        },
        "launches_of_all_pairs": nodes * (nodes - 1) // 2,
        "launches_of_the_full_circle": nodes - 1 + nodes % 2,
        "launches_of_bisection": statistics.fmean(bisection(nodes, [int(n[1:]) for n in row["slow"]]) for row in rows),
        "other_scenes": others,
    }


def _total(row: t.Mapping[str, t.Any]) -> int:
    return sum(row["launches"].values())


def _summary(rows: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, t.Any]:
    slow = sum(len(row["slow"]) for row in rows)
    false = sum(bool(set(row["accused"]) - set(row["slow"])) for row in rows)
    return {
        "fleets": len(rows),
        "slow_nodes": slow,
        "detection_rate": sum(len(set(row["accused"]) & set(row["slow"])) for row in rows) / slow,
        "fleets_with_all_named": sum(set(row["slow"]) <= set(row["accused"]) for row in rows) / len(rows),
        "false_fleets_per_1000": 1000 * false / len(rows),
        "false_fleets_per_1000_at_most": 1000 * _upper(false, len(rows)),
        "false_links_racks_or_paths": sum(bool(row["links"] or row["shared"]) for row in rows),
        "launches": statistics.fmean(map(_total, rows)),
        "launches_at_most": max(map(_total, rows)),
    }


def _upper(seen: int, of: int) -> float:
    """Upper end of the one-sided 95% interval of a share (Clopper and Pearson), by bisection on the binomial tail."""
    low, high = seen / of, 1.0
    for _step in range(60):
        middle = (low + high) / 2
        term = tail = (1 - middle) ** of
        for k in range(1, seen + 1):
            term *= (of - k + 1) / k * middle / (1 - middle)
            tail += term
        low, high = (middle, high) if tail > 0.05 else (low, middle)
    return high


def bisection(nodes: int, slow: t.Sequence[int]) -> int:
    """Launches that halving needs: the whole, and both halves of every set in which a slow node is."""
    if not slow or nodes == 1:
        return 1
    half = nodes // 2
    left = [node for node in slow if node < half]
    return 1 + bisection(half, left) + bisection(nodes - half, [node - half for node in slow if node >= half])


def main() -> int:
    import recorded

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=3200, help="fleets over all scenes")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after that long; run again to go on")
    parser.add_argument("--rows", type=pathlib.Path, required=True, help="where rows are kept until all are there")
    options = parser.parse_args()
    options.rows.touch()
    done = {(row["scene"], row["seed"]): row for row in map(json.loads, options.rows.read_text().splitlines())}
    wanted = [
        (scene, seed)
        for scene, shape in SETTINGS["scenes"].items()
        for seed in range(round(options.fleets * shape["share"]))
    ]
    end = time.monotonic() + options.minutes * 60
    with options.rows.open("a") as kept:
        for scene, seed in wanted:
            if (scene, seed) not in done:
                if time.monotonic() > end:
                    print(f"{len(done)} of {len(wanted)} fleets are done; run again to go on")
                    return 3
                done[scene, seed] = simulate(scene, seed)
                kept.write(json.dumps(done[scene, seed]) + "\n")
    path = recorded.write("isolate_simulation", WHAT, SETTINGS, [done[key] for key in wanted])
    print(json.dumps(json.loads(path.read_text())["figures"], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
