# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""diagnose on three virtual machines: each injected fault is named with its node and rail, and no other node is.

Opt-in, since it boots virtual machines: GPUFABRIC_LAB=1 pytest -m lab tests/integration/test_diagnose_lab.py
GPUFABRIC_SEED repeats an earlier choice of nodes and rails.
"""

from __future__ import annotations

import os
import random
import sys
import time
import typing as t

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from lab_cluster import LabCluster  # noqa: E402  # beside this file, which is no package

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.environ.get("GPUFABRIC_LAB") != "1", reason="boots virtual machines: set GPUFABRIC_LAB=1"),
]

NODES = ("n1", "n2", "n3")
SEED = int(os.environ.get("GPUFABRIC_SEED", random.randrange(10_000)))
#: of one diagnose of three emulated nodes, in seconds, on a quiet computer
LIMIT_S = 180

#: kind: (options of the injection, whether a rail is hit, ids of which one must name it)
FAULTS: dict[str, tuple[tuple[str, ...], bool, set[str]]] = {
    "rate-limit": ((), True, {"mesh_slow"}),
    "loss": ((), True, {"mesh_loss"}),
    "link-down": ((), True, {"hca_port_down"}),
    "roce-blocked": ((), True, {"mesh_rdma_blocked"}),
    "roce-blocked on the node": (("--at", "node"), True, {"mesh_rdma_blocked"}),
    "tcp-blocked": ((), False, {"mesh_tcp_blocked"}),
    "mtu-mismatch": ((), True, {"mesh_mtu", "hca_mtu"}),
    "mtu-black-hole": ((), True, {"mesh_mtu"}),
    "switch-port-down": ((), True, {"mesh_unreachable"}),
    "delay": ((), True, {"mesh_latency"}),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[LabCluster]:
    with LabCluster(tmp_path_factory.mktemp("diagnose")).up(len(NODES)) as found:
        yield found


def errors(record: dict[str, t.Any]) -> list[tuple[str, str, str]]:
    return [(f["node"], f["id"], f["subject"]) for f in record["findings"] if f["severity"] == "error"]


def test_a_healthy_cluster_has_no_error(cluster: LabCluster) -> None:
    began = time.monotonic()
    record = cluster.playbook("diagnose")
    took = time.monotonic() - began
    print(f"diagnose took {took:.0f} s")
    assert errors(record) == []
    assert not [f for f in record["findings"] if f["part"] == "mesh" and f["severity"] != "notice"]
    if os.getloadavg()[0] < (os.cpu_count() or 1):
        assert took < LIMIT_S


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_and_nobody_else_is(cluster: LabCluster, name: str) -> None:
    options, on_rail, ids = FAULTS[name]
    chance = random.Random(f"{SEED} {name}")
    node, rail = chance.choice(NODES), chance.randrange(2)
    rails = ("--rail", str(rail)) if on_rail else ()
    with cluster.fault(name.split()[0], node, *rails, *options):
        record = cluster.playbook("diagnose", diagnose_parts=["rdma", "state", "mesh"])
    found = errors(record)
    about = f"seed {SEED}: {name} on {node} rail {rail}: {found}"
    assert {accused for accused, _, _ in found} == {node}, about
    assert {id_ for _, id_, _ in found} & ids, about
    subject = f"mlx5_{rail} port 1" if on_rail else "TCP high ports"
    assert {subject} == {what for _, id_, what in found if id_ in ids}, about
    # warnings may say more of the same node, and nothing of others
    others = {f["node"] for f in record["findings"] if f["severity"] == "warning"} - {node, ""}
    assert not others, about
