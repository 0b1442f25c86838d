# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible is killed while benchmarks go on: what they have measured is kept on the controller, and the nodes are left clean."""

from __future__ import annotations

import json
import os
import pathlib
import stat
import subprocess
import time

from ansible_collections.gpufabric.cluster.plugins.module_utils import _run_processes
from ansible_collections.gpufabric.cluster.plugins.module_utils._lease import Lease
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.tests.integration.local_cluster import ROOT, LocalCluster

#: for anything that is waited for, in seconds: only a failure takes so long
LONG_S = 300.0


def wait_for(what: str, there: object, seconds: float = LONG_S) -> None:
    assert callable(there)
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.2)


def test_what_was_measured_outlives_a_killed_controller(tmp_path: pathlib.Path) -> None:
    cluster = LocalCluster(tmp_path, nccl_tests_repeats=1000)
    with (tmp_path / "printed").open("wb") as printed:
        ansible = subprocess.Popen(
            cluster.command("nccl_tests"), cwd=ROOT, stdout=printed, stderr=printed, start_new_session=True
        )
    try:

        def kept() -> list[str]:
            return [
                line for path in cluster.results.glob("*.unfinished.jsonl") for line in path.read_text().splitlines()
            ]

        wait_for("a third line", lambda: len(kept()) >= 3 or ansible.poll() is not None)
        assert ansible.poll() is None, (tmp_path / "printed").read_text()[-3000:]
    finally:
        ansible.kill()
        ansible.wait(LONG_S)
    (path,) = cluster.results.glob("*.unfinished.jsonl")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # The last line may be half of one: the worker process goes on until it sees that Ansible is gone.
    about, *runs = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    assert (about["launcher"], about["planned"]) == ("n1", 1000) and "before this run was judged" in about["why"]
    assert len(runs) >= 2 and all(len(run["rows"]) == 4 and run["failure"] is None for run in runs[:2])
    mark = next(argument for argument in runs[0]["argv"] if argument.startswith(f"{_run_processes.MARKER}="))
    lease = Lease(RootedFs("/"), mark.partition("=")[2])
    wait_for("the end of the lease", lambda: not os.path.exists(lease.directory))
    # The guard that took the lease back is the last of them to end.
    wait_for("the last process's end", lambda: not _run_processes.of_run(RootedFs("/"), lease.run_id, lease.directory))
