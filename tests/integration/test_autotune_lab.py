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
import signal
import subprocess
import sys
import time
import typing as t

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from lab_cluster import REPOSITORY, LabCluster  # noqa: E402  # beside this file, which is no package

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.environ.get("GPUFABRIC_LAB") != "1", reason="boots virtual machines: set GPUFABRIC_LAB=1"),
]

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
    "pgrep -af '[n]ode_tool|[o]rted|[p]rted'; cat ~/.ssh/* /root/.ssh/* 2>/dev/null | sort; "
    "ls -A /run/gpufabric 2>/dev/null | grep -v run_lock.json; ls -A /var/lib/gpufabric/leases 2>/dev/null; ls -A /dev/shm | grep gpufabric; true"
)
GONE_S = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[LabCluster]:
    with LabCluster(tmp_path_factory.mktemp("autotune")).up(2) as found:
        yield found


def on_every_node(cluster: LabCluster, command: str) -> dict[str, str]:
    """{node: what the command printed}, by Ansible, as root."""
    argv = [
        str(pathlib.Path(sys.executable).parent / "ansible"),
        "-i",
        str(cluster.directory / "inventory"),
        "all:!localhost",
    ]
    argv += ["-b", "-m", "ansible.builtin.shell", "-a", command, "--tree", str(cluster.directory / "said")]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = {}
    for path in (cluster.directory / "said").iterdir():
        found[path.name] = str(json.loads(path.read_text())["stdout"])
    return found


def record_of(cluster: LabCluster) -> dict[str, t.Any]:
    (path,) = (cluster.results / "autotune").glob("*/autotune.json")
    found: dict[str, t.Any] = json.loads(path.read_text())
    return found


def trials_on_disk(cluster: LabCluster) -> int:
    """Launches that Optuna's study knows of, read beside a process that writes to it."""
    import sqlite3

    paths = list((cluster.results / "autotune").glob("*/study.db"))
    if not paths:
        return 0
    with sqlite3.connect(f"file:{paths[0]}?mode=ro", uri=True, timeout=10) as database:
        try:
            rows = database.execute("select count(*) from trial_user_attributes where key = 'outcome'").fetchone()
        except sqlite3.OperationalError:  # the tables are not there yet
            return 0
    return int(rows[0])


def killed_in_mid_study(cluster: LabCluster, trials: int) -> None:
    """Start the playbook, and SIGKILL ansible-playbook once so many trials are on disk."""
    extra = {"gpufabric_gate": False, "gpufabric_results_dir": str(cluster.results), **SETTINGS}
    argv = [str(pathlib.Path(sys.executable).parent / "ansible-playbook"), "-i", str(cluster.directory / "inventory")]
    process = subprocess.Popen(
        [*argv, "playbooks/autotune.yml", "-e", json.dumps(extra)],
        cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 400
    while trials_on_disk(cluster) < trials and time.monotonic() < deadline and process.poll() is None:
        time.sleep(1)
    assert process.poll() is None, "it ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert trials_on_disk(cluster) >= trials


def test_a_planted_better_setting_is_found_after_a_kill_and_nothing_stays(cluster: LabCluster) -> None:
    lines = "\\n".join(f"{name} = {value}" for name, value in PLANTED.items())
    files = "/etc/openmpi/openmpi-mca-params.conf"
    on_every_node(cluster, f"mkdir -p /etc/openmpi && printf '{lines}\\n' > {files}")
    clean = on_every_node(cluster, REMAINS)
    killed_in_mid_study(cluster, trials=3)
    died = time.monotonic()
    while (remains := on_every_node(cluster, REMAINS)) != clean:
        assert time.monotonic() - died < GONE_S, f"left behind after {GONE_S:.0f} s: {remains}, at first {clean}"
        time.sleep(5)
    before = trials_on_disk(cluster)

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
