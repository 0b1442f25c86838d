# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks over nodes that are all this machine, each below a root of its own, with programs that stand for mpirun and nccl-tests."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import typing as t

from ansible_collections.gpufabric.cluster.tests.fixtures.build_fake_node import build

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMS = ROOT / "tests/fixtures/nccl_programs"

#: one machine under several names, with one GPU
NODE = {
    "files": {
        "/proc/sys/kernel/random/boot_id": "00000000-0000-4000-8000-000000000001\n",
        "/proc/sys/kernel/hostname": f"{os.uname().nodename}\n",
    },
    "programs": {
        "ip": {"stdout": json.dumps([{"ifname": "eth0", "addr_info": [{"local": "192.0.2.1", "prefixlen": 24}]}])},
        "nvidia-smi": {
            "when": "--query-gpu=*",
            "stdout": "0, NVIDIA H200, GPU-00000000-0000-0000-0000-000000000000, 00000000:1A:00.0, 580.65.06, 143771\n",
        },
    },
}
SETTINGS = {
    "nccl_tests_directory": str(PROGRAMS),
    "nccl_tests_mpirun": str(PROGRAMS / "mpirun"),
    "nccl_tests_collectives": ["all_reduce"],
    "nccl_tests_stages": ["cluster"],
    "nccl_tests_gpus_per_node": 1,
    "nccl_tests_min_bytes": "1M",
    "nccl_tests_max_bytes": "64M",
    "nccl_tests_line_rate_gbps": 400,
    "nccl_tests_poll_s": 0.3,
}


class LocalCluster:
    """directory: for the nodes' roots, the inventory and results/."""

    def __init__(self, directory: pathlib.Path, nodes: t.Sequence[str] = ("n1", "n2"), **variables: t.Any) -> None:
        self.directory = directory
        self.results = directory / "results"
        hosts = {}
        for name in nodes:
            root = directory / "nodes" / name
            build(str(root), NODE)
            hosts[name] = {"gpufabric_root": str(root)}
        common = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "gpufabric_become": False,
            "gpufabric_results_dir": str(self.results),
            **SETTINGS,
            **variables,
        }
        self.inventory = directory / "hosts.json"
        self.inventory.write_text(json.dumps({"all": {"hosts": hosts, "vars": common}}))

    def command(self, playbook: str) -> list[str]:
        """playbook: the name of one of the collection's, or a file's path."""
        program = str(pathlib.Path(sys.executable).with_name("ansible-playbook"))
        path = playbook if playbook.endswith(".yml") else f"playbooks/{playbook}.yml"
        return [program, "-i", str(self.inventory), path]

    def playbook(self, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(name), cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600
        )

    def record(self) -> dict[str, t.Any]:
        record: dict[str, t.Any] = json.loads((self.results / "latest/run.json").read_text())
        return record
