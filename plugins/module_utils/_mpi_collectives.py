# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""nccl-tests without GPUs: its collectives and sizes timed with MPI, printed as it prints. PRIVATE to the collection.

Started by the launcher as one process a rank. It measures the nodes' network and MPI, not NCCL and not GPUs, and says so
in its table's device column. mpi4py is imported only when it runs.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import platform
import sys
import time
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import (
    FACTORS,
    REDUCING,
    ROOTED,
    bandwidths,
    counts,
    parse_size,
    steps,
)

#: nccl-tests' datatype: (array typecode, MPI's name)
TYPES = {
    "int8": ("b", "SIGNED_CHAR"),
    "uint8": ("B", "UNSIGNED_CHAR"),
    "int32": ("i", "INT"),
    "uint32": ("I", "UNSIGNED"),
    "int64": ("q", "LONG_LONG"),
    "uint64": ("Q", "UNSIGNED_LONG_LONG"),
    "float": ("f", "FLOAT"),
    "double": ("d", "DOUBLE"),
}
OPERATIONS = ("sum", "prod", "max", "min")
#: test data repeats after so many elements: a prime, so that no shift by a power of two goes unnoticed
PERIOD = 251
#: values of one element, small enough for sums over thousands of ranks to be exact in float, and for int8 not to overflow
VALUES = 3


