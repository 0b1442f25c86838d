#!/usr/bin/env python3
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How fast NCCL logs are read on one core, and in how much memory: python tests/benchmarks/log_reading.py [--gigabytes 10].

Each kind of log is made of 64 MiB of varied lines, given again and again by a file that holds no more than that; a process of its own
reads it, so that its peak memory is its own. Seconds are CPU seconds: the machine is shared.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import subprocess
import sys
import time
import typing as t

WHAT = "Reading speed of parse_nccl_log_stream, in MB/s (1e6 bytes) of one core's CPU time, and peak memory"
PIECE = 64 << 20
# Shares of lines. "job": a run with NCCL_DEBUG=INFO and SUBSYS=INIT,NET,COLL between a program's own lines.
KINDS: dict[str, dict[str, float]] = {
    "job": {"collective": 0.93, "channel": 0.04, "program": 0.03},
    "collectives": {"collective": 1.0},
    "program": {"program": 1.0},
    "channels": {"channel": 1.0},
    "warnings": {"warning": 1.0},
}


def lines(kind: str, size: int) -> bytes:
    """About `size` bytes of a kind's lines, of 256 nodes of 8 ranks."""
    rng = random.Random(kind)
    names, shares = zip(*KINDS[kind].items())
    made: list[bytes] = []
    length = 0
    while length < size:
        rank = rng.randrange(2048)
        prefix = f"node{rank // 8:03d}:{4000 + rank % 8}:{5000 + rank % 64} [{rank % 8}]"
        what = rng.choices(names, shares)[0]
        if what == "collective":
            line = (
                f"{prefix} NCCL INFO AllReduce: opCount {rng.randrange(1 << 20):x} sendbuff 0x7fddb6400000 recvbuff 0x7fddb6c00000 "
                f"count {1 << rng.randrange(10, 28)} datatype 7 op 0 root 0 comm 0x5564be3481a0 [nranks=2048] stream 0x5564bd756d50\n"
            )
        elif what == "channel":
            line = (
                f"{prefix} NCCL INFO Channel {rng.randrange(32):02d}/0 : {rank}[{rank % 8}] -> {(rank + 8) % 2048}[{rank % 8}] [send] "
                f"via NET/IB/{rank % 8}/GDRDMA\n"
            )
        elif what == "warning":
            line = (
                f"{prefix} transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.{rank // 8}.1<{rng.randrange(65536)}> "
                "with status=12 opcode=0 len=0 vendor err 129 (Recv)\n"
            )
        else:
            line = (
                f"2026-05-05 10:11:12 step={rng.randrange(10**6)} loss=2.{rng.randrange(10**4)} lr=0.0001 "
                f"tokens/s={rng.randrange(10**6)}\n"
            )
        made.append(line.encode())
        length += len(line)
    return b"".join(made)


class _Repeated:
    """A binary file of `size` bytes that holds only one piece of them."""

    def __init__(self, piece: bytes, size: int) -> None:
        self._piece, self._left, self._at = piece, size, 0

    def read(self, count: int) -> bytes:
        count = min(count, self._left, len(self._piece) - self._at)
        part = self._piece[self._at : self._at + count]
        self._at = (self._at + count) % len(self._piece)
        self._left -= count
        return part


def _memory_kib(name: str) -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{name}:"))


def measure(kind: str, size: int) -> dict[str, t.Any]:
    """One row: CPU seconds and peak memory of reading `size` bytes of a kind of log."""
    from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_log import parse_nccl_log_stream

    piece = lines(kind, PIECE)
    before = _memory_kib("VmRSS")
    # Forgets the peak of making the lines (Documentation/filesystems/proc.rst): the reading's own is what counts.
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    started, wall = time.process_time(), time.perf_counter()
    answer = parse_nccl_log_stream(t.cast("t.BinaryIO", _Repeated(piece, size)))
    return {
        "kind": kind,
        "bytes": answer["read"]["bytes"],
        "lines": answer["lines"],
        "cpu_seconds": time.process_time() - started,
        "wall_seconds": time.perf_counter() - wall,
        "memory_added_kib": _memory_kib("VmHWM") - before,
    }


def figures(record: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """MB/s and memory, by kind and size."""
    speed: dict[str, float] = {}
    memory: dict[str, float] = {}
    for row in record["rows"]:
        name = f"{row['kind']} {row['bytes'] / 1e9:.0f} GB"
        speed[name] = round(row["bytes"] / row["cpu_seconds"] / 1e6, 1)
        memory[name] = round(row["memory_added_kib"] / 1024, 1)
    return {"mb_per_cpu_second": speed, "memory_added_mib": memory}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--gigabytes", type=float, default=10.0, help='of the kind "job"; the other kinds are read 1 GB each'
    )
    parser.add_argument(
        "--one", nargs=2, metavar=("KIND", "BYTES"), help="read one kind in this process and print its row"
    )
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]))))
        return 0
    import recorded

    sizes = [("job", 10**9), ("job", int(options.gigabytes * 1e9))]
    sizes += [(kind, 10**9) for kind in KINDS if kind != "job"]
    rows = []
    for kind, size in sizes:
        command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--one", kind, str(size)]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        print(rows[-1], flush=True)
    path = recorded.write("log_reading", WHAT, {"piece_bytes": PIECE, "kinds": KINDS}, rows)
    print(json.dumps(json.loads(path.read_text())["figures"], indent=2))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "collections"))
    sys.exit(main())
