# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults planted in a fabric that does not exist, and what judge_mesh says of it."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_mesh import judge_mesh
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.mesh_cells import Thresholds, suspects
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.pairing import circle_round
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_mesh import FakeMesh


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(1, count + 1)]


def judged(mesh: FakeMesh, **settings: t.Any) -> list[Finding]:
    return judge_mesh(mesh.results(), settings)


def said(findings: t.Sequence[Finding]) -> list[tuple[str, str, str]]:
    return [(finding.id, finding.node, finding.subject) for finding in findings]


@pytest.mark.parametrize("count", [2, 3, 5, 16])
def test_a_healthy_fabric_has_no_finding(count: int) -> None:
    assert judged(FakeMesh(names(count), noise=0.15)) == []


FAULTS: list[tuple[dict[str, t.Any], str, str]] = [
    ({"dead": True}, "mesh_unreachable", "mlx5_0 port 1"),
    ({"mtu": 1500}, "mesh_mtu", "mlx5_0 port 1"),
    ({"own_mtu": 1500}, "mesh_mtu", "mlx5_0 port 1"),
    ({"no_tcp": True}, "mesh_tcp_blocked", "mlx5_0 port 1"),
    ({"no_tcp": True, "direction": "in"}, "mesh_tcp_blocked", "mlx5_0 port 1"),
    ({"no_rdma": True}, "mesh_rdma_blocked", "mlx5_0 port 1"),
    ({"loss": 0.05}, "mesh_loss", "mlx5_0 port 1"),
    ({"delay_ms": 20.0}, "mesh_latency", "mlx5_0 port 1"),
    ({"rate_gbs": 1.0}, "mesh_slow", "mlx5_0 port 1"),
    ({"rate_gbs": 1.0, "direction": "out"}, "mesh_slow", "mlx5_0 port 1"),
]


@pytest.mark.parametrize("count", [3, 4, 12])
@pytest.mark.parametrize(("effect", "finding", "subject"), FAULTS)
def test_one_fault_is_one_finding_with_its_node(
    effect: dict[str, t.Any], finding: str, subject: str, count: int
) -> None:
    findings = judged(FakeMesh(names(count)).add("mlx5_0", "n2", **effect))
    assert said(findings) == [(finding, "n2", subject)]
    assert findings[0].severity == "error" and findings[0].fix.startswith("on n2: ")
    assert "{" not in findings[0].fix.replace("{ echo", "")


def test_a_fault_of_two_nodes_cannot_be_told_apart() -> None:
    findings = judged(FakeMesh(names(2)).add("mlx5_0", "n2", dead=True))
    assert said(findings) == [("mesh_unreachable_pair", "", "n1 <-> n2, rail mlx5_0")]
    assert "which end" in findings[0].cause


def test_a_slow_rail_of_two_nodes_shows_beside_the_other_rail() -> None:
    findings = judged(FakeMesh(names(2)).add("mlx5_1", "n1", rate_gbs=2.0))
    assert said(findings) == [("mesh_slow_pair", "", "n1 <-> n2, rail mlx5_1")]


def test_a_firewall_of_a_host_is_one_finding_for_all_its_paths() -> None:
    findings = judged(FakeMesh(names(4)).add("*", "n3", no_tcp=True, direction="in"))
    assert said(findings) == [("mesh_tcp_blocked", "n3", "TCP high ports")]
    assert "n1, n2, n4" in findings[0].evidence


def test_a_dead_host_is_one_finding() -> None:
    findings = judged(FakeMesh(names(4)).add("*", "n3", dead=True))
    assert said(findings) == [("mesh_unreachable", "n3", "all networks")]


def test_a_rail_that_is_bad_for_all_is_the_rails_fault() -> None:
    mesh = FakeMesh(names(5))
    for node in mesh.names:
        mesh.add("mlx5_1", node, rate_gbs=2.0)
    findings = judged(mesh)
    assert said(findings) == [("mesh_slow_everywhere", "", "rail mlx5_1")]


def test_a_bad_cable_between_switches_names_the_group() -> None:
    mesh = FakeMesh(names(8))
    for one in ("n1", "n2", "n3", "n4", "n5"):
        for other in ("n6", "n7", "n8"):
            mesh.add("mlx5_0", one, peer=other, dead=True)
    findings = judged(mesh)
    assert said(findings) == [("mesh_unreachable_split", "", "rail mlx5_0: n6, n7, n8")]


