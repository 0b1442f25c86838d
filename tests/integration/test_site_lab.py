# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""site.yml, whole, on real kernels: it changes, it settles, it heals, it names what is wrong, and leaves nothing behind.

Opt-in, since it boots virtual machines: GPUFABRIC_LAB=1 pytest -m lab tests/integration/test_site_lab.py
GPUFABRIC_SEED picks the nodes and rails of an earlier run again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import typing as t

import jsonschema
import pytest

from lab.cluster import Cluster
from lab.faults import Parameters
from lab.state import Settings

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.environ.get("GPUFABRIC_LAB") != "1", reason="boots virtual machines: set GPUFABRIC_LAB=1"),
]

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
SCHEMA = REPOSITORY / "plugins/plugin_utils/data/run_record.schema.json"
SEED = int(os.environ.get("GPUFABRIC_SEED") or random.randrange(10**6))
NODES = ("n1", "n2")

#: tasks a node that site.yml may cost
TASK_BUDGET = 40

#: seconds within which a killed run must have been taken back by the nodes themselves
LEASE_S = 120

#: everything that a run may have put on a node: keys, known hosts, processes, files, units
LEFT_BEHIND = (
    "cat /root/.ssh/* 2>/dev/null | sort; ls -A /run/gpufabric /var/lib/gpufabric/leases 2>/dev/null;"
    " ls -A /tmp | grep -v systemd-private; ls -A /root/.ansible/tmp /root/.ansible_async 2>/dev/null;"
    " ps -eo args= | grep -E 'mpirun|orted|prted|gpufabric' | grep -v grep; systemctl list-units --plain --no-legend 'gpufabric*'"
)


@dataclasses.dataclass(frozen=True)
class Run:
    """rc: of ansible-playbook; recap: {host: {what: count}}; record: run.json."""

    rc: int
    recap: dict[str, dict[str, int]]
    record: dict[str, t.Any]


@pytest.fixture(scope="module")
def cluster() -> t.Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="lab-site-") as directory, Cluster(pathlib.Path(directory)) as cluster:
        cluster.up(Settings(nodes=len(NODES)))
        yield cluster


def command(cluster: Cluster, results: pathlib.Path, *arguments: str) -> list[str]:
    program = str(pathlib.Path(sys.executable).with_name("ansible-playbook"))
    extra = json.dumps({"gpufabric_results_dir": str(results)})
    return [program, "-i", str(cluster.inventory), "site.yml", "-e", extra, *arguments]


def site(cluster: Cluster, results: pathlib.Path, *arguments: str) -> Run:
    done = subprocess.run(
        command(cluster, results, *arguments), cwd=REPOSITORY, capture_output=True, text=True, timeout=900
    )
    lines = re.findall(r"^(\w+) +: (ok=.*)$", done.stdout, re.MULTILINE)
    recap = {host: {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", counts)} for host, counts in lines}
    record = results / "latest/run.json"
    assert record.exists(), done.stdout[-3000:] + done.stderr[-2000:]
    return Run(done.returncode, recap, json.loads(record.read_text()))


def on(cluster: Cluster, node: str, text: str) -> str:
    """What a command prints on a node."""
    return cluster.run(node, text, timeout_s=120).output


def first_error(run: Run) -> tuple[str, str]:
    return run.record["findings"][0]["node"], run.record["findings"][0]["subject"]


def test_it_changes_bare_nodes_and_measures_them(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    run = site(cluster, tmp_path)
    assert run.rc == 0, run.record["findings"]
    assert [f for f in run.record["findings"] if f["severity"] == "error"] == []
    assert all(run.recap[node]["changed"] > 0 for node in NODES)
    assert all(run.recap[node]["ok"] + run.recap[node]["skipped"] <= TASK_BUDGET for node in NODES), run.recap
    jsonschema.validate(run.record, json.loads(SCHEMA.read_text()))
    measured = [r for r in run.record["benchmark"]["runs"] if r["completed"] and len(r["nodes"]) >= 2]
    assert measured and all(row["out_of_place"]["busbw_gbs"] > 0 for r in measured for row in r["rows"])
    for node in NODES:
        seen = run.record["nodes"][node]
        assert [device["name"] for device in seen["rdma"]["observed"]["hcas"]] == ["mlx5_0", "mlx5_1"]
        keys = json.dumps(seen["kernel"]["keys"])
        assert "net.core.rmem_max" in keys and "134217728" in keys
    assert (tmp_path / "latest/report.html").stat().st_size > 0


def test_a_second_run_changes_nothing(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    run = site(cluster, tmp_path)
    assert (run.rc, [run.recap[node]["changed"] for node in NODES]) == (0, [0, 0])


def test_it_heals_what_was_set_behind_its_back(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    on(cluster, "n1", "sysctl -w net.core.somaxconn=128")
    run = site(cluster, tmp_path, "--tags", "kernel_tuning")
    assert (run.rc, run.recap["n1"]["changed"], run.recap["n2"]["changed"]) == (0, 1, 0)
    assert on(cluster, "n1", "sysctl -n net.core.somaxconn").strip() == "4096"


def test_a_rail_that_is_down_is_the_first_finding(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    dice = random.Random(SEED)
    node, rail = dice.choice(NODES), dice.randint(0, 1)
    print(f"GPUFABRIC_SEED={SEED}: {node} rail {rail}")
    cluster.inject("link-down", node, Parameters(rail=rail))
    try:
        run = site(cluster, tmp_path)
    finally:
        cluster.clear(node)
    assert (run.rc, first_error(run)) == (2, (node, f"mlx5_{rail} port 1")), run.record["findings"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_run_is_taken_back_by_the_nodes(cluster: Cluster, tmp_path: pathlib.Path, number: int) -> None:
    before = {node: on(cluster, node, LEFT_BEHIND) for node in NODES}
    printed = tmp_path / "printed"
    process = subprocess.Popen(
        command(cluster, tmp_path, "--tags", "nccl_tests"), cwd=REPOSITORY,
        stdout=printed.open("w"), stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        began = time.monotonic()
        while "mpirun" not in on(cluster, "n1", "ps -eo comm="):
            assert process.poll() is None and time.monotonic() - began < 600, printed.read_text()[-3000:]
    finally:
        process.send_signal(number)
        killed = time.monotonic()
    process.wait(timeout=60)
    time.sleep(max(0.0, LEASE_S - (time.monotonic() - killed)))
    assert {node: on(cluster, node, LEFT_BEHIND) for node in NODES} == before


def test_a_node_that_is_off_is_the_first_finding(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    node = random.Random(SEED + 1).choice(NODES)
    print(f"GPUFABRIC_SEED={SEED}: {node}")
    cluster.power(node, running=False)
    run = site(cluster, tmp_path)
    assert (run.rc, first_error(run)[0]) == (2, node), run.record["findings"]
    assert set(run.record["nodes"][next(n for n in NODES if n != node)]) >= {"node", "kernel", "rdma", "nccl_env"}
