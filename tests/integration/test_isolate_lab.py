# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""isolate on three virtual machines, with MPI in the place of NCCL: a slow node is named, five runs of five, and nobody else.

Opt-in, since it boots virtual machines: GPUFABRIC_LAB=1 pytest -m lab tests/integration/test_isolate_lab.py
"""

from __future__ import annotations

import os
import random
import sys
import typing as t

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from lab_cluster import LabCluster  # noqa: E402  # beside this file, which is no package

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.environ.get("GPUFABRIC_LAB") != "1", reason="boots virtual machines: set GPUFABRIC_LAB=1"),
]

NODES = ("n1", "n2", "n3")
RUNS = 5
SEED = int(os.environ.get("GPUFABRIC_SEED", random.randrange(10_000)))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[LabCluster]:
    with LabCluster(tmp_path_factory.mktemp("isolate")).up(len(NODES)) as found:
        yield found


def accused(record: dict[str, t.Any]) -> set[str]:
    return {f["node"] for f in record["findings"] if f["severity"] == "error" and f["part"] == "isolate"}


def test_nobody_is_accused_where_all_are_well(cluster: LabCluster) -> None:
    assert accused(cluster.playbook("isolate")) == set()


@pytest.mark.parametrize("number", range(RUNS))
def test_a_slow_node_is_named(cluster: LabCluster, number: int) -> None:
    node = random.Random(f"{SEED} {number}").choice(NODES)
    with cluster.fault("rate-limit", node, "--rail", "0"):
        record = cluster.playbook("isolate")
    assert accused(record) == {node}, f"seed {SEED}: {[f for f in record['findings'] if f['part'] == 'isolate']}"
    for result in record["nodes"].values():
        for entry in result.get("isolate", {}).get("verdict", {}).get("accused", []):
            assert entry["ratio"] < 0.6 and entry["partners"] and entry["false_accusation"] <= 1e-3
