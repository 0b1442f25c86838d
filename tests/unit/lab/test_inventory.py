# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory, read back by Ansible itself, and the pinned keys."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import subprocess
import sys

import pytest

from lab import inventory, keys
from lab.plan import make_plan
from lab.remote import Endpoint

PLAN = make_plan(2, 2)
GROUP = inventory.Group("lab_base", {"of_all": 1})


@pytest.fixture
def written(tmp_path: pathlib.Path) -> pathlib.Path:
    run = tmp_path / "a run"
    run.mkdir()
    endpoints = {
        node.name: Endpoint(node.name, 2200 + node.number, keys.generate("x").algorithm_and_key, run / "id_ed25519")
        for node in PLAN.nodes
    }
    return inventory.write(run / "inventory", PLAN, endpoints, run / "known_hosts", GROUP)


def read_by_ansible(directory: pathlib.Path, home: pathlib.Path) -> dict[str, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-m", "ansible", "inventory", "-i", directory, "--list"],
        env={**os.environ, "ANSIBLE_HOME": str(home)},
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    )
    hosts: dict[str, dict[str, object]] = json.loads(done.stdout)["_meta"]["hostvars"]
    return hosts


def test_ansible_reads_hosts_and_the_committed_group_variables(written: pathlib.Path, tmp_path: pathlib.Path) -> None:
    hosts = read_by_ansible(written.parent, tmp_path)
    assert sorted(hosts) == ["n1", "n2"]
    assert hosts["n2"]["ansible_port"] == 2202
    assert hosts["n2"]["gpufabric_control_address"] == "10.76.0.2"
    assert hosts["n1"]["of_all"] == 1
    assert hosts["n2"]["rdma_allowed_drivers"] == ["mlx5_core", "rdma_rxe"]


def test_host_key_checking_stays_on_with_the_pinned_file_alone(written: pathlib.Path, tmp_path: pathlib.Path) -> None:
    words = shlex.split(str(read_by_ansible(written.parent, tmp_path)["n1"]["ansible_ssh_common_args"]))
    asked = subprocess.run(["ssh", "-G", *words, "n1"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert "stricthostkeychecking true" in asked
    assert f"userknownhostsfile {written.parents[1] / 'known_hosts'}" in [line.replace('"', "") for line in asked]
    assert "globalknownhostsfile /dev/null" in asked


def test_known_hosts_pins_every_node_on_its_port(written: pathlib.Path) -> None:
    lines = (written.parents[1] / "known_hosts").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["[127.0.0.1]:2201", "[127.0.0.1]:2202"]


def test_removing_leaves_nothing_and_may_be_repeated(written: pathlib.Path) -> None:
    inventory.remove(written.parent)
    inventory.remove(written.parent)
    assert not written.parent.exists()
    assert (inventory.COMMITTED_INVENTORY / "group_vars" / "all").is_dir()
