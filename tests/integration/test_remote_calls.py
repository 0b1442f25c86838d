# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which modules reach a node: kernel_tuning alone is one call, what it read of the node is read by nobody else in the run, and a node
that cannot answer that call is told apart as it would be by node_info."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest
from ansible_collections.gpufabric.cluster.tests.fixtures import local_playbook, simulated_nodes
from ansible_collections.gpufabric.cluster.tests.fixtures.local_playbook import ROOT, Run

IDLE, BUSY, GARBAGE, GONE, NO_SUDO = (simulated_nodes.node_name(number) for number in range(1, 6))

#: an interpreter that notes which module it is given
NOTING = """#!/bin/sh
here=$(dirname "$0")
cat > "$here/sent"
grep -a -o -m 1 'plugins\\.modules\\.[a-z_]*' "$here/sent" | cut -d . -f 3 >> "$here/modules"
exec {python} "$@" < "$here/sent"
"""

NODES = {"hosts": "all:!localhost", "gather_facts": False, "ignore_unreachable": True}
NEVER = "inventory_hostname == 'nobody'"
PLAYBOOK = [
    {**NODES, "roles": ["gpufabric.cluster.kernel_tuning"]},
    {
        **NODES,
        "tasks": [
            {"ansible.builtin.include_role": {"name": "gpufabric.cluster.rdma", "tasks_from": "verify"}},
            # What is imported under a condition that does not hold must leave alone what is known.
            {"ansible.builtin.import_role": {"name": "gpufabric.cluster.kernel_tuning"}, "when": NEVER},
            {
                "ansible.builtin.import_role": {"name": "gpufabric.cluster.roce_qos", "tasks_from": "verify"},
                "when": NEVER,
            },
        ],
    },
    {"import_playbook": str(ROOT / "playbooks/report.yml")},
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("calls")
    inventory = simulated_nodes.build_nodes(directory, 5, simulated_nodes.Plan(busy=[2], ill={3: "garbage"}))
    hosts = inventory["all"]["hosts"]
    for name in (IDLE, BUSY, NO_SUDO):
        interpreter = directory / name / ".tools/noting"
        interpreter.write_text(NOTING.format(python=sys.executable))
        interpreter.chmod(0o755)
        hosts[name]["ansible_python_interpreter"] = str(interpreter)
    # nobody listens there
    hosts[GONE].update(ansible_connection="ssh", ansible_host="127.0.0.1", ansible_port=1)
    hosts[NO_SUDO].update(kernel_tuning_become=True, ansible_become_user="nobody", ansible_become_exe="/bin/false")
    (directory / "hosts.json").write_text(json.dumps(inventory))
    (directory / "mine.yml").write_text(json.dumps(PLAYBOOK))
    return directory


@pytest.fixture(scope="module")
def run(directory: pathlib.Path) -> Run:
    return local_playbook.run(directory, str(directory / "mine.yml"), gpufabric_gate=False)


def modules(directory: pathlib.Path, node: str) -> list[str]:
    return (directory / node / ".tools/modules").read_text().split()


def test_kernel_tuning_is_one_call_and_no_later_role_asks_again(directory: pathlib.Path, run: Run) -> None:
    assert run.rc == 0, run.out[-3000:]
    assert {node: modules(directory, node) for node in (IDLE, BUSY)} == dict.fromkeys(
        (IDLE, BUSY), ["sysctl_profile", "hca_info"]
    )
    for node in (IDLE, BUSY):
        parts = run.record["nodes"][node]
        assert parts["node"]["observed"]["hostname"] == node and "observed" not in parts["kernel"]


def test_the_call_itself_spares_a_busy_node(directory: pathlib.Path, run: Run) -> None:
    drop_in = simulated_nodes.SYSCTL_HOME.lstrip("/")
    assert (directory / IDLE / drop_in).exists() and not (directory / BUSY / drop_in).exists()
    assert "4711" in run.record["nodes"][BUSY]["kernel"]["held"]
    assert {"node_busy", "kernel_left_alone"} <= {f["id"] for f in run.record["findings"] if f["node"] == BUSY}


def test_nodes_without_an_answer_are_named_once_and_left(run: Run) -> None:
    silent = [(id_, node) for id_, node, _subject in run.errors() if node in (GARBAGE, GONE)]
    assert sorted(silent) == [("node_unreachable", GONE), ("node_unusable", GARBAGE)]
    assert run.record["nodes"][GARBAGE] == run.record["nodes"][GONE] == {}


def test_a_node_that_only_the_role_cannot_work_on_is_asked_what_it_is(directory: pathlib.Path, run: Run) -> None:
    """Becoming root fails before the module runs, which says nothing about the node."""
    assert modules(directory, NO_SUDO) == ["node_info", "hca_info"]
    assert [id_ for id_, node, _subject in run.errors() if node == NO_SUDO] == ["kernel_not_observed"]


def test_a_passing_batch_is_kept_and_its_nodes_are_let_go(directory: pathlib.Path, run: Run) -> None:
    """What a batch without an error skips, the canary's rollback, takes nothing from the run either."""
    again = local_playbook.run(directory, "kernel.yml", "--limit", f"{IDLE},{BUSY}", gpufabric_gate=False)
    assert again.rc == 0 and again.errors() == [], again.out[-3000:]
    assert modules(directory, IDLE)[2:] == ["run_lock", "sysctl_profile", "run_lock"]
    assert not (directory / IDLE / "run/gpufabric/run_lock.json").exists()
