#!/usr/bin/env python3
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""autotune's search against an exhaustive grid and against random search, on two GPUs over TCP sockets.

    python tests/benchmarks/autotune_h200.py --build DIR --journal FILE     (DIR: nccl-tests built with MPI=1)

What is measured goes to the journal at once. After --seconds it stops; the same command goes on, until the journal is
whole and the record is written.

The grid is threads x sockets x buffer, and random search draws from it. With --channels the search may also ask NCCL for
more channels (NCCL_MIN_CTAS), each of which has sockets of its own: as many launches, out of three times as many settings.

The grid is measured in random order, so that its first points are a random search with the search's budget. What random
search gives on average is computed from all of it: the point of rank k by its one measurement in the grid is the pick
with a known probability, and counts with what further measurements of it say. All winners, NCCL's default and the
guide's list are measured again in turn: the best of many noisy measurements flatters itself.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import random
import statistics
import sys
import time
import typing as t

import recorded

TRIALS = 24
CONFIRMATIONS = 10

#: of one launch, whose busbw is nccl-tests' average over them
ITERATIONS = 20

GUIDE = {"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "8", "NCCL_BUFFSIZE": "1048576"}

#: launches before anything counts: the first ones on a machine are slower
WARM = 6

#: the grid's best points by its own measurement: so many are measured again in turn with the others
GRID_CONFIRMED = 3
#: and so many so often, which is what random search's picks are worth
GRID_VALUED, VALUED = 12, 1

NVLINK_TRIALS = 5

#: values left out of the space, for the grid, the search and random search alike, so that one run takes under ten minutes
NOT_IN_GRID = {"NCCL_SOCKET_NTHREADS": ("16",), "NCCL_NSOCKS_PERTHREAD": ("16",), "NCCL_BUFFSIZE": ("2097152",)}

#: what one launch may take, for the decision whether there is time for another, in seconds
LAUNCH_S = 5.0

#: what --channels lets the search choose besides
CHANNELS = ("NCCL_MIN_CTAS", (None, "4", "8"))

Row = t.Mapping[str, t.Any]


def figures(record: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Ratios of medians of the confirmations; trials and times of the searches; random search on average."""
    rows = record["rows"]
    medians = _medians(rows, "confirm")
    nvlink = _medians(rows, "nvlink compare")
    seconds = {phase: sum(r["seconds"] for r in rows if r["phase"] == phase) for phase in ("grid", "autotune")}
    grid_best = max(value for who, value in medians.items() if who.startswith("grid"))
    trials = sum(row["phase"] == "autotune" for row in rows)
    picks = random_picks(rows, trials)
    expected = sum(chance * value for chance, value in picks)
    return {
        "fraction_of_grid_best": round(medians["autotune"] / grid_best, 4),
        "trials": trials,
        "grid_points": sum(row["phase"] == "grid" for row in rows),
        "time_fraction_of_grid": round(seconds["autotune"] / seconds["grid"], 4),
        "busbw_ratio_64MiB": round(medians["autotune"] / medians["default"], 4),
        "autotune_over_random": round(medians["autotune"] / medians["random"], 4),
        "autotune_over_average_random": round(medians["autotune"] / expected, 4),
        "random_searches_beaten": round(sum(chance for chance, value in picks if value < medians["autotune"]), 4),
        "guide_over_default": round(medians["guide"] / medians["default"], 4),
        "nvlink_kept_over_default": round(nvlink["tried"] / nvlink["default"], 4)
        if record["settings"]["nvlink_kept"]
        else 1.0,
        "confirmed_busbw_gbs": {who: round(value, 4) for who, value in sorted(medians.items())},
    }


def _medians(rows: t.Sequence[Row], phase: str) -> dict[str, float]:
    """{who: median busbw in GB/s} of what was measured in turn."""
    measured: dict[str, list[float]] = {}
    for row in of_phase(rows, phase):
        measured.setdefault(row["who"], []).append(row["busbw"])
    return {who: statistics.median(values) for who, values in measured.items()}


def random_picks(rows: t.Sequence[Row], budget: int) -> list[tuple[float, float]]:
    """[(chance that a random search with this budget picks it, its busbw in GB/s)], points of the grid, best first.

    The k-th of N points is the pick of n if it is drawn and none before it is: C(N-k, n-1) / C(N, n). Its value is the
    mean of its measurements in turn with the winners, never the one by which it is picked. The few picks from further
    down that nobody measured again count as the mean of those that were, which is more than they are worth.
    """
    grid = ranked(rows)
    again: dict[str, list[float]] = {}
    for row in rows:
        if row["phase"] in ("confirm", "value") and row["busbw"] is not None:
            again.setdefault(key_of(row["settings"]), []).append(row["busbw"])
    values = [statistics.fmean(again[key]) if (key := key_of(row["settings"])) in again else None for row in grid]
    known = statistics.fmean(value for value in values[:GRID_VALUED] if value is not None)
    chances = [
        math.comb(len(grid) - rank, budget - 1) / math.comb(len(grid), budget) for rank in range(1, len(grid) + 1)
    ]
    return [(chance, known if value is None else value) for chance, value in zip(chances, values)]


def of_phase(rows: t.Iterable[Row], phase: str) -> list[Row]:
    return [row for row in rows if row["phase"] == phase and row["busbw"] is not None]


def ranked(rows: t.Iterable[Row]) -> list[Row]:
    """The grid's points that gave a result, the fastest first."""
    return sorted(of_phase(rows, "grid"), key=lambda row: -row["busbw"])


def key_of(settings: t.Mapping[str, str]) -> str:
    return json.dumps(dict(settings), sort_keys=True)


class OutOfTimeError(Exception):
    """The time limit does not leave enough for another launch."""


class Journal:
    """Rows as they were measured, a JSON object a line. A row that is there already is not measured again."""

    def __init__(self, path: pathlib.Path, deadline: float) -> None:
        entries = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.rows: list[dict[str, t.Any]] = [entry for entry in entries if "phase" in entry]
        self.about = {key: value for entry in entries if "phase" not in entry for key, value in entry.items()}
        self._file = path.open("a")
        self._deadline = deadline
        self._replayed: dict[str, int] = {}

    def say(self, **about: t.Any) -> None:
        self.about.update(about)
        self._write(about)

    def row(self, phase: str, measure: t.Callable[[], dict[str, t.Any]]) -> dict[str, t.Any]:
        """The next row of *phase*: from the journal, or measured now. OutOfTimeError where there is no time for that."""
        number = self._replayed[phase] = self._replayed.get(phase, 0) + 1
        known = [row for row in self.rows if row["phase"] == phase]
        if len(known) >= number:
            return known[number - 1]
        if time.monotonic() + LAUNCH_S > self._deadline:
            raise OutOfTimeError
        row = {"phase": phase, **measure()}
        self.rows.append(row)
        self._write(row)
        return row

    def _write(self, entry: t.Mapping[str, t.Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()


def measure_all(
    build: pathlib.Path,
    journal: Journal,
    seed: int = 0,
    confirmations: int = CONFIRMATIONS,
    iterations: int = ITERATIONS,
    channels: bool = False,
) -> None:
    """Measure whatever the journal lacks. Deterministic but for the measurements, so that it can be taken up again."""
    import nccl_two_ranks as ranks
    from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_samples import compare
    from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search import Search
    from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search_space import Knob, Space, space_for

    def measure(phase: str, settings: t.Mapping[str, str], who: str = "", sockets: bool = True) -> float | None:
        size = (64 << 20) if sockets else (1 << 30)

        def launch() -> dict[str, t.Any]:
            done = ranks.run(build, settings, sockets=sockets, size=size, iterations=iterations)
            return {"who": who, "settings": dict(settings), "size": size, "busbw": done.busbw,
                    "seconds": round(done.seconds, 3), "failure": done.failure}  # fmt: skip

        row = journal.row(phase, launch)
        if row["settings"] != dict(settings):
            raise SystemExit(
                f"the journal is another run's: {phase} has {row['settings']}, {dict(settings)} was expected"
            )
        return t.cast("float | None", row["busbw"])

    def tune(
        phase: str, sockets: bool, space: t.Any, trials: int, first: t.Sequence[t.Mapping[str, str]]
    ) -> dict[str, str]:
        search = Search(space, trials, seed)
        for count in range(trials):
            number, settings = search.ask_for(first[count]) if count < len(first) else search.ask()
            busbw = measure(phase, settings, sockets=sockets)
            search.tell(number, busbw, "" if busbw is not None else "failed")
        return search.best()[0].settings

    if "versions" not in journal.about:
        environment = {**ranks.ALWAYS, **ranks.AS_TWO_NODES}
        journal.say(versions=ranks.versions(build), environment=environment)
    nccl = journal.about["versions"]["nccl"].partition("+")[0]
    whole = space_for("socket", nccl, debug_too=True, leave_out=["NCCL_MIN_CTAS"])
    knobs = tuple(Knob(k.name, tuple(v for v in k.values if v not in NOT_IN_GRID[k.name])) for k in whole.knobs)
    space = Space(knobs, whole.limits)
    searched = Space((*knobs, Knob(*CHANNELS)), whole.limits) if channels else space
    for number in range(WARM):
        measure("warm", GUIDE if number % 2 else {})
    points = space.points()
    for point in random.Random(seed).sample(points, len(points)):
        measure("grid", point)
    chosen: dict[str, t.Mapping[str, str]] = {"default": {}, "guide": GUIDE}
    chosen["autotune"] = tune("autotune", True, searched, TRIALS, [{}, GUIDE])
    grid = [row for row in journal.rows if row["phase"] == "grid"]
    chosen["random"] = ranked(grid[:TRIALS])[0]["settings"]
    best = [row["settings"] for row in ranked(grid)]
    chosen.update({f"grid {place}": settings for place, settings in enumerate(best[:GRID_CONFIRMED], start=1)})
    for number in range(confirmations):
        for who, settings in chosen.items():
            measure("confirm", settings, who)
        for settings in best[GRID_CONFIRMED:GRID_VALUED] if number < VALUED else ():
            measure("value", settings)

    # Through NVLink there is little to gain: the search must keep NCCL's default rather than call luck a gain.
    tried = tune("nvlink", False, space_for("nvlink", nccl, debug_too=True), NVLINK_TRIALS, [{}])
    samples: dict[str, list[float]] = {"default": [], "tried": []}
    for _round in range(confirmations):
        for who, settings in (("default", {}), ("tried", tried)):
            samples[who].append(measure("nvlink compare", settings, who, sockets=False) or 0.0)
    journal.say(nvlink_kept=tried if compare(samples["tried"], samples["default"]).better else {})


WHAT = (
    "all_reduce busbw at 64 MiB over TCP sockets: autotune's search, an exhaustive grid, random search; NVLink at 1 GiB"
)


def write_record(journal: Journal, folder: pathlib.Path, **options: t.Any) -> pathlib.Path:
    """The record of a whole journal. options: those of measure_all()."""
    about = dict(journal.about)
    versions = about.pop("versions")
    settings = {"trials": TRIALS, **options, **about}
    return recorded.write("autotune_h200", WHAT, settings, journal.rows, versions, host=versions["gpus"], folder=folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, help="directory of nccl-tests, built with MPI=1")
    parser.add_argument("--journal", type=pathlib.Path, required=True, help="rows, taken up again where it exists")
    parser.add_argument("--output", type=pathlib.Path, default=recorded.RESULTS, help="directory of the record")
    parser.add_argument("--seconds", type=float, default=560.0, help="when to stop, and wait for the same command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--confirmations", type=int, default=CONFIRMATIONS, help="how often the winners are measured in turn"
    )
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="of the collective, in one launch")
    parser.add_argument("--channels", action="store_true", help="let the search choose the number of channels too")
    options = parser.parse_args()
    journal = Journal(options.journal, time.monotonic() + options.seconds)
    measured = {name: getattr(options, name) for name in ("seed", "confirmations", "iterations", "channels")}
    try:
        measure_all(options.build, journal, **measured)
    except OutOfTimeError:
        sys.exit(f"{len(journal.rows)} rows are in {options.journal}; the same command goes on from there")
    print(write_record(journal, options.output, **measured))


if __name__ == "__main__":
    main()
