# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two ranks of nccl-tests on one host, for the benchmarks that need real GPUs: through NVLink, or as if over a network.

Needs mpirun and an MPI build of nccl-tests (`--build` gives its directory). With one GPU the two ranks share it as two
hosts would (NCCL_HOSTID), which says something about NCCL and little about speed.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import subprocess
import time
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_tests_output import parse_nccl_tests

#: keeps NCCL off NVLink and shared memory, so that two GPUs of one host talk as two nodes over TCP would
AS_TWO_NODES = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}

#: NVLink multicast can put a shared host's GPUs out of service
ALWAYS = {"NCCL_NVLS_ENABLE": "0"}


@dataclasses.dataclass(frozen=True)
class Measured:
    """busbw: out-of-place, in GB/s (1e9 bytes/s), None where the run failed; seconds: of the whole launch."""

    busbw: float | None
    seconds: float
    failure: str


def run(
    build: pathlib.Path,
    settings: t.Mapping[str, str],
    sockets: bool = True,
    collective: str = "all_reduce",
    size: int = 64 << 20,
    iterations: int = 20,
    timeout: float = 60.0,
) -> Measured:
    """One size (bytes) of one collective under *settings* ({variable: value})."""
    environment = {**ALWAYS, **(AS_TWO_NODES if sockets else {}), **settings}
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", "--bind-to", "none"]
    for name, value in environment.items():
        command += ["-x", f"{name}={value}"]
    sizes = ["-b", str(size), "-e", str(size), "-g", "1", "-n", str(iterations), "-w", "5", "-c", "1"]
    began = time.monotonic()
    try:
        done = subprocess.run(
            [*command, str(build / f"{collective}_perf"), *sizes], capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return Measured(None, time.monotonic() - began, "timeout")
    seconds = time.monotonic() - began
    parsed = parse_nccl_tests(done.stdout + done.stderr)
    failure = parsed.get("failure") or ("" if done.returncode == 0 and parsed.get("completed") else "did not complete")
    return Measured(parsed["rows"][0][6] if parsed.get("rows") and not failure else None, seconds, str(failure))


def versions(build: pathlib.Path) -> dict[str, str]:
    """Versions of what takes part, as each of them says."""
    smi = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    text = subprocess.run(
        ["mpirun", "--allow-run-as-root", "-np", "1", str(build / "all_reduce_perf"), "-b", "8", "-e", "8", "-n", "1"],
        capture_output=True, text=True, timeout=60, env={**os.environ, **ALWAYS, "NCCL_DEBUG": "VERSION"},
    )  # fmt: skip
    nccl = re.search(r"NCCL version (\S+)", text.stdout + text.stderr)
    tests = re.search(r"nccl-tests version (\S+)", text.stdout)
    mpi = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=20).stdout
    gpus = subprocess.run(smi, capture_output=True, text=True, timeout=60).stdout.strip().splitlines()
    return {
        "nccl": nccl.group(1) if nccl else "",
        "nccl_tests": tests.group(1) if tests else "",
        "mpi": mpi.splitlines()[0] if mpi else "",
        "gpus": f"{len(gpus)} x {gpus[0]}" if gpus else "",
    }