def pattern(typecode: str, count: int, seed: int, offset: int = 0) -> array.array[t.Any]:
    """*count* elements of rank *seed*, the first being element *offset* of its whole buffer."""
    period = array.array(typecode, [(i * 7 + seed) % VALUES for i in range(PERIOD)])
    start = offset % PERIOD
    repeated = period * ((start + count) // PERIOD + 1)
    return repeated[start : start + count]


def reduced(typecode: str, count: int, operation: str, ranks: int, offset: int = 0) -> array.array[t.Any]:
    """What *operation* over all ranks' patterns gives, in the datatype's own arithmetic."""
    columns = zip(*(pattern(typecode, PERIOD, rank) for rank in range(ranks)))
    functions: dict[str, t.Callable[[t.Sequence[t.Any]], t.Any]] = {
        "sum": sum,
        "prod": _product,
        "max": max,
        "min": min,
    }
    period = array.array(typecode, [_wrapped(functions[operation](column), typecode) for column in columns])
    start = offset % PERIOD
    return (period * ((start + count) // PERIOD + 1))[start : start + count]


def _product(values: t.Sequence[t.Any]) -> t.Any:
    result = values[0]
    for value in values[1:]:
        result *= value
    return result


def _wrapped(value: t.Any, typecode: str) -> t.Any:
    """Integer arithmetic of MPI wraps around, as C does."""
    if typecode in "fd":
        return value
    bits = 8 * array.array(typecode).itemsize
    value &= (1 << bits) - 1
    return value - (1 << bits) if typecode in "biq" and value >> (bits - 1) else value


def wrong_elements(found: array.array[t.Any], expected: array.array[t.Any]) -> int:
    """How many elements differ: one comparison of memory when none does."""
    if found == expected:
        return 0
    return sum(bool(a != b) for a, b in zip(found, expected)) + abs(len(found) - len(expected))


class Bench:
    """One collective on this rank. comm is MPI.COMM_WORLD of mpi4py, MPI its module."""

    def __init__(self, mpi: t.Any, options: argparse.Namespace) -> None:
        self._mpi = mpi
        self._comm = mpi.COMM_WORLD
        self._options = options
        self._rank: int = self._comm.Get_rank()
        self._ranks: int = self._comm.Get_size()
        self._typecode, name = TYPES[options.datatype]
        self._type = getattr(mpi, name)
        self._width = array.array(self._typecode).itemsize
        self._op = getattr(mpi, options.op.upper())
        self._root: int = options.root

    def measure(self, size: int) -> dict[str, t.Any]:
        """One row in the names of nccl-tests' JSON; times in µs, bandwidths in GB/s; whole on rank 0."""
        count, shown = counts(self._options.collective, size, self._ranks, self._width)
        name = self._options.collective
        row: dict[str, t.Any] = {
            "size": shown,
            "count": count,
            "type": self._options.datatype,
            "redop": self._options.op if name in REDUCING else "none",
            "root": str(self._root if name in ROOTED else -1),
        }
        for half in ("out_of_place", "in_place"):
            row[half], row[f"{half}_per_iter"] = self._half(name, count, shown, half == "in_place")
        row["actual_iterations"] = self._options.iterations
        return row

    def _half(self, name: str, count: int, shown: int, in_place: bool) -> tuple[dict[str, t.Any], dict[str, t.Any]]:
        # Each call gets fresh buffers: a reduction in place would otherwise grow with every iteration.
        call, result, expected = getattr(self, f"_{name}")(count, in_place)
        self._comm.Barrier()
        call()
        wrong: int | None = None
        if self._options.check and expected is not None:
            wrong = int(self._comm.allreduce(wrong_elements(result(), expected)))
        for _unused in range(self._options.warmup):
            call()
        times = []
        self._comm.Barrier()
        for _unused in range(self._options.iterations):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        # nccl-tests' -a 1: the average over ranks; for one iteration the slowest rank is what a training step waits for.
        mean = self._comm.allreduce(sum(times)) / self._ranks / len(times)
        slowest = array.array("d", times)
        self._comm.Allreduce(self._mpi.IN_PLACE, slowest, op=self._mpi.MAX)
        algbw, busbw = bandwidths(name, shown, mean, self._ranks)
        half = {"time": mean * 1e6, "alg_bw": algbw, "bus_bw": busbw, "nwrong": wrong}
        return half, spread([value * 1e6 for value in slowest])

    def _buffer(self, values: array.array[t.Any]) -> list[t.Any]:
        return [values, self._type]

    def _zeros(self, count: int) -> array.array[t.Any]:
        return array.array(self._typecode, bytes(count * self._width))

    def _mine(self, count: int, offset: int = 0) -> array.array[t.Any]:
        return pattern(self._typecode, count, self._rank, offset)

    def _gathered(self, count: int) -> array.array[t.Any]:
        whole = array.array(self._typecode)
        for rank in range(self._ranks):
            whole += pattern(self._typecode, count, rank)
        return whole

    def _all_reduce(self, count: int, in_place: bool) -> t.Any:
        data, out = self._mine(count), self._zeros(count)
        expected = reduced(self._typecode, count, self._options.op, self._ranks)
        if not in_place:
            return (
                (lambda: self._comm.Allreduce(self._buffer(data), self._buffer(out), self._op)),
                (lambda: out),
                expected,
            )
        first = _FirstResult(data)
        return (
            first.after(lambda: self._comm.Allreduce(self._mpi.IN_PLACE, self._buffer(data), self._op)),
            first.get,
            expected,
        )

    def _reduce(self, count: int, in_place: bool) -> t.Any:
        data, out = self._mine(count), self._zeros(count)
        at_root = self._rank == self._root
        expected = reduced(self._typecode, count, self._options.op, self._ranks) if at_root else self._zeros(0)
        if not in_place:
            target = self._buffer(out) if at_root else None
            return (
                (lambda: self._comm.Reduce(self._buffer(data), target, self._op, self._root)),
                (lambda: out if at_root else self._zeros(0)),
                expected,
            )
        first = _FirstResult(data)

        def reduce_in_place() -> None:
            if at_root:
                self._comm.Reduce(self._mpi.IN_PLACE, self._buffer(data), self._op, self._root)
            else:
                self._comm.Reduce(self._buffer(data), None, self._op, self._root)

        return first.after(reduce_in_place), (lambda: first.get() if at_root else self._zeros(0)), expected

    def _broadcast(self, count: int, in_place: bool) -> t.Any:
        # MPI knows only one buffer here, so both halves of the row time the same call.
        data = self._mine(count) if self._rank == self._root else self._zeros(count)
        expected = pattern(self._typecode, count, self._root)
        return (lambda: self._comm.Bcast(self._buffer(data), self._root)), (lambda: data), expected

    def _all_gather(self, count: int, in_place: bool) -> t.Any:
        expected = self._gathered(count)
        out = self._zeros(count * self._ranks)
        if not in_place:
            data = self._mine(count)
            return (lambda: self._comm.Allgather(self._buffer(data), self._buffer(out))), (lambda: out), expected
        out[self._rank * count : (self._rank + 1) * count] = self._mine(count)
        return (lambda: self._comm.Allgather(self._mpi.IN_PLACE, self._buffer(out))), (lambda: out), expected

    def _reduce_scatter(self, count: int, in_place: bool) -> t.Any:
        data, out = self._mine(count * self._ranks), self._zeros(count)
        expected = reduced(self._typecode, count, self._options.op, self._ranks, self._rank * count)
        if not in_place:
            return (
                (lambda: self._comm.Reduce_scatter_block(self._buffer(data), self._buffer(out), self._op)),
                (lambda: out),
                expected,
            )
        first = _FirstResult(data, count)
        scatter = first.after(lambda: self._comm.Reduce_scatter_block(self._mpi.IN_PLACE, self._buffer(data), self._op))
        return scatter, first.get, expected

    def _alltoall(self, count: int, in_place: bool) -> t.Any:
        data, out = self._mine(count * self._ranks), self._zeros(count * self._ranks)
        expected = array.array(self._typecode)
        for rank in range(self._ranks):
            expected += pattern(self._typecode, count, rank, self._rank * count)
        if not in_place:
            return (lambda: self._comm.Alltoall(self._buffer(data), self._buffer(out))), (lambda: out), expected
        return (lambda: self._comm.Alltoall(self._mpi.IN_PLACE, self._buffer(data))), (lambda: data), None

    def _gather(self, count: int, in_place: bool) -> t.Any:
        at_root = self._rank == self._root
        out = self._zeros(count * self._ranks if at_root else 0)
        expected = self._gathered(count) if at_root else self._zeros(0)
        data = self._mine(count)
        target = self._buffer(out) if at_root else None
        if in_place and at_root:
            out[self._rank * count : (self._rank + 1) * count] = data
            return (lambda: self._comm.Gather(self._mpi.IN_PLACE, target, self._root)), (lambda: out), expected
        return (lambda: self._comm.Gather(self._buffer(data), target, self._root)), (lambda: out), expected

    def _scatter(self, count: int, in_place: bool) -> t.Any:
        at_root = self._rank == self._root
        data = self._mine(count * self._ranks) if at_root else self._zeros(0)
        source = self._buffer(data) if at_root else None
        out = self._zeros(count)
        expected = pattern(self._typecode, count, self._root, self._rank * count)
        if in_place and at_root:
            mine = slice(self._rank * count, (self._rank + 1) * count)
            return (lambda: self._comm.Scatter(source, self._mpi.IN_PLACE, self._root)), (lambda: data[mine]), expected
        return (lambda: self._comm.Scatter(source, self._buffer(out), self._root)), (lambda: out), expected

    def _sendrecv(self, count: int, in_place: bool) -> t.Any:
        data, out = self._mine(count), self._zeros(count)
        to, source = (self._rank + 1) % self._ranks, (self._rank - 1) % self._ranks
        expected = pattern(self._typecode, count, source)
        if not in_place:
            return (
                (lambda: self._comm.Sendrecv(self._buffer(data), to, 0, self._buffer(out), source)),
                (lambda: out),
                expected,
            )
        return (lambda: self._comm.Sendrecv_replace(self._buffer(data), to, 0, source)), (lambda: data), None


class _FirstResult:
    """Keeps what the first call of an operation in place left: further calls go on reducing the same memory."""

    def __init__(self, data: array.array[t.Any], count: int | None = None) -> None:
        self._data = data
        self._count = count
        self._kept: array.array[t.Any] | None = None

    def after(self, operation: t.Callable[[], None]) -> t.Callable[[], None]:
        def call() -> None:
            operation()
            if self._kept is None:
                self._kept = self._data[: self._count]

        return call

    def get(self) -> array.array[t.Any]:
        return t.cast("array.array[t.Any]", self._kept)


def spread(times_us: t.Sequence[float]) -> dict[str, t.Any]:
    """nccl-tests' statistics of single iterations (-I), times in µs; percentiles are the nearest rank's."""
    ordered = sorted(times_us)
    mean = sum(ordered) / len(ordered)
    stdev = (sum((value - mean) ** 2 for value in ordered) / len(ordered)) ** 0.5

    def percentile(share: float) -> float:
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

    return {
        "min_us": ordered[0],
        "max_us": ordered[-1],
        "avg_us": mean,
        "p50_us": percentile(0.50),
        "p95_us": percentile(0.95),
        "p99_us": percentile(0.99),
        "stdev_us": stdev,
        "cv_pct": 100.0 * stdev / mean if mean else 0.0,
        "times_us": list(times_us),
    }


HEADER = (
    "#                                                              out-of-place                       in-place",
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       ",
)


def table_row(row: t.Mapping[str, t.Any]) -> str:
    """One row in nccl-tests' columns."""
    halves = []
    for name in ("out_of_place", "in_place"):
        half = row[name]
        wrong = "N/A" if half["nwrong"] is None else half["nwrong"]
        halves.append(f"{half['time']:8.2f} {half['alg_bw']:7.4f} {half['bus_bw']:7.4f} {wrong:>6}")
    return (
        f"{row['size']:>12} {row['count']:>13} {row['type']:>9} {row['redop']:>7} {row['root']:>7} {'  '.join(halves)}"
    )


def parser() -> argparse.ArgumentParser:
    """nccl-tests' letters for what this program has of it."""
    options = argparse.ArgumentParser(prog="mpi-collectives", description=(__doc__ or "").splitlines()[0])
    options.add_argument("collective", choices=sorted(FACTORS))
    options.add_argument("-b", dest="minimum", type=parse_size, default="32M")
    options.add_argument("-e", dest="maximum", type=parse_size, default="32M")
    options.add_argument("-f", dest="factor", type=float, default=2.0)
    options.add_argument("-i", dest="step", type=parse_size, default="0")
    options.add_argument("-n", dest="iterations", type=int, default=20)
    options.add_argument("-w", dest="warmup", type=int, default=1)
    options.add_argument("-c", dest="check", type=int, default=1)
    options.add_argument("-d", dest="datatype", choices=sorted(TYPES), default="float")
    options.add_argument("-o", dest="op", choices=OPERATIONS, default="sum")
    options.add_argument("-r", dest="root", type=int, default=0)
    options.add_argument("-J", dest="report", default="")
    return options


def main(argv: t.Sequence[str]) -> int:
    """Run one collective; exit status 0, or 1 where data were wrong, as nccl-tests up to 2.17.2 has it."""
    options = parser().parse_args(list(argv))
    try:
        from mpi4py import MPI
    except ImportError as error:
        sys.stderr.write(f"mpi4py is missing for {sys.executable} on {platform.node()} ({error})\n")
        return 5
    return run(MPI, options)


def _say(line: str) -> None:
    """One line of the table, at once: a killed run keeps what it measured."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run(mpi: t.Any, options: argparse.Namespace) -> int:
    comm = mpi.COMM_WORLD
    rank, ranks = comm.Get_rank(), comm.Get_size()
    places = comm.gather((platform.node(), os.getpid()), root=0)
    if rank == 0:
        for line in _preamble(options, places, mpi.Get_library_version().split(",")[0].strip()):
            _say(line)
    bench = Bench(mpi, options)
    rows = []
    for size in steps(options.minimum, options.maximum, options.factor, options.step):
        row = bench.measure(size)
        rows.append(row)
        if rank == 0:
            _say(table_row(row))
    wrong = sum(row[half]["nwrong"] or 0 for row in rows for half in ("out_of_place", "in_place"))
    values = [row[half]["bus_bw"] for row in rows for half in ("out_of_place", "in_place")]
    average = sum(values) / len(values) if values else 0.0
    if rank == 0:
        _say(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
        _say(f"# Avg bus bandwidth    : {average:g} ")
        _say(f"#\n# Collective test concluded: {options.collective}_perf")
        if options.report:
            with open(options.report, "w", encoding="utf-8") as file:
                json.dump(_report(options, ranks, places, rows, wrong, average), file)
    return 1 if wrong else 0


def _preamble(options: argparse.Namespace, places: t.Sequence[tuple[str, int]], library: str) -> list[str]:
    step = f"{options.step}(bytes)" if options.step else f"{options.factor:g}(factor)"
    return [
        f"# Collective test starting: {options.collective}_perf",
        f"# MPI in the place of NCCL, no GPU: {library}",
        f"# nThread 1 nGpus 1 minBytes {options.minimum} maxBytes {options.maximum} step: {step} warmup iters: {options.warmup} "
        f"iters: {options.iterations} agg iters: 1 validation: {options.check} graph: 0",
        "#",
        "# Using devices",
        *(
            f"#  Rank {number:2d} Group  0 Pid {pid:6d} on {host:>10} device  0 [0000:00:00] CPU"
            for number, (host, pid) in enumerate(places)
        ),
        "#",
        *HEADER,
    ]


def _report(
    options: argparse.Namespace,
    ranks: int,
    places: t.Sequence[tuple[str, int]],
    rows: t.Sequence[t.Any],
    wrong: int,
    average: float,
) -> dict[str, t.Any]:
    return {
        "version": 3,
        "backend": "mpi",
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "minimum_bytes": options.minimum,
            "maximum_bytes": options.maximum,
            "step_factor": options.factor,
            "warmup_iters": options.warmup,
            "iterations": options.iterations,
            "validation": "true" if options.check else "false",
        },
        "devices": [
            {"rank": number, "group": 0, "pid": pid, "hostname": host, "device": 0, "device_info": "CPU"}
            for number, (host, pid) in enumerate(places)
        ],
        "results": list(rows),
        "out_of_bounds": {"count": wrong, "okay": "false" if wrong else "true"},
        "average_bus_bandwidth": {"bandwidth": average, "okay": "unchecked"},
        "errors": [""],
    }
