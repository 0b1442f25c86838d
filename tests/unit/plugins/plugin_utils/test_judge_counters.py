# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""judge_counters: only what moved counts, and each meaning is said once a port."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_counters import judge_counters


def node(**counters: t.Any) -> dict[str, t.Any]:
    return {"hcas": [{"name": "mlx5_2", "ports": [{"port": 1, "counters": counters}]}]}


def judge(before: dict[str, t.Any], after: dict[str, t.Any]) -> list[tuple[str, str, str]]:
    found = judge_counters({"n1": node(**before)}, {"n1": node(**after)}, {})
    assert all(f.evidence and f.cause and f.fix and f.node == "n1" for f in found)
    return [(f.id, f.severity, f.subject) for f in found]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"link_downed": 7}, {"link_downed": 7}, []),
        ({"link_downed": 7}, {"link_downed": 8}, [("hca_counters_fatal", "error", "mlx5_2 port 1")]),
        ({"link_downed": None}, {"link_downed": 8}, []),
        ({"link_downed": 7}, {"link_downed": None}, []),
        ({"link_downed": 7}, {"link_downed": 0}, []),
        ({}, {"link_downed": 8}, []),
        ({"port_xmit_data": 1}, {"port_xmit_data": 10**9}, []),
        ({"out_of_sequence": 5}, {"out_of_sequence": 15}, []),
        ({"out_of_sequence": 5}, {"out_of_sequence": 16}, [("hca_counters", "warning", "mlx5_2 port 1")]),
        (
            {"symbol_error": 0, "port_rcv_errors": 0},
            {"symbol_error": 1, "port_rcv_errors": 2},
            [("hca_counters", "warning", "mlx5_2 port 1")],
        ),
    ],
)
def test_moves(before: dict[str, t.Any], after: dict[str, t.Any], found: list[tuple[str, str, str]]) -> None:
    assert judge(before, after) == found


def test_only_compute_ports_and_nodes_seen_twice() -> None:
    moved = {"n1": node(link_downed=1), "n2": node(link_downed=1), "n3": node(link_downed=1)}
    still = {"n1": node(link_downed=0), "n2": node(link_downed=0)}
    found = judge_counters(still, moved, {"n1": ["mlx5_9:1"], "n2": ["mlx5_2:1"]})
    assert [f.node for f in found] == ["n2"]
    assert "link_downed +1" in found[0].evidence
