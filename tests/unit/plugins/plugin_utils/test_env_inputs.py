# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""From registered results to the input of a resolution."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_observe import observe_rdma
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.env_inputs import fleet_inputs, for_node
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_env import resolve_fleet
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_node import FakeNode

SETTINGS = {
    "nccl_env_profiles": ["guide"],
    "nccl_env_variables": {},
    "nccl_env_node_role": "compute",
    "nccl_env_control_network": "10.20.0.0/24",
}
RDMA_SETTINGS = {"rdma_allowed_drivers": ["mlx5_core"]}


def hardware(root: pathlib.Path, hcas: int = 2, **more: t.Any) -> dict[str, t.Any]:
    node = FakeNode(root)
    for rail in range(hcas):
        node.add_hca(f"mlx5_{rail}", netdev=f"eth{rail + 1}", ipv4=f"10.20.{rail}.1/24", **more)
    fs = RootedFs(node.root)
    return observe_rdma(fs, Tools(fs), counters="none")


def observed(rdma: t.Any = None, **more: t.Any) -> dict[str, t.Any]:
    library = {"version": "2.28.9"}
    return {"library": library, "library_names": None, "rdma": rdma, "site": {"variables": {}}, **more}


def test_hcas_are_selected_as_the_role_rdma_does(tmp_path: pathlib.Path) -> None:
    inputs = fleet_inputs(
        {"n1": observed(hardware(tmp_path / "1")), "n2": observed()},
        {n: {"addresses": {"eth1": ["10.20.0.1/24"]}} for n in ("n1", "n2")},
        {"n2": hardware(tmp_path / "2", 1)},
        {},
        {n: SETTINGS for n in ("n1", "n2")},
        {n: RDMA_SETTINGS for n in ("n1", "n2")},
        {},
    )
    assert inputs["n1"]["selected"] == ["mlx5_0:1", "mlx5_1:1"] and inputs["n2"]["selected"] == ["mlx5_0:1"]
    result = resolve_fleet(inputs, [], {}, {})
    values = {v["name"]: v["value"] for v in result["nodes"]["n1"]["variables"]}
    assert values["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1" and values["NCCL_SOCKET_IFNAME"] == "=eth1"


def test_a_driver_that_is_not_allowed_leaves_sockets(tmp_path: pathlib.Path) -> None:
    inputs = fleet_inputs(
        {"n1": observed(hardware(tmp_path / "1"))},
        {},
        {},
        {},
        {"n1": SETTINGS},
        {"n1": {"rdma_allowed_drivers": ["bnxt_re"]}},
        {},
    )
    assert inputs["n1"]["selected"] == []
    assert resolve_fleet(inputs, [], {}, {})["nodes"]["n1"]["transport"] == ["socket"]


def test_nothing_was_observed_of_the_hardware() -> None:
    inputs = fleet_inputs({"n1": observed()}, {}, {}, {}, {"n1": SETTINGS}, {"n1": RDMA_SETTINGS}, {})
    assert inputs["n1"]["hcas"] is None and inputs["n1"]["selected"] is None


def test_only_nccls_variables_of_a_vendors_file_count() -> None:
    seen = observed(site={"variables": {"NCCL_TOPO_FILE": "/t", "UCX_TLS": "rc", "export NCCL_A": "1"}})
    inputs = fleet_inputs({"n1": seen}, {}, {}, {}, {"n1": SETTINGS}, {"n1": RDMA_SETTINGS}, {})
    assert inputs["n1"]["site"] == {"NCCL_TOPO_FILE": "/t"}


def test_shared_findings_go_with_the_first_nodes() -> None:
    nodes = {f"n{i}": {"nccl_version": "2.28.9", "hcas": []} for i in range(5)}
    result = resolve_fleet(nodes, ["guide"], {"NCCL_HCA": 1}, {})
    counts = [len([f for f in for_node(result, n)["findings"] if f["id"] == "nccl_variable_unknown"]) for n in nodes]
    assert counts == [1, 1, 1, 0, 0]


def interface(**changes: t.Any) -> dict[str, t.Any]:
    """One RoCE interface as roce_qos_info describes it, set as the role wants it."""
    return {
        "interface": "eth1",
        "hca": "mlx5_0",
        "port": 1,
        "pci": "",
        "tool": "mlnx_qos",
        "problem": "",
        "dcbx": "host",
        "trust": "dscp",
        "pfc": [3],
        "dscp_prio": {"26": 3, "48": 6},
        "ecn": {"source": "sysfs", "np": {"3": True}, "rp": {"3": True}, "cnp_dscp": 48, "cnp_priority": 6},
        "tclass": None,
        "cma_tos": 106,
        "pause": {"rx": False, "tx": False},
        **changes,
    }


@pytest.mark.parametrize(
    ("interfaces", "verified"),
    [
        ([interface()], 106),
        ([interface(), interface(interface="eth2", trust="pcp")], None),
        ([interface(pfc=[])], None),
        ([interface(dscp_prio={"26": 0})], None),
        ([interface(tool="", problem="no tool", trust=None, pfc=None)], None),
        ([], None),
    ],
)
def test_a_traffic_class_counts_only_where_it_is_carried_without_loss(
    interfaces: list[dict[str, t.Any]], verified: int | None
) -> None:
    qos = {"n1": {"interfaces": interfaces, "nccl_tc": None, "applied": [], "problems": []}}
    inputs = fleet_inputs({"n1": observed()}, {}, {}, qos, {"n1": SETTINGS}, {"n1": RDMA_SETTINGS}, {"n1": {}})
    assert inputs["n1"]["traffic_class"] == verified
