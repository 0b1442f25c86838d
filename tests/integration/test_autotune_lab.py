# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""autotune on two virtual machines, over Open MPI's TCP settings: finds a planted better one, survives SIGKILL, leaves nothing.

Planted: Open MPI's parameter file on both nodes says a fragment and socket buffers of 2 KiB, so that every message is cut into
hundreds of pieces. What the file says is in force, and whatever takes that away is several times as fast.

Opt-in, since it boots virtual machines: GPUFABRIC_LAB=1 pytest -m lab tests/integration/test_autotune_lab.py
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
import typing as t

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from lab_cluster import LabCluster  # noqa: E402  # beside this file, which is no package
from tuned_study import kill_in_mid_study, launches_of  # noqa: E402

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.environ.get("GPUFABRIC_LAB") != "1", reason="boots virtual machines: set GPUFABRIC_LAB=1"),
]

NODES = ("n1", "n2")
PLANTED = {"btl_tcp_max_send_size": "2048", "btl_tcp_sndbuf": "2048", "btl_tcp_rcvbuf": "2048"}
SETTINGS: dict[str, t.Any] = {
    "nccl_tests_backend": "mpi",
    "autotune_sizes": ["256K"],
    "autotune_trials": 9,
    "autotune_minutes": 20,
    "autotune_iterations": 4,
    "autotune_warmup": 1,
    "autotune_timeout_s": 90,
    "autotune_check_collectives": ["all_gather"],
}
#: what a launch puts on a node: processes, keys, leases and their notes, shared memory. Brackets keep pgrep from finding itself
REMAINS = (
    "pgrep -af '[n]ode_tool|[o]rted|[p]rted'; cat ~/.ssh/* 2>/dev/null | sort; "
    "ls -A /run/gpufabric 2>/dev/null | grep -v run_lock.json; ls -A /var/lib/gpufabric/leases 2>/dev/null; ls -A /dev/shm | grep gpufabric; true"
)
GONE_S = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[LabCluster]:
    with LabCluster(tmp_path_factory.mktemp("autotune")).up(len(NODES)) as found:
        yield found


def on_every_node(cluster: LabCluster, command: str) -> dict[str, str]:
    """{node: what the command printed}, as root."""
    return {node: cluster.lab("ssh", node, command) for node in NODES}


def record_of(cluster: LabCluster) -> dict[str, t.Any]:
    (path,) = (cluster.results / "autotune").glob("*/autotune.json")
    found: dict[str, t.Any] = json.loads(path.read_text())
    return found


def test_a_planted_better_setting_is_found_after_a_kill_and_nothing_stays(cluster: LabCluster) -> None:
    lines = "".join(f"{name} = {value}\\n" for name, value in PLANTED.items())
    on_every_node(cluster, f"mkdir -p ~/.openmpi && printf '{lines}' > ~/.openmpi/mca-params.conf")
    clean = on_every_node(cluster, REMAINS)
    extra = {"gpufabric_gate": False, "gpufabric_results_dir": str(cluster.results), **SETTINGS}
    program = str(pathlib.Path(sys.executable).with_name("ansible-playbook"))
    argv = [program, "-i", str(cluster.directory / "inventory"), "playbooks/autotune.yml", "-e", json.dumps(extra)]
    kill_in_mid_study(argv, cluster.results, launches=3, timeout_s=400)
    died = time.monotonic()
    while (remains := on_every_node(cluster, REMAINS)) != clean:
        assert time.monotonic() - died < GONE_S, f"left behind after {GONE_S:.0f} s: {remains}, at first {clean}"
        time.sleep(5)
    before = launches_of(cluster.results)

    run = cluster.playbook("autotune", **SETTINGS)

    record = record_of(cluster)
    assert record["problem"] == "" and len(record["trials"]) == SETTINGS["autotune_trials"]
    assert before >= 3 and record["starts"]["current"] == PLANTED
    assert record["result"]["better"], record["result"]["text"]
    assert record["result"]["comparisons"]["current"]["low"] > 1.3
    assert record["result"]["best"].get("btl_tcp_max_send_size") != PLANTED["btl_tcp_max_send_size"]
    assert record["profile"]["file"] == "openmpi-mca-params.conf"
    assert [f["id"] for f in run["findings"] if f["part"] == "autotune"] == ["autotune_gain"]
    assert on_every_node(cluster, REMAINS) == clean
