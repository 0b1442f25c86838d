# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""site.yml on a simulated node is broken off in each role that changes files; rollback.yml then leaves the node as it was.

Opt-in, since it takes minutes: GPUFABRIC_SLOW=1 pytest -m slow tests/integration/test_kill_each_phase.py
The same on real kernels, with processes, keys and leases: test_kill_each_phase_lab.py
"""

from __future__ import annotations

import json
import os
import pathlib
import signal

import pytest
from ansible_collections.gpufabric.cluster.tests.fixtures import local_playbook, simulated_nodes
from ansible_collections.gpufabric.cluster.tests.fixtures.broken_off import break_off

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("GPUFABRIC_SLOW") != "1", reason="takes minutes: set GPUFABRIC_SLOW=1"),
]

NODE = simulated_nodes.node_name(1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize(
    "task",
    [
        "Take the node, or learn who holds it",
        "Profile | Set and read back every key",
        "Load the RDMA modules now and at boot",
        "Write every file",
        "Prove | Read what ranks see",
    ],
)
@pytest.mark.parametrize("delay_s", [0.0, 0.4])
def test_rollback_after_a_run_that_was_broken_off(
    tmp_path: pathlib.Path, task: str, number: signal.Signals, delay_s: float
) -> None:
    (tmp_path / "hosts.json").write_text(json.dumps(simulated_nodes.build_nodes(tmp_path, 1)))
    before = simulated_nodes.tree(tmp_path / NODE)
    argv = local_playbook.command(
        tmp_path, str(local_playbook.ROOT / "playbooks/site.yml"), "--skip-tags", "nccl_tests"
    )
    break_off(argv, local_playbook.ROOT, task, number, delay_s, local_playbook.environment(tmp_path))
    rolled = local_playbook.run(tmp_path, "rollback.yml")
    assert rolled.rc == 0, rolled.out[-3000:]
    after = simulated_nodes.tree(tmp_path / NODE)
    assert {path for path in after.keys() | before.keys() if after.get(path) != before.get(path)} == set()
