# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole playbooks on simulated nodes: what a run costs a node, that rollback leaves nothing, and that two runs do not meet.

site.yml runs with the network cut, and verify.yml as an unprivileged user, where this process may do so.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import tempfile
import time
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.tests.fixtures import local_playbook, simulated_nodes
from ansible_collections.gpufabric.cluster.tests.fixtures.local_playbook import Run

#: tasks a node that site.yml and verify.yml may cost, the skipped ones included
SITE_BUDGET = 40
VERIFY_BUDGET = 12

#: a user without any rights, whatever its number is called here
NOBODY = 65534

IDLE, BUSY = "sim0001", "sim0002"
NODES = (IDLE, BUSY)

#: what makes a benchmark possible as far as this machine goes: programs that stand for nccl-tests and mpirun
MEASURING = {
    "nccl_tests_directory": str(local_playbook.PROGRAMS),
    "nccl_tests_mpirun": str(local_playbook.PROGRAMS / "mpirun"),
    "nccl_tests_backend": "nccl",
    "gpufabric_gate": False,
}


@pytest.fixture(scope="module")
def fleet() -> t.Iterator[pathlib.Path]:
    """An idle node and a busy one, as installed, where another user can read them."""
    with tempfile.TemporaryDirectory(prefix="simulated-") as temporary:
        directory = pathlib.Path(temporary)
        directory.chmod(0o755)
        build(directory)
        yield directory


@pytest.fixture
def unprivileged(fleet: pathlib.Path) -> pathlib.Path:
    """A directory of nobody's own for what a run writes on the controller, with the fleet's inventory."""
    directory = fleet / "unprivileged"
    directory.mkdir()
    (directory / "hosts.json").write_text((fleet / "hosts.json").read_text())
    if os.geteuid() == 0:
        os.chown(directory, NOBODY, NOBODY)
    return directory


def build(directory: pathlib.Path) -> None:
    inventory = simulated_nodes.build_nodes(directory, len(NODES), simulated_nodes.Plan(busy=[2]))
    (directory / "hosts.json").write_text(json.dumps(inventory))


@pytest.fixture(scope="module")
def before(fleet: pathlib.Path) -> dict[str, dict[str, str]]:
    return trees(fleet)


@pytest.fixture(scope="module")
def site(fleet: pathlib.Path, before: dict[str, dict[str, str]]) -> Run:
    return local_playbook.run(fleet, "site.yml", offline=local_playbook.can_cut_the_network(), **MEASURING)


def trees(fleet: pathlib.Path) -> dict[str, dict[str, str]]:
    return {node: simulated_nodes.tree(fleet / node) for node in NODES}


def lock_by_somebody(fleet: pathlib.Path, node: str) -> pathlib.Path:
    """The lock of a run on another controller, and a lease of it, so that it lives however slow this machine is."""
    holder = {
        "run_id": "20260101T120000Z-aaaa",
        "user": "ann",
        "host": "desk1",
        "controller": "another",
        "since": "noon",
    }
    directory = fleet / node / "run/gpufabric"
    (directory / "a-lease").mkdir(parents=True)
    (directory / "a-lease/alive").write_text("3600\n")
    (directory / "run_lock.json").write_text(json.dumps({**holder, "process": "1 1", "renewed": time.monotonic()}))
    return directory


def test_a_run_leaves_nodes_to_the_run_that_holds_one_of_them(
    fleet: pathlib.Path, before: dict[str, dict[str, str]]
) -> None:
    lock = lock_by_somebody(fleet, BUSY)
    refused = local_playbook.run(fleet, "kernel.yml", gpufabric_serial="100%")
    shutil.rmtree(lock)
    assert refused.rc == 2
    [finding] = [f for f in refused.record["findings"] if f["severity"] == "error"]
    assert (finding["id"], finding["node"]) == ("run_locked", BUSY)
    assert "ann on desk1" in finding["evidence"] and "since noon" in finding["evidence"]
    # The free node was taken, and nothing else was done to it; the lock of a run whose process is gone counts for nothing.
    shutil.rmtree(fleet / IDLE / "run/gpufabric")
    assert trees(fleet) == before


def test_site_changes_the_idle_node_and_spares_the_busy_one(
    fleet: pathlib.Path, before: dict[str, dict[str, str]], site: Run
) -> None:
    after = trees(fleet)
    assert site.rc == 0 and after[BUSY] == before[BUSY], site.out[-3000:]
    written = after[IDLE].keys() - before[IDLE].keys()
    assert {"etc/nccl.conf", "etc/sysctl.d/99-zz-gpufabric.conf", "etc/modules-load.d/gpufabric-rdma.conf"} <= written
    # The one idle node has nobody to exchange messages with.
    assert site.errors() == [("benchmark_not_run", "", "benchmark")]


def test_site_costs_a_node_no_more_tasks_than_stated(site: Run) -> None:
    assert {node: site.tasks(node) for node in NODES if site.tasks(node) > SITE_BUDGET} == {}, site.recap


def test_verify_needs_no_root_changes_nothing_and_costs_no_more_tasks_than_stated(
    fleet: pathlib.Path, site: Run, unprivileged: pathlib.Path
) -> None:
    earlier = trees(fleet)
    drop = local_playbook.can_give_up_root()
    verified = local_playbook.run(unprivileged, "verify.yml", unprivileged=drop, gpufabric_gate=False)
    assert trees(fleet) == earlier
    assert {node for _id, node, _subject in verified.errors()} == {BUSY}, verified.errors()
    assert {node: verified.tasks(node) for node in NODES if verified.tasks(node) > VERIFY_BUDGET} == {}, verified.recap


def test_a_part_of_verify_reads_the_nodes_all_the_same(fleet: pathlib.Path, site: Run) -> None:
    """What a role depends on runs once, and must not be left to a role that the tags leave out."""
    part = local_playbook.run(fleet, "verify.yml", "--tags", "rdma", gpufabric_gate=False)
    assert "node_unreachable" not in {id_ for id_, _node, _subject in part.errors()}, part.errors()


def test_rollback_gives_everything_back(fleet: pathlib.Path, before: dict[str, dict[str, str]], site: Run) -> None:
    first = local_playbook.run(fleet, "rollback.yml")
    assert first.rc == 0 and first.recap[IDLE]["changed"] > 0, first.out[-3000:]
    assert {f["id"] for f in first.record["findings"] if f["node"] == BUSY} == {"node_busy", "rollback_held"}
    assert trees(fleet) == before


def test_results_with_addresses_are_nobody_elses(fleet: pathlib.Path, site: Run) -> None:
    results = fleet / "results"
    modes = {
        str(path.relative_to(results)): path.stat().st_mode & 0o777
        for path in results.rglob("*")
        if not path.is_symlink()
    }
    assert results.stat().st_mode & 0o777 == 0o700 and len(modes) >= 5
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}