def test_a_link_that_is_known_to_be_down_is_left_to_who_judges_ports() -> None:
    assert judged(FakeMesh(names(3)).add("mlx5_0", "n1", down=True)) == []


def test_several_faults_at_once_are_each_named() -> None:
    mesh = FakeMesh(names(6)).add("mlx5_0", "n1", loss=0.05).add("mlx5_1", "n4", no_rdma=True)
    assert said(judged(mesh)) == [("mesh_rdma_blocked", "n4", "mlx5_1 port 1"), ("mesh_loss", "n1", "mlx5_0 port 1")]


def test_many_bad_pairs_are_no_n_squared_lines() -> None:
    mesh = FakeMesh(names(24))
    for number in range(0, 24, 2):
        mesh.add("mlx5_0", f"n{number + 1}", peer=f"n{number + 2}", dead=True)
    findings = judged(mesh)
    assert len(findings) == 9 and findings[-1].id == "mesh_unreachable_pairs"


def test_a_sampled_mesh_still_tells_the_node() -> None:
    everyone = names(100)
    partners: dict[str, list[str]] = {name: [] for name in everyone}
    for number in range(4):
        for one, other in circle_round(everyone, number):
            partners[one].append(other)
            partners[other].append(one)
    mesh = FakeMesh(everyone, partners=partners).add("mlx5_1", "n77", loss=0.03)
    assert said(judged(mesh)) == [("mesh_loss", "n77", "mlx5_1 port 1")]


def test_one_noisy_measurement_accuses_nobody() -> None:
    mesh = FakeMesh(names(4))
    results = mesh.results()
    results["n1"]["mesh"]["peers"]["n2"]["paths"]["mlx5_0"]["write"]["gbs"] = 3.0
    assert judge_mesh(results, {}) == []


def test_clocks() -> None:
    mesh = FakeMesh(names(4))
    mesh.clock["n2"] = 40.0
    assert said(judged(mesh)) == [("clock_skew", "n2", "clock")]
    two = FakeMesh(names(2))
    two.clock["n2"] = 40.0
    findings = judged(two)
    assert said(findings) == [("clock_skew", "", "clock")] and "cannot be told" in findings[0].evidence


def test_names() -> None:
    mesh = FakeMesh(names(4))
    for node in ("n1", "n3", "n4"):
        mesh.names_known[node, "n2"] = []
    findings = judged(mesh)
    assert [(f.id, f.node) for f in findings] == [("name_unknown", "n2")]
    mesh = FakeMesh(names(4))
    mesh.names_known["n1", "n2"] = ["192.0.2.9"]
    findings = judged(mesh)
    assert [(f.id, f.node, f.severity) for f in findings] == [("name_wrong", "n1", "error")]
    assert "192.0.2.9" in findings[0].evidence


def test_icmp_that_is_filtered_is_a_notice_and_no_fault() -> None:
    findings = judged(FakeMesh(names(4)).add("*", "n2", no_ping=True))
    assert {(f.id, f.severity) for f in findings} == {("mesh_icmp_filtered", "notice")}


def test_a_lone_node_is_no_fault() -> None:
    results = FakeMesh(names(1)).results()
    results["n1"]["mesh"]["left_out"] = "it is the only node"
    assert [(f.id, f.severity) for f in judge_mesh(results, {})] == [("mesh_left_out", "notice")]


def test_what_is_suspect_is_a_number_that_is_bad() -> None:
    mesh = FakeMesh(names(3)).add("mlx5_0", "n2", rate_gbs=1.0).add("mlx5_1", "n3", no_rdma=True)
    meshes = {node: result["mesh"] for node, result in mesh.results().items()}
    found = suspects(meshes, Thresholds())
    assert found == {"n1": {"n2": ["mlx5_0"]}, "n2": {"n1": ["mlx5_0"], "n3": ["mlx5_0"]}, "n3": {"n2": ["mlx5_0"]}}


def test_thresholds_come_from_the_settings() -> None:
    mesh = FakeMesh(names(4)).add("mlx5_0", "n2", rate_gbs=30.0)
    assert judged(mesh) == []
    assert [f.id for f in judged(mesh, diagnose_slow_ratio=0.85)] == ["mesh_slow"]
