# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""roce_interfaces: the compute ports that speak RoCE in hardware, and no others."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.filter.hcas import FilterModule
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_observe import observe_rdma
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_node import FakeNode

roce_interfaces = FilterModule().filters()["roce_interfaces"]


def registered(node: FakeNode) -> dict[str, t.Any]:
    fs = RootedFs(node.root)
    return {"observed": observe_rdma(fs, Tools(fs))}


def test_compute_rails_and_not_the_front_end(tmp_path: pathlib.Path) -> None:
    node = FakeNode(tmp_path).add_hca("mlx5_0", netdev="eth1").add_hca("mlx5_1", netdev="eth2")
    node.add_hca("mlx5_2", netdev="eth0", rate="100 Gb/sec (2X HDR)", ipv4="172.16.0.1/16", board_id="TST_0000000100")
    assert roce_interfaces(registered(node)) == ["eth1", "eth2"]
    assert roce_interfaces(registered(node), {"rdma_select_subnets": ["172.16.0.0/16"]}) == ["eth0"]
    assert roce_interfaces(registered(node), {"rdma_select_names": ["mlx5_2"]}) == ["eth0"]
    assert roce_interfaces(registered(node), {"rdma_select_names": "mlx5_2"}) == ["eth0"], "a text of -e"


def test_neither_infiniband_nor_software(tmp_path: pathlib.Path) -> None:
    node = FakeNode(tmp_path).add_hca("mlx5_0", lid=1).add_hca("rxe0", netdev="eth1", driver="rdma_rxe")
    assert roce_interfaces(registered(node)) == []
    assert roce_interfaces(registered(node), {"rdma_allowed_drivers": ["rdma_rxe"]}) == []


@pytest.mark.parametrize("result", [None, {}, {"skipped": True}, {"failed": True, "msg": "no"}])
def test_node_that_was_not_observed(result: t.Any) -> None:
    assert roce_interfaces(result) == []
