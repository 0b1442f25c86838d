# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""judge_roce_qos: each deviation is one finding, and a well-set node has none."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils import _roce_qos
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_roce_qos import judge_roce_qos
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_node import FakeNode
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_qos import add_dcb, add_ecn, add_mlnx_qos, add_rdma_cm


@pytest.fixture
def node(tmp_path: pathlib.Path) -> FakeNode:
    """A node that is set as it should be."""
    node = FakeNode(tmp_path / "n1").add_hca("mlx5_0", netdev="eth1", pci="0000:1b:00.0")
    add_mlnx_qos(node, "eth1", trust="dscp", pfc=(3,))
    add_ecn(node, "eth1").write("/sys/class/net/eth1/ecn/roce_np/cnp_dscp", "48\n")
    add_rdma_cm(node, "mlx5_0", tos=106)
    return node.write("/etc/nccl.conf", "NCCL_IB_TC=106\n")


def judge(node: FakeNode, interfaces: t.Sequence[str] = ("eth1",), **settings: t.Any) -> list[tuple[str, str, str]]:
    fs = RootedFs(node.root)
    observed = {**_roce_qos.observe(fs, Tools(fs), interfaces), "applied": []}
    found = judge_roce_qos({"n1": {"observed": observed}}, settings)
    assert all(f.evidence and f.expected and f.cause and f.fix and f.node == "n1" for f in found)
    return [(f.id, f.severity, f.subject) for f in found]


def test_well_set_node(node: FakeNode) -> None:
    assert judge(node) == []


def test_node_without_roce_interfaces(node: FakeNode) -> None:
    assert judge(node, []) == []
    assert judge_roce_qos({"n1": {"failed": True}}, {}) == []


def test_adapter_as_it_comes(node: FakeNode) -> None:
    add_mlnx_qos(node, "eth1")
    assert judge(node) == [("roce_qos_trust", "error", "eth1"), ("roce_qos_pfc", "error", "eth1")]


def test_dscp_on_the_wrong_priority(node: FakeNode) -> None:
    assert judge(node, roce_qos_priority=5) == [
        ("roce_qos_dscp", "error", "eth1"),
        ("roce_qos_pfc", "error", "eth1"),
    ]


def test_other_deviations(node: FakeNode) -> None:
    add_mlnx_qos(node, "eth1", trust="dscp", pfc=(3, 4))
    add_ecn(node, "eth1", on=(0,))
    add_rdma_cm(node, "mlx5_0", tos=0)
    node.write("/sys/class/infiniband/mlx5_0/tc/1/traffic_class", "Global tclass=160\n")
    node.add_tool("ethtool", "RX:\t\ton\nTX:\t\ton\n", when="-a eth1")
    assert judge(node) == [
        ("roce_qos_pfc_more", "warning", "eth1"),
        ("roce_qos_ecn", "error", "eth1"),
        ("roce_qos_cnp", "warning", "eth1"),
        ("roce_qos_tclass", "error", "eth1"),
        ("roce_qos_cma", "warning", "eth1"),
        ("roce_qos_global_pause", "warning", "eth1"),
    ]


def test_interfaces_that_share_a_deviation_are_one_finding(node: FakeNode) -> None:
    node.add_hca("mlx5_1", netdev="eth2", pci="0000:2b:00.0")
    add_mlnx_qos(node, "eth1", trust="dscp", pfc=())
    add_mlnx_qos(node, "eth2", trust="dscp", pfc=())
    add_ecn(node, "eth2").write("/sys/class/net/eth2/ecn/roce_np/cnp_dscp", "48\n")
    add_rdma_cm(node, "mlx5_1", tos=106)
    assert judge(node, ["eth1", "eth2"]) == [("roce_qos_pfc", "error", "eth1, eth2")]


def test_truncated_answer_is_unknown_and_not_off(node: FakeNode) -> None:
    node.add_program("mlnx_qos", "#!/bin/sh\nprintf 'DCBX mode: OS controlled\\nPriority trust state: dscp\\n'\n")
    assert judge(node) == [("roce_qos_pfc_unknown", "warning", "eth1")]


def test_no_tool_is_a_warning(node: FakeNode) -> None:
    node.remove("/usr/bin/mlnx_qos")
    assert judge(node) == [("roce_qos_unknown", "warning", "eth1")]


def test_fix_goes_to_whoever_owns_the_setting(node: FakeNode) -> None:
    add_mlnx_qos(node, "eth1", trust="dscp", pfc=(), dcbx="Firmware controlled")
    fs = RootedFs(node.root)
    observed = _roce_qos.observe(fs, Tools(fs), ["eth1"])
    (found,) = judge_roce_qos({"n1": {"observed": observed}}, {})
    assert "firmware" in found.evidence and "switch" in found.fix and "mlnx_qos -i eth1 -d os" in found.fix


def test_fix_by_dcb(node: FakeNode) -> None:
    node.remove("/usr/bin/mlnx_qos")
    add_dcb(node, "eth1")
    fs = RootedFs(node.root)
    found = judge_roce_qos({"n1": {"observed": _roce_qos.observe(fs, Tools(fs), ["eth1"])}}, {})
    assert [f.fix for f in found if f.severity == "error"] == [
        "dcb app replace dev eth1 dscp-prio 26:3",
        "dcb pfc set dev eth1 prio-pfc all:off 3:on",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("NCCL_IB_TC=106\n", []),
        ("NCCL_IB_TC=104\n", [("roce_qos_nccl", "error", "NCCL_IB_TC")]),
        ("", [("roce_qos_nccl", "warning", "NCCL_IB_TC")]),
    ],
)
def test_nccl_traffic_class(node: FakeNode, text: str, found: list[tuple[str, str, str]]) -> None:
    node.write("/etc/nccl.conf", text)
    assert judge(node) == found


def test_traffic_class_without_ect(node: FakeNode) -> None:
    node.write("/etc/nccl.conf", "NCCL_IB_TC=104\n")
    add_rdma_cm(node, "mlx5_0", tos=104)
    assert judge(node, roce_qos_traffic_class=104) == [("roce_qos_no_ect", "warning", "NCCL_IB_TC")]


def test_override_stands_for_an_unset_nccl(node: FakeNode) -> None:
    node.write("/etc/nccl.conf", "").write("/sys/class/infiniband/mlx5_0/tc/1/traffic_class", "Global tclass=106\n")
    assert judge(node) == []


def test_failed_and_unreadable_are_findings(node: FakeNode) -> None:
    failed = {"interface": "eth1", "setting": "pfc", "status": "failed", "why": "Operation not permitted"}
    observed = {"interfaces": [], "nccl_tc": None, "problems": [], "applied": [failed, {**failed, "status": "applied"}]}
    assert [f.subject for f in judge_roce_qos({"n1": {"observed": observed}}, {})] == ["eth1 pfc"]
    assert judge(node, ["eth1", "eth7"]) == [("roce_qos_no_interface", "warning", "eth7")]
