# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Counters: only what rose between two readings of a compute port counts, and each meaning is said once a port."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_observe import observe_rdma
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_sysfs import moved_counters
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_counters import judge_counters
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_node import FakeNode


def read(node: FakeNode) -> dict[str, t.Any]:
    fs = RootedFs(node.root)
    return observe_rdma(fs, Tools(fs))


def judge(path: pathlib.Path, before: t.Mapping[str, str], after: t.Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Findings about a compute port and a front-end port whose counters move alike."""
    node = FakeNode(path).add_hca("mlx5_2", lid=1, sm_lid=1, counters=before)
    node.add_hca("mlx5_9", netdev="eth0", rate="100 Gb/sec (2X HDR)", counters=before, board_id="TST_0000000100")
    first = read(node)["hcas"]
    for hca in ("mlx5_2", "mlx5_9"):
        for name, value in after.items():
            node.write(f"/sys/class/infiniband/{hca}/ports/1/{name}", f"{value}\n")
    second = read(node)
    found = judge_counters(
        {"n1": {"observed": {**second, "moved": moved_counters(first, second["hcas"])}}, "n2": {}}, {}
    )
    assert all(f.evidence and f.cause and f.fix and f.node == "n1" for f in found)
    return [(f.id, f.severity, f.subject) for f in found]


FATAL = [("hca_counters_fatal", "error", "mlx5_2 port 1")]
LOSSY = [("hca_counters", "warning", "mlx5_2 port 1")]


@pytest.mark.parametrize(
    ("name", "before", "after", "found"),
    [
        ("counters/link_downed", "7", "7", []),
        ("counters/link_downed", "7", "8", FATAL),
        ("counters/link_downed", "N/A (no PMA)", "8", []),
        ("counters/link_downed", "7", "N/A (no PMA)", []),
        ("counters/link_downed", "7", "0", []),
        ("counters/port_xmit_data", "1", "1000000000", []),
        ("counters/symbol_error", "0", "1", LOSSY),
        ("hw_counters/out_of_sequence", "5", "15", []),
        ("hw_counters/out_of_sequence", "5", "16", LOSSY),
        ("hw_counters/retry_exceeded_err", "0", "1", FATAL),
    ],
)
def test_one_counter(
    tmp_path: pathlib.Path, name: str, before: str, after: str, found: list[tuple[str, str, str]]
) -> None:
    assert judge(tmp_path, {name: before}, {name: after}) == found


def test_counters_of_one_meaning_are_one_finding(tmp_path: pathlib.Path) -> None:
    before = {"counters/symbol_error": "0", "counters/port_rcv_errors": "3"}
    assert judge(tmp_path, before, {"counters/symbol_error": "9", "counters/port_rcv_errors": "4"}) == LOSSY


def test_counter_that_was_not_there_before(tmp_path: pathlib.Path) -> None:
    assert judge(tmp_path, {}, {"counters/link_downed": "8"}) == []
