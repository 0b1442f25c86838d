# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role rdma on real kernels: a fault on a random node and rail gives exactly one error, its absence none.

Opt-in, since it boots virtual machines: GPUFABRIC_LAB=1 pytest -m lab tests/integration/test_rdma_lab.py
GPUFABRIC_SEED picks the nodes and rails of an earlier run again; GPUFABRIC_LAB_RELEASES the nodes' releases.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import typing as t

import pytest

from lab.cluster import Cluster
from lab.faults import Parameters
from lab.state import Settings

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.environ.get("GPUFABRIC_LAB") != "1", reason="boots virtual machines: set GPUFABRIC_LAB=1"),
]

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
RELEASES = tuple(os.environ.get("GPUFABRIC_LAB_RELEASES", "bookworm,trixie").split(","))
SEED = int(os.environ.get("GPUFABRIC_SEED") or random.randrange(10**6))

#: fault: (finding, its subject)
FAULTS = {
    "link-down": ("hca_port_down", "mlx5_{rail} port 1"),
    "carrier-down": ("hca_port_down", "mlx5_{rail} port 1"),
    "mtu-mismatch": ("hca_mtu", "mlx5_{rail} port 1"),
    "hca-removed": ("hca_missing", "mlx5_{rail}"),
    "gid-lost": ("hca_gid_missing", "mlx5_{rail} port 1"),
}

#: with the lab's own expectations, and with what the nodes show of each other alone
EXPECTATIONS = {
    "expected": f"@{REPOSITORY}/inventories/lab/group_vars/all/lab.yml",
    "by-peers": json.dumps({"rdma_allowed_drivers": ["rdma_rxe"]}),
}


@dataclasses.dataclass(frozen=True)
class Run:
    """rc: of ansible-playbook; findings: of the run's record."""

    rc: int
    findings: list[dict[str, str]]

    @property
    def errors(self) -> list[tuple[str, str, str]]:
        return [(f["id"], f["node"], f["subject"]) for f in self.findings if f["severity"] == "error"]


@pytest.fixture(scope="module")
def cluster() -> t.Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="lab-rdma-") as directory, Cluster(pathlib.Path(directory)) as cluster:
        cluster.up(Settings(nodes=2, releases=RELEASES))
        yield cluster


def play(cluster: Cluster, path: pathlib.Path, *arguments: str) -> Run:
    command = [str(pathlib.Path(sys.executable).with_name("ansible-playbook")), "-i", str(cluster.inventory)]
    command += ["playbooks/rdma.yml", "-e", json.dumps({"gpufabric_results_dir": str(path)}), *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    records = sorted(path.glob("*/run.json"), key=lambda record: record.stat().st_mtime)
    assert records, done.stdout[-3000:] + done.stderr[-2000:]
    return Run(done.returncode, json.loads(records[-1].read_text())["findings"])


def test_healthy_nodes_have_nothing_to_say(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    first = play(cluster, tmp_path, "-e", EXPECTATIONS["expected"])
    assert (first.rc, first.findings) == (0, [])
    second = play(cluster, tmp_path, "-e", EXPECTATIONS["by-peers"])
    assert (second.rc, second.errors) == (0, [])


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_gives_exactly_one_error(cluster: Cluster, tmp_path: pathlib.Path, fault: str) -> None:
    dice = random.Random(f"{SEED} {fault}")
    node, rail = f"n{dice.randint(1, 2)}", dice.randint(0, 1)
    expectation = dice.choice(list(EXPECTATIONS))
    print(f"GPUFABRIC_SEED={SEED}: {fault} on {node} rail {rail}, {expectation}")
    found_id, subject = FAULTS[fault]
    cluster.inject(fault, node, Parameters(rail=rail))
    try:
        run = play(cluster, tmp_path, "-e", EXPECTATIONS[expectation])
    finally:
        cluster.clear(node)
    assert (run.rc, run.errors) == (2, [(found_id, node, subject.format(rail=rail))]), run.findings


def test_nothing_is_left_of_the_faults(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    run = play(cluster, tmp_path, "-e", EXPECTATIONS["expected"])
    assert (run.rc, run.errors) == (0, [])
