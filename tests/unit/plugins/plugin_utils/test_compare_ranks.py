# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ranks printed, against what was resolved for their hosts."""

from __future__ import annotations

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_ranks import (
    compare_rank_environments,
    compare_seen,
)

EXPECTED = {"n1": {"NCCL_IB_HCA": "=mlx5_0:1", "NCCL_DEBUG": "WARN"}, "n2": {"NCCL_IB_HCA": "=mlx5_4:1"}}


def test_ranks_that_agree_or_leave_it_to_nccl_conf() -> None:
    ranks = [
        {"rank": 0, "host": "n1", "environ": {"NCCL_IB_HCA": "=mlx5_0:1", "PATH": "/bin", "NCCL_DEBUG": "INFO"}},
        {"rank": 1, "host": "n2", "environ": {}},
    ]
    assert compare_rank_environments(ranks, EXPECTED) == []


def test_a_submit_nodes_value_on_other_nodes() -> None:
    """mpirun -x NCCL_IB_HCA carries n1's list to all."""
    ranks = [{"rank": r, "host": f"n{r // 2 + 1}", "environ": {"NCCL_IB_HCA": "=mlx5_0:1"}} for r in range(4)]
    (finding,) = compare_rank_environments(ranks, EXPECTED)
    assert (finding.id, finding.severity, finding.node) == ("nccl_rank_differs", "error", "n2")
    assert finding.evidence.startswith("ranks 2, 3 have NCCL_IB_HCA==mlx5_0:1")


def test_a_variable_that_nobody_resolved() -> None:
    (finding,) = compare_rank_environments([{"rank": 0, "host": "n1", "environ": {"NCCL_ALGO": "Tree"}}], EXPECTED)
    assert (finding.id, finding.severity, finding.expected) == ("nccl_rank_extra", "warning", "no NCCL_ALGO")


def test_what_nccl_says_itself() -> None:
    seen = {"NCCL_IB_HCA": "mlx5_0", "NCCL_DEBUG": "INFO", "NCCL_ALGO": "Tree"}
    (finding,) = compare_seen("n1", seen, EXPECTED["n1"], "its log")
    assert finding.subject == "NCCL_IB_HCA" and finding.expected == "NCCL_IB_HCA==mlx5_0:1"
