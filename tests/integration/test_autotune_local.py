# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""autotune.yml with the real Open MPI, two ranks on this machine over TCP: killed, gone on with, refused while another is at work."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import typing as t

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.study_lock import StudyLock
from tuned_study import REPOSITORY, kill_in_mid_study  # beside this file, which is no package

pytest.importorskip("optuna")

SETTINGS = {
    "autotune_sizes": ["16K"], "autotune_trials": 7, "autotune_minutes": 60, "autotune_iterations": 2, "autotune_warmup": 1,
    "autotune_check_collectives": ["all_gather"],
}  # fmt: skip


def mpi() -> tuple[str, str]:
    """(mpirun, a Python with mpi4py), or a skip that says which is missing."""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("Open MPI is not installed: apt-get install openmpi-bin python3-mpi4py")
    for python in (str(pathlib.Path(mpirun).with_name("python3")), "/usr/bin/python3", sys.executable):
        if pathlib.Path(python).exists():
            done = subprocess.run([python, "-c", "from mpi4py import MPI"], capture_output=True, timeout=60)
            if done.returncode == 0:
                return mpirun, python
    pytest.skip("no Python here imports mpi4py: apt-get install python3-mpi4py")


class Playbook:
    """autotune.yml on two names of this machine, with its results below *directory*."""

    def __init__(self, directory: pathlib.Path) -> None:
        mpirun, python = mpi()
        self.results = directory / "results"
        common = {
            "ansible_connection": "local", "ansible_python_interpreter": python, "gpufabric_become": False,
            "gpufabric_busy": "ignore", "gpufabric_lock": "ignore", "nccl_tests_backend": "mpi", "nccl_tests_mpirun": mpirun,
            "nccl_tests_python": python, "nccl_tests_install_mpi": False, "launch_trust_mode": "site",
        }  # fmt: skip
        inventory = directory / "hosts.json"
        inventory.write_text(json.dumps({"all": {"vars": common, "hosts": {"n1": {}, "n2": {}}}}))
        extra = {**SETTINGS, "gpufabric_gate": False, "gpufabric_results_dir": str(self.results)}
        program = str(pathlib.Path(sys.executable).with_name("ansible-playbook"))
        self.argv = [program, "-i", str(inventory), "playbooks/autotune.yml", "-e", json.dumps(extra)]

    def run(self) -> str:
        """What it printed. All of its findings are in the run record below results."""
        done = subprocess.run(self.argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
        return done.stdout

    def findings(self) -> dict[str, str]:
        """{id: evidence} of the last run's part."""
        record = json.loads((self.results / "latest" / "run.json").read_text())
        return {f["id"]: f["evidence"] for f in record["findings"] if f["part"] == "autotune"}


def test_a_study_on_this_machine(tmp_path: pathlib.Path) -> None:
    playbook = Playbook(tmp_path)
    kill_in_mid_study(playbook.argv, playbook.results, launches=2, timeout_s=600)
    printed = playbook.run()
    (path,) = (playbook.results / "autotune").glob("*/autotune.json")
    record: dict[str, t.Any] = json.loads(path.read_text())
    assert record["problem"] == "" and record["transport"] == "mpi_tcp" and record["nodes"] == ["n1", "n2"]
    assert len(record["trials"]) == SETTINGS["autotune_trials"] and record["trials"][0]["settings"] == {}
    assert all(trial["score"] for trial in record["trials"])
    assert "of 7 trials are done" in printed and "0 of 7 trials" not in printed
    assert {len(values) for values in record["result"]["samples"].values()} == {5}
    assert set(playbook.findings()) <= {"autotune_gain", "autotune_no_gain"} and playbook.findings()

    (lock,) = (playbook.results / "autotune").glob("*.lock")
    other = StudyLock(lock)
    playbook.run()
    other.release()
    assert "another autotune of these nodes is at work" in playbook.findings()["autotune_unfinished"]
