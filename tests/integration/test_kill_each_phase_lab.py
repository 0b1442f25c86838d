# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""site.yml is broken off at the start and in the middle of each of its roles; rollback.yml then leaves the nodes as they were.

Opt-in, since it boots virtual machines: GPUFABRIC_LAB=1 pytest -m lab tests/integration/test_kill_each_phase_lab.py
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.tests.fixtures.broken_off import break_off

from lab.cluster import Cluster
from lab.state import Settings

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.environ.get("GPUFABRIC_LAB") != "1", reason="boots virtual machines: set GPUFABRIC_LAB=1"),
]

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
NODES = ("n1", "n2")

#: within which guards take back what rollback.yml told them to, in seconds
GUARDS_S = 30

#: everything that a run changes on a node, or may leave on it
SNAPSHOT = (
    "find /etc -xdev ! -name '*.cache' ! -name mtab -printf '%p %y %m %u %l\n' | sort;"
    " find /etc -xdev -type f ! -name '*.cache' -print0 | sort -z | xargs -0 sha256sum;"
    " sysctl -a 2>/dev/null | grep -E '^(net[.]core[.](rmem|wmem|somaxconn|netdev_max|default_qdisc)|net[.]ipv4[.]tcp_(rmem|wmem|congestion|max_syn"
    "|tw_reuse|fin_timeout|mtu_probing|slow_start|timestamps)|net[.]ipv4[.]conf[.][^ ]*[.](rp_filter|arp_ignore|arp_announce)|kernel[.]numa_bal"
    "|vm[.]max_map|vm[.]zone_rec)' | grep -v stable_secret;"
    " cat /root/.ssh/* /home/*/.ssh/authorized_keys 2>/dev/null | sort; ls -A /run/gpufabric /var/lib/gpufabric 2>/dev/null;"
    " ls -A /root/.ansible_async 2>/dev/null; ps -eo args= | grep -E 'mpirun|orted|prted|gpufabric' | grep -v grep;"
    " systemctl list-units --plain --no-legend 'gpufabric*'"
)


@dataclasses.dataclass(frozen=True)
class Moment:
    """tag: the role; task: in whose heading to break off; number: the signal; delay_s: after the heading."""

    tag: str
    task: str
    number: signal.Signals
    delay_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.tag}-{self.number.name}-{self.task.replace(' ', '_')[:24]}"


MOMENTS = (
    Moment("kernel_tuning", "Profile | Set and read back every key", signal.SIGINT),
    Moment("kernel_tuning", "Profile | Set and read back every key", signal.SIGKILL, 2.0),
    Moment("rdma", "Read what RDMA software is there", signal.SIGKILL),
    Moment("rdma", "Load the RDMA modules now and at boot", signal.SIGINT, 1.5),
    Moment("nccl_env", "Resolve | Read the library", signal.SIGINT),
    Moment("nccl_env", "Write every file", signal.SIGKILL, 1.5),
    Moment("nccl_tests", "Make the run's key pair on the launcher", signal.SIGKILL, 1.5),
    Moment("nccl_tests", "Run the benchmark from the launcher", signal.SIGINT, 5.0),
)


@pytest.fixture(scope="module")
def cluster() -> t.Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="lab-kill-") as directory, Cluster(pathlib.Path(directory)) as cluster:
        cluster.up(Settings(nodes=len(NODES)))
        yield cluster


@pytest.fixture(scope="module")
def untouched(cluster: Cluster) -> dict[str, list[str]]:
    return snapshots(cluster)


def snapshots(cluster: Cluster) -> dict[str, list[str]]:
    return {node: cluster.run(node, SNAPSHOT, timeout_s=180).output.splitlines() for node in NODES}


def command(cluster: Cluster, results: pathlib.Path, playbook: str, *arguments: str) -> list[str]:
    program = str(pathlib.Path(sys.executable).with_name("ansible-playbook"))
    extra = json.dumps({"gpufabric_results_dir": str(results)})
    return [program, "-i", str(cluster.inventory), f"playbooks/{playbook}", "-e", extra, *arguments]


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_rollback_after_a_run_that_was_broken_off(
    cluster: Cluster, untouched: dict[str, list[str]], tmp_path: pathlib.Path, moment: Moment
) -> None:
    broken = command(cluster, tmp_path, "site.yml", "--tags", moment.tag)
    break_off(broken, REPOSITORY, moment.task, moment.number, moment.delay_s)
    rolled = subprocess.run(
        command(cluster, tmp_path, "rollback.yml"), cwd=REPOSITORY, capture_output=True, text=True, timeout=400
    )
    assert rolled.returncode == 0, rolled.stdout[-4000:] + rolled.stderr[-2000:]
    deadline = time.monotonic() + GUARDS_S
    while (now := snapshots(cluster)) != untouched and time.monotonic() < deadline:
        time.sleep(2)
    assert {node: sorted(set(now[node]) ^ set(untouched[node])) for node in NODES if now[node] != untouched[node]} == {}


def test_a_whole_run_and_a_rollback_leave_nothing(
    cluster: Cluster, untouched: dict[str, list[str]], tmp_path: pathlib.Path
) -> None:
    for playbook, arguments in (("site.yml", ["--skip-tags", "nccl_tests"]), ("rollback.yml", [])):
        done = subprocess.run(
            command(cluster, tmp_path, playbook, *arguments),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert snapshots(cluster) == untouched
