# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role rdma's module and judge on a simulated InfiniBand fabric, with the real opensm, ibstat and iblinkinfo."""

from __future__ import annotations

import pathlib
import random
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_observe import observe_rdma
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_hcas import judge_hcas
from ansible_collections.gpufabric.cluster.tests.fixtures.simulated_fabric import (
    DEVICE,
    SimulatedFabric,
    missing_programs,
)

pytestmark = pytest.mark.skipif(
    bool(missing_programs()), reason=f"not installed: {', '.join(missing_programs())} (apt-packages of the tests)"
)

NODES = ("n1", "n2", "n3", "n4")
SETTINGS = {
    "rdma_allowed_drivers": [""],  # a simulated HCA has no driver
    "rdma_cabling": [{"node": "n[12]", "switch": "leaf1"}, {"node": "n[34]", "switch": "leaf2"}],
}
AS_WIRED = {"n1": ("leaf1", 1), "n2": ("leaf1", 2), "n3": ("leaf2", 1), "n4": ("leaf2", 2)}


def look(fabric: SimulatedFabric) -> dict[str, dict[str, t.Any]]:
    nodes = {}
    for name in NODES:
        fs = RootedFs(fabric.node(name).root)
        nodes[name] = {"observed": observe_rdma(fs, Tools(fs), ["ibstat", "iblinkinfo"])}
    return nodes


def told(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(f.id, f.severity, f.node) for f in findings if f.severity != "notice"]


def test_managed_fabric_is_healthy_and_its_ports_are_read(tmp_path: pathlib.Path) -> None:
    with SimulatedFabric(tmp_path, AS_WIRED) as fabric:
        fabric.manage()
        nodes = look(fabric)
    port = nodes["n3"]["observed"]["hcas"][0]["ports"][0]
    assert (port["state"], port["phys_state"], port["link_layer"]) == ("ACTIVE", "LinkUp", "InfiniBand")
    assert port["lid"] not in (None, 0, 65535)
    assert port["sm_lid"] == nodes["n1"]["observed"]["hcas"][0]["ports"][0]["lid"]
    assert port["peer"] == {"switch": "leaf2", "port": "1", "by": "iblinkinfo"}
    assert nodes["n3"]["observed"]["witnesses"]["ibstat"]["ports"] == {f"{DEVICE}/1": {"state": "ACTIVE"}}
    lids = {seen["observed"]["hcas"][0]["ports"][0]["lid"] for seen in nodes.values()}
    assert len(lids) == len(NODES)
    assert told(judge_hcas(nodes, SETTINGS)) == []


def test_fabric_without_a_subnet_manager(tmp_path: pathlib.Path) -> None:
    with SimulatedFabric(tmp_path, AS_WIRED) as fabric:
        nodes = look(fabric)
    assert told(judge_hcas(nodes, SETTINGS)) == [("hca_port_no_sm", "error", name) for name in NODES]


def test_link_that_is_down(tmp_path: pathlib.Path) -> None:
    victim = random.choice(NODES[1:])
    with SimulatedFabric(tmp_path, AS_WIRED) as fabric:
        fabric.manage()
        fabric.unlink(victim)
        nodes = look(fabric)
    assert told(judge_hcas(nodes, SETTINGS)) == [("hca_port_down", "error", victim)]


def test_cable_in_the_wrong_switch(tmp_path: pathlib.Path) -> None:
    with SimulatedFabric(tmp_path, {**AS_WIRED, "n4": ("leaf1", 7)}) as fabric:
        fabric.manage()
        found = judge_hcas(look(fabric), SETTINGS)
    assert told(found) == [("rail_cabling", "error", "n4")]
    assert "leaf1 port 7" in next(f.evidence for f in found if f.id == "rail_cabling")
