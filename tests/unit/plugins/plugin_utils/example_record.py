# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run record with one of everything, for the tests of what is rendered from it."""

from __future__ import annotations

import typing as t

HOSTILE = "<script>alert('x')</script> | & \x1b[31mred\n`tick`"


def half(busbw: float | None) -> dict[str, t.Any]:
    return {"time_us": 1234.5, "algbw_gbs": busbw, "busbw_gbs": busbw, "wrong": 0}


def example_record(**changes: t.Any) -> dict[str, t.Any]:
    """run.json of two nodes, one of them faulty, after one all_reduce over MPI."""
    same = {"dtype": "float", "redop": "sum", "root": -1, "in_place": None}
    rows = [
        {"size_bytes": size, "count": size // 4, "out_of_place": half(size / 1e9), **same}
        for size in (1 << 10, 1 << 20)
    ]
    run = {
        "backend": "mpi", "launcher": "mpirun", "collective": "all_reduce", "stage": "cluster", "rail": "", "nodes": ["n1", "n2"], "ranks": 2,
        "argv": ["mpirun", "-np", "2"], "completed": True, "failure": None, "rows": rows, "transport": {"proven": "tcp"},
    }  # fmt: skip
    finding = {
        "id": "hca_port_down", "severity": "error", "node": "n2", "subject": "mlx5_1 port 1", "evidence": HOSTILE,
        "expected": "Active", "cause": "cable", "fix": "ip link set eth2 up", "part": "rdma",
    }  # fmt: skip
    verdict = {
        "stage": "cluster", "collective": "all_reduce", "rail": "", "transport": "tcp", "nodes": ["n1", "n2"], "size_bytes": 1 << 20,
        "busbw_gbs": 0.001, "expected_busbw_gbs": 0.04, "expected_from": "computed", "line_rate_gbs": 0.06, "utilisation": 0.001 / 0.06,
        "margin": -0.975, "status": "fail", "why": "below the expectation",
    }  # fmt: skip
    record: dict[str, t.Any] = {
        "schema_version": 1, "collection_version": "0.1.0", "run_id": "20260101T000000Z-0a1b", "started": "2026-01-01T00:00:00+00:00",
        "finished": "2026-01-01T00:01:00+00:00", "check_mode": False, "ansible_core": "2.19.0", "python": "3.11", "inventory": ["n1", "n2"],
        "settings": {"rdma": [{"nodes": ["n1", "n2"], "values": {"rdma_expected_hcas": 2}}]},
        "nodes": {"n1": {"node": {"observed": {"distribution": "debian", "gpus": []}}, "rdma": {"observed": {"hcas": []}}}, "n2": {}},
        "benchmark": {"launcher": "n1", "runs": [run]}, "verdicts": [verdict], "findings": [finding],
        "notes": ["GPUs were not measured"], "verdict": {"status": "fail", "text": "FAIL: n2 mlx5_1 port 1: Down"},
    }  # fmt: skip
    return {**record, **changes}
