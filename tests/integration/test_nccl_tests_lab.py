# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every launcher on real kernels: Open MPI 4 and 5, Slurm; and a node that is switched off in the middle of a run.

Opt-in, since it boots virtual machines: GPUFABRIC_LAB=1 pytest -m lab tests/integration/test_nccl_tests_lab.py
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import FACTORS

from lab.cluster import Cluster
from lab.state import Settings

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.environ.get("GPUFABRIC_LAB") != "1", reason="boots virtual machines: set GPUFABRIC_LAB=1"),
]

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

#: all that the program of the mpi backend can do, at sizes that emulated processors move in a moment
EVERY: dict[str, t.Any] = {
    "nccl_tests_backend": "mpi",
    "nccl_tests_collectives": list(FACTORS),
    "nccl_tests_stages": ["cluster"],
    "nccl_tests_mpi_transports": ["tcp"],
    "nccl_tests_min_bytes": "1K",
    "nccl_tests_max_bytes": "64K",
    "nccl_tests_step_factor": 8,
    "nccl_tests_iterations": 3,
    "nccl_tests_warmup": 1,
    "nccl_tests_timeout_s": 120,
}
SIZES = [1 << 10, 1 << 13, 1 << 16]

#: seconds from a node's end to the end of the playbook: 20 to notice, then what is left of the play and the report
VERDICT_S = 180


@contextlib.contextmanager
def lab(**settings: t.Any) -> t.Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="lab-nccl-") as directory, Cluster(pathlib.Path(directory)) as cluster:
        cluster.up(Settings(**settings))
        yield cluster


def command(cluster: Cluster, results: pathlib.Path, **variables: t.Any) -> list[str]:
    program = str(pathlib.Path(sys.executable).with_name("ansible-playbook"))
    extra = json.dumps({"gpufabric_results_dir": str(results), **EVERY, **variables})
    return [program, "-i", str(cluster.inventory), "playbooks/nccl_tests.yml", "-e", extra]


def read(results: pathlib.Path, output: str) -> dict[str, t.Any]:
    path = results / "latest/run.json"
    assert path.exists(), output[-4000:]
    record: dict[str, t.Any] = json.loads(path.read_text())
    return record


def measured(cluster: Cluster, results: pathlib.Path, **variables: t.Any) -> dict[str, t.Any]:
    """The record of a run of every collective, which must be whole, right, and over TCP by the interfaces' own counters."""
    done = subprocess.run(
        command(cluster, results, **variables), cwd=REPOSITORY, capture_output=True, text=True, timeout=900
    )
    record = read(results, done.stdout + done.stderr)
    failed = [
        (run["collective"], run["failure"], run["problem"]) for run in record["benchmark"]["runs"] if run["failure"]
    ]
    assert failed == [], record["findings"]
    assert [run["collective"] for run in record["benchmark"]["runs"]] == list(FACTORS)
    for run in record["benchmark"]["runs"]:
        assert run["completed"] and run["ranks"] == 2 and sorted(run["nodes"]) == ["n1", "n2"]
        assert len(run["rows"]) == len(SIZES)
        assert all(row["out_of_place"]["wrong"] == 0 and row["out_of_place"]["time_us"] > 0 for row in run["rows"])
        assert all(row["out_of_place"]["latency"]["p99_us"] > 0 for row in run["rows"])
        assert set(run["cpu_utilisation"]) == {"n1", "n2"}
    return record


def left(cluster: Cluster, node: str) -> str:
    """Processes and leases of a run that are still on a node. No pattern is a match of the shell that asks."""
    text = "pgrep -af '[m]pirun|[o]rted|[p]rted|[s]run |[/]run/gpufabric'; ls -d /run/gpufabri[c]/*/work 2>/dev/null"
    return cluster.run(node, text, timeout_s=120).output.strip()


@pytest.mark.parametrize(("release", "major"), [("bookworm", "4."), ("trixie", "5.")])
def test_mpirun_runs_every_collective(tmp_path: pathlib.Path, release: str, major: str) -> None:
    with lab(nodes=2, releases=(release,)) as cluster:
        record = measured(cluster, tmp_path)
        version = cluster.run("n1", "mpirun --version", timeout_s=120).output
        assert f"(Open MPI) {major}" in version
        assert {run["transport"]["proven"] for run in record["benchmark"]["runs"]} == {"tcp"}
        assert [left(cluster, node) for node in ("n1", "n2")] == ["", ""]


def test_srun_runs_every_collective(tmp_path: pathlib.Path) -> None:
    with lab(nodes=2, variant="slurm") as cluster:
        deadline = time.monotonic() + 240
        while "2   idle" not in (seen := cluster.run("n1", "sinfo", timeout_s=120).output):
            assert time.monotonic() < deadline, seen
            time.sleep(3)
        record = measured(cluster, tmp_path, nccl_tests_launcher="srun", nccl_tests_srun_mpi="pmix")
        assert {run["launcher"] for run in record["benchmark"]["runs"]} == {"srun"}
        assert record["benchmark"]["runs"][0]["argv"][0] == "srun"
        assert {run["transport"]["proven"] for run in record["benchmark"]["runs"]} == {"tcp"}
        assert [left(cluster, node) for node in ("n1", "n2")] == ["", ""]
        assert "lab" not in cluster.run("n1", "squeue --noheader", timeout_s=120).output, "no job is left"


def test_a_node_that_is_switched_off_in_mid_run_is_named_and_what_was_measured_stays(tmp_path: pathlib.Path) -> None:
    with lab(nodes=2) as cluster:
        process = subprocess.Popen(
            command(
                cluster, tmp_path, nccl_tests_collectives=["all_reduce", "all_gather"], nccl_tests_iterations=40,
                nccl_tests_max_bytes="1M", nccl_tests_timeout_s=300,
            ),
            cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            began = time.monotonic()
            while True:
                seen = cluster.run("n2", "pgrep -f '[c]ollective all_gather' | wc -l", timeout_s=120).output.strip()
                if seen not in ("", "0"):
                    break
                assert process.poll() is None and time.monotonic() - began < 600, "the second collective never began"
                time.sleep(1)
            cluster.power("n2", running=False)
            off = time.monotonic()
            output, _unused = process.communicate(timeout=VERDICT_S)
            assert time.monotonic() - off < VERDICT_S
        finally:
            process.kill()
            process.communicate()
        record = read(tmp_path, output)
        assert (process.returncode, record["verdict"]["status"]) == (2, "fail"), output[-3000:]
        first, second = record["benchmark"]["runs"]
        assert first["failure"] is None and len(first["rows"]) >= 3, "what was measured before stays"
        assert second["failure"] == "node_lost" and second["failing_hosts"] == ["n2"], second
        assert ("benchmark_node_lost", "n2") in [(f["id"], f["node"]) for f in record["findings"]]
        assert (tmp_path / "latest/report.html").stat().st_size > 0
        assert left(cluster, "n1") == ""
