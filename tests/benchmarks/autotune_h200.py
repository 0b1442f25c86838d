#!/usr/bin/env python3
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""autotune's search against an exhaustive grid and against random search, on two GPUs over TCP sockets, in one run.

    python tests/benchmarks/autotune_h200.py --build DIR --journal FILE     (DIR: nccl-tests built with MPI=1)

The winners of all three, NCCL's default and the guide's list are measured again in turn, five times: only those
confirmations are compared, since the best of many noisy measurements flatters itself.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import statistics
import tempfile
import typing as t

import recorded

TRIALS = 25
CONFIRMATIONS = 5
GUIDE = {"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "8", "NCCL_BUFFSIZE": "1048576"}

NVLINK_TRIALS = 5

#: values left out of the space, for the grid, the search and random search alike, so that one run takes under ten minutes
NOT_IN_GRID = {"NCCL_SOCKET_NTHREADS": ("16",), "NCCL_NSOCKS_PERTHREAD": ("16",), "NCCL_BUFFSIZE": ("2097152",)}

#: grid points measured again: the best of a noisy grid is not surely its first
GRID_CONFIRMED = 3


def figures(record: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Ratios of medians of the confirmations; trials and times of the searches."""
    rows, settings = record["rows"], record["settings"]
    confirmed: dict[str, list[float]] = {}
    for row in rows:
        if row["phase"] == "confirm" and row["busbw"] is not None:
            confirmed.setdefault(row["who"], []).append(row["busbw"])
    medians = {who: statistics.median(values) for who, values in confirmed.items()}
    seconds = {
        phase: sum(r["seconds"] for r in rows if r["phase"] == phase) for phase in ("grid", "autotune", "random")
    }
    nvlink = {
        who: statistics.median(r["busbw"] for r in rows if r["phase"] == "nvlink compare" and r["who"] == who)
        for who in ("default", "tried")
    }
    grid_best = max(value for who, value in medians.items() if who.startswith("grid"))
    return {
        "fraction_of_grid_best": round(medians["autotune"] / grid_best, 4),
        "trials": sum(row["phase"] == "autotune" for row in rows),
        "grid_points": sum(row["phase"] == "grid" for row in rows),
        "time_fraction_of_grid": round(seconds["autotune"] / seconds["grid"], 4),
        "busbw_ratio_64MiB": round(medians["autotune"] / medians["default"], 4),
        "autotune_over_random": round(medians["autotune"] / medians["random"], 4),
        "guide_over_default": round(medians["guide"] / medians["default"], 4),
        "nvlink_kept_over_default": round(nvlink["tried"] / nvlink["default"], 4) if settings["nvlink_kept"] else 1.0,
        "confirmed_busbw_gbs": {who: round(value, 4) for who, value in sorted(medians.items())},
    }


def measure_all(build: pathlib.Path, journal: t.TextIO, seed: int) -> None:
    """Measure everything; each row goes to the journal at once, so that a time limit loses only what is still to come."""
    import nccl_two_ranks as ranks
    from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_samples import compare
    from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search import Search
    from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search_space import Knob, Space, space_for

    rows: list[dict[str, t.Any]] = []

    def note(entry: dict[str, t.Any]) -> None:
        journal.write(json.dumps(entry) + "\n")
        journal.flush()

    def measure(phase: str, settings: t.Mapping[str, str], who: str = "", sockets: bool = True) -> float | None:
        size = (64 << 20) if sockets else (1 << 30)
        done = ranks.run(build, settings, sockets=sockets, size=size)
        rows.append(
            {"phase": phase, "who": who, "settings": dict(settings), "size": size, "busbw": done.busbw,
             "seconds": round(done.seconds, 3), "failure": done.failure}
        )  # fmt: skip
        note(rows[-1])
        return done.busbw

    def tune(
        phase: str, sockets: bool, space: t.Any, trials: int, first: t.Sequence[t.Mapping[str, str]]
    ) -> dict[str, str]:
        search = Search(space, pathlib.Path(tempfile.mkdtemp()), "study", seed=seed)
        for count in range(trials):
            number, settings = search.ask_for(first[count]) if count < len(first) else search.ask()
            busbw = measure(phase, settings, sockets=sockets)
            search.tell(number, [] if busbw is None else [busbw], "" if busbw is not None else "failed")
        return search.best()[0].settings

    versions = ranks.versions(build)
    environment = {**ranks.ALWAYS, **ranks.AS_TWO_NODES}
    note({"versions": versions, "seed": seed, "environment": environment})
    nccl = versions["nccl"].partition("+")[0]
    whole = space_for("socket", nccl, debug_too=True, leave_out=["NCCL_MIN_CTAS"])
    knobs = tuple(Knob(k.name, tuple(v for v in k.values if v not in NOT_IN_GRID[k.name])) for k in whole.knobs)
    space = Space(knobs, whole.limits)
    chosen: dict[str, dict[str, str]] = {"default": {}, "guide": GUIDE}
    chosen["autotune"] = tune("autotune", True, space, TRIALS, [{}, GUIDE])
    for point in random.Random(seed).sample(space.points(), TRIALS):
        measure("random", point)
    for point in space.points():
        measure("grid", point)

    def ranked(phase: str) -> list[dict[str, str]]:
        found = [row for row in rows if row["phase"] == phase and row["busbw"] is not None]
        return [row["settings"] for row in sorted(found, key=lambda row: -row["busbw"])]

    chosen["random"] = ranked("random")[0]
    chosen.update(
        {f"grid {place}": settings for place, settings in enumerate(ranked("grid")[:GRID_CONFIRMED], start=1)}
    )
    for _round in range(CONFIRMATIONS):
        for who, settings in chosen.items():
            measure("confirm", settings, who)

    # Through NVLink there is little to gain: the search must keep NCCL's default rather than call luck a gain.
    tried = tune("nvlink", False, space_for("nvlink", nccl, debug_too=True), NVLINK_TRIALS, [{}])
    samples: dict[str, list[float]] = {"default": [], "tried": []}
    for _round in range(CONFIRMATIONS):
        for who, settings in (("default", {}), ("tried", tried)):
            samples[who].append(measure("nvlink compare", settings, who, sockets=False) or 0.0)
    note({"nvlink_kept": tried if compare(samples["tried"], samples["default"]).better else {}})


def write_record(journal: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The record of a journal. LookupError, from figures(), where a phase is missing from it."""
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    rows = [entry for entry in entries if "phase" in entry]
    about = {key: value for entry in entries if "phase" not in entry for key, value in entry.items()}
    versions = about.pop("versions")
    return recorded.write(
        "autotune_h200",
        "all_reduce busbw at 64 MiB over TCP sockets: autotune's search, an exhaustive grid, random search; NVLink at 1 GiB",
        {"trials": TRIALS, "confirmations": CONFIRMATIONS, **about},
        rows,
        versions,
        host=versions["gpus"],
        folder=folder,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--build", type=pathlib.Path, help="directory of nccl-tests, built with MPI=1; absent: record only"
    )
    parser.add_argument(
        "--journal", type=pathlib.Path, required=True, help="rows as they are measured, a JSON object a line"
    )
    parser.add_argument("--output", type=pathlib.Path, default=recorded.RESULTS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.build:
        with options.journal.open("w") as journal:
            measure_all(options.build, journal, options.seed)
    print(write_record(options.journal, options.output))


if __name__ == "__main__":
    main()
