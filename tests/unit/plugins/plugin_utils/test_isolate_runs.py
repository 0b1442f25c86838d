# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Isolate's launches as runs of nccl_tests, and their results as measurements."""

from __future__ import annotations

import dataclasses
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import isolate, isolate_verdict
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.isolate_runs import (
    Means,
    can_split,
    measurements_of,
    rails_of,
    runs_of,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_isolate import judge_isolate
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_tests_plan import NodeMeans

RAILS = ("10.20.0.0/24", "10.20.1.0/24")


def node(name: str, gpus: int = 0) -> NodeMeans:
    ports = [
        {"device": f"mlx5_{rail}", "port": 1, "netdev": f"eth{rail + 1}", "state": "ACTIVE", "driver": "rdma_rxe"}
        for rail in range(2)
    ]
    networks = {"192.0.2.0/24": "eno1", RAILS[0]: "eth1", RAILS[1]: "eth2"}
    return NodeMeans(name, {"ports": ports}, gpus, networks)


def means(backend: str, gpus: int = 0) -> Means:
    nodes = {name: node(name, gpus) for name in ("n1", "n2", "n3", "n4")}
    return Means(backend, "n1", "run", nodes, rails_of(nodes), ("192.0.2.0/24",), iterations=10, warmup=1)


def shaped(run: t.Mapping[str, t.Any], busbw: float | None, **changes: t.Any) -> dict[str, t.Any]:
    rows = [{"size_bytes": 1, "out_of_place": {"busbw_gbs": busbw}}] if busbw else []
    whole = {"nodes": run["nodes"], "failure": None, "completed": True, "rows": rows, "seconds": 2.0, "problem": ""}
    return {**whole, "transport": {"proven": "tcp"}, "deltas": {}, **changes}


def test_a_pair_over_mpi_uses_all_rails_and_a_rail_one() -> None:
    state = isolate.begin(
        {n: {"hcas": ["mlx5_0", "mlx5_1"]} for n in means("mpi").nodes}, {"split": False, "size": 1 << 20}
    )
    planned = runs_of(isolate.plan(state), means("mpi"))
    assert sorted(one.groups[0] for one in planned) == [("n1", "n4"), ("n2", "n3")]
    run = planned[0].run
    assert run["min_bytes"] == run["max_bytes"] == "1048576" and run["stage"] == "cluster"
    assert run["mca"]["btl_tcp_if_include"] == "10.20.0.0/24,10.20.1.0/24" and run["claim"] == "tcp"
    assert run["beside"]
    apart = runs_of(isolate.plan(state), dataclasses.replace(means("mpi"), at_once=False))
    assert [one.run["beside"] for one in apart] == [False, False]


def test_a_pair_over_nccl_is_told_to_use_ring_and_all_gpus() -> None:
    settings = {"split": False, "alone": False}
    state = isolate.begin({n: {"ranks": 8, "hcas": ["mlx5_0"]} for n in means("nccl").nodes}, settings)
    run = runs_of(isolate.plan(state), means("nccl", gpus=8))[0].run
    assert run["environment"]["NCCL_ALGO"] == "Ring" and run["ranks_per_node"] == 8 and not run["alone"]
    alone = isolate.begin({n: {"ranks": 8, "hcas": ["mlx5_0"]} for n in means("nccl").nodes}, {"split": False})
    run = runs_of(isolate.plan(alone), means("nccl", gpus=8))[0].run
    assert run["alone"] and run["gpus_per_rank"] == 8 and run["stage"] == "node"


def test_one_launch_measures_all_pairs_of_a_round_where_nccl_tests_can() -> None:
    what = means("nccl", gpus=2)
    programs = {"all_reduce": {"letters": "IJbefgn", "mpi": True}}
    able = dataclasses.replace(
        what,
        here="n3",
        nodes={n: dataclasses.replace(node(n, 2), tools={"ports": [], "programs": programs}) for n in what.nodes},
    )
    assert can_split(able, "mpirun") and not can_split(able, "srun") and not can_split(what, "mpirun")
    state = isolate.begin({n: {"ranks": 2} for n in able.nodes}, {"split": True, "alone": False})
    (one,) = runs_of(isolate.plan(state), able)
    # the launch begins on the launching node, so its pair comes first
    assert one.groups == (("n2", "n3"), ("n1", "n4")) and one.run["nodes"] == ["n3", "n2", "n1", "n4"]
    assert one.run["environment"]["NCCL_TESTS_SPLIT"] == "DIV4" and one.run["per_iteration"]
    times = [[100.0, 100.0, 900.0]] * 4 + [[100.0, 100.0, 100.0]] * 3 + [[200.0, 200.0, 200.0]]
    report = {"results": [{"size": 1 << 20, "out_of_place_per_iter": {"per_process_max_times_us": times}}]}
    first, second = measurements_of([one], [shaped(one.run, 1.0)], [report])
    assert first["group"] == ["n2", "n3"] and first["busbw"] == pytest.approx(2 * second["busbw"])
    assert first["busbw"] == pytest.approx((1 << 20) / 100e-6 / 1e9 * 1.5)
    # and isolate takes the groups in whichever order their nodes were launched
    assert isolate.observe(state, [first, second]).launches == 1


@pytest.mark.parametrize("report", [None, {}, {"results": []}, {"results": [{"size": 8}]}])
def test_a_split_launch_without_times_failed(report: dict[str, t.Any] | None) -> None:
    state = isolate.begin({n: {"ranks": 2} for n in means("nccl", gpus=2).nodes}, {"split": True, "alone": False})
    planned = runs_of(isolate.plan(state), means("nccl", gpus=2))
    assert [row["busbw"] for row in measurements_of(planned, [shaped(planned[0].run, 1.0)], [report])] == [None, None]


def test_results_become_measurements_with_what_stood_beside_them() -> None:
    state = isolate.begin({n: {} for n in means("mpi").nodes}, {"split": False})
    planned = runs_of(isolate.plan(state), means("mpi"))
    moved = {"n4": {"hcas": {"mlx5_0/1": {"packet_seq_err": 7, "rx_bytes": 9}}, "netdevs": {}}}
    results = [
        shaped(planned[0].run, 3.5, deltas=moved),
        shaped(planned[1].run, None, failure="timeout", completed=False, problem="not finished"),
    ]
    first, second = measurements_of(planned, results)
    assert first["busbw"] == 3.5 and first["group"] == list(planned[0].groups[0])
    assert first["notes"] == ["transport tcp", "n4 mlx5_0/1 packet_seq_err +7"]
    assert second["busbw"] is None and second["notes"][0] == "n2+n3: timeout not finished"
    # and isolate takes them
    assert isolate.observe(state, [first, second]).launches == 2


def test_a_slow_node_is_named_end_to_end() -> None:
    what = means("mpi")
    state = isolate.begin({n: {"hcas": ["mlx5_0", "mlx5_1"]} for n in what.nodes}, {"split": False, "size": 1 << 20})
    for _ in range(60):
        planned = runs_of(isolate.plan(state), what)
        if not planned:
            break

        def speed(one: t.Any) -> float:
            touched = one.launch.rail in (None, 1)
            return (0.2 if "n3" in one.groups[0] and touched else 1.0) * (1 + 0.01 * (sum(one.launch.id.encode()) % 5))

        state = isolate.observe(state, measurements_of(planned, [shaped(one.run, speed(one)) for one in planned]))
    result = {"verdict": isolate_verdict.verdict(state), "problem": "", "left_out": []}
    findings = [finding for finding in judge_isolate({"n1": result}, {}) if finding.severity == "error"]
    assert [(finding.node, finding.subject) for finding in findings] == [("n3", "mlx5_1")]


def test_what_broke_off_and_who_took_no_part_is_said() -> None:
    result = {"verdict": {}, "problem": "n1: Open MPI is missing", "left_out": [{"node": "n2", "why": "it is busy"}]}
    findings = judge_isolate({"n1": result}, {})
    assert [(f.id, f.severity, f.node) for f in findings] == [
        ("isolate_not_run", "error", ""),
        ("node_left_out", "warning", "n2"),
    ]
