# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""select_hcas: which ports carry collectives, by rule and over the whole group."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_observe import observe_rdma
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.select_hcas import Selection, select_hcas
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_node import FakeNode

Hcas = t.Mapping[str, t.Mapping[str, t.Any]]

DOWN = {"state": "Down", "phys_state": "Polling"}


def choose(path: pathlib.Path, nodes: t.Mapping[str, Hcas], **settings: t.Any) -> Selection:
    observed = {}
    for name, hcas in nodes.items():
        node = FakeNode(path / name)
        for hca, arguments in hcas.items():
            node.add_hca(hca, **arguments)
        fs = RootedFs(node.root)
        observed[name] = observe_rdma(fs, Tools(fs))
    return select_hcas(observed, settings)


def names(selection: Selection, node: str) -> list[str]:
    return [port.hca["name"] for port in selection.compute[node]]


def why(selection: Selection, node: str, hca: str) -> str:
    return next(reason for port, reason in selection.left_out[node] if port.hca["name"] == hca)


COMPUTE = {"board_id": "TST_COMPUTE", "rate": "400 Gb/sec (4X NDR)"}
STORAGE = {"board_id": "TST_STORAGE", "rate": "200 Gb/sec (4X HDR)"}


def test_kind_that_carries_most(tmp_path: pathlib.Path) -> None:
    node = {"mlx5_0": COMPUTE, "mlx5_1": COMPUTE, "mlx5_2": STORAGE, "mlx5_3": {**STORAGE, "netdev": "eth0"}}
    chosen = choose(tmp_path, {"n1": node, "n2": node})
    assert names(chosen, "n1") == names(chosen, "n2") == ["mlx5_0", "mlx5_1"]
    assert why(chosen, "n1", "mlx5_2") == "it is InfiniBand at 200 Gb/s beside InfiniBand at 400 Gb/s"


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (DOWN, True),
        ({"rate": "200 Gb/sec (2X NDR)"}, True),
        ({"driver": "vfio-pci"}, False),
    ],
)
def test_odd_port_on_one_node_keeps_its_rail(tmp_path: pathlib.Path, change: dict[str, t.Any], kept: bool) -> None:
    good = {"mlx5_0": COMPUTE, "mlx5_1": COMPUTE}
    chosen = choose(tmp_path, {"n1": good, "n2": good, "n3": {**good, "mlx5_1": {**COMPUTE, **change}}})
    assert ("mlx5_1" in names(chosen, "n3")) is kept


def test_slower_rail_on_every_node_is_another_network(tmp_path: pathlib.Path) -> None:
    node = {"mlx5_0": COMPUTE, "mlx5_1": COMPUTE, "mlx5_2": {**COMPUTE, "rate": "200 Gb/sec (2X NDR)"}}
    assert names(choose(tmp_path, {"n1": node, "n2": node}), "n1") == ["mlx5_0", "mlx5_1"]
    assert names(choose(tmp_path / "alone", {"n1": node}), "n1") == ["mlx5_0", "mlx5_1", "mlx5_2"]


def test_spare_second_port_and_rail_that_is_dead_everywhere(tmp_path: pathlib.Path) -> None:
    first, second = {**COMPUTE, "pci": "0000:1b:00.0"}, {**COMPUTE, **DOWN, "pci": "0000:1b:00.1"}
    node = {"mlx5_0": first, "mlx5_1": second, "mlx5_2": {**COMPUTE, **DOWN, "pci": "0000:2b:00.0"}}
    chosen = choose(tmp_path, {"n1": node, "n2": node})
    assert names(chosen, "n1") == ["mlx5_0", "mlx5_2"]
    assert "other port of its adapter works" in why(chosen, "n1", "mlx5_1")


def test_virtual_functions_count_only_alone(tmp_path: pathlib.Path) -> None:
    hcas = {"mlx5_0": {**COMPUTE, "pci": "0000:1b:00.0"}, "mlx5_1": {**COMPUTE, "pci": "0000:1b:00.1"}}
    node = FakeNode(tmp_path / "n1")
    for name, arguments in hcas.items():
        node.add_hca(name, **arguments)
    node.link("/sys/bus/pci/devices/0000:1b:00.1/physfn", "../0000:1b:00.0")
    fs = RootedFs(node.root)
    host = observe_rdma(fs, Tools(fs))
    assert names(select_hcas({"n1": host}, {}), "n1") == ["mlx5_0"]
    guest = {**host, "hcas": [hca for hca in host["hcas"] if hca["vf"]]}
    assert names(select_hcas({"n1": guest}, {}), "n1") == ["mlx5_1"]


def test_subnet_rule_votes_by_rail(tmp_path: pathlib.Path) -> None:
    def node(number: int, lost: bool = False) -> Hcas:
        return {
            "mlx5_0": {**COMPUTE, "netdev": "eth1", "ipv4": "" if lost else f"10.20.0.{number}/24"},
            "mlx5_1": {**COMPUTE, "netdev": "eth2", "ipv4": f"192.168.0.{number}/24"},
        }

    chosen = choose(
        tmp_path, {"n1": node(1), "n2": node(2), "n3": node(3, lost=True)}, rdma_select_subnets=["10.20.0.0/16"]
    )
    assert [names(chosen, n) for n in ("n1", "n2", "n3")] == [["mlx5_0"]] * 3
    assert why(chosen, "n1", "mlx5_1") == "its address 192.168.0.1/24 is in none of rdma_select_subnets"


@pytest.mark.parametrize(
    ("affinity", "chosen"), [("auto", ["mlx5_0"]), ("required", ["mlx5_0"]), ("ignored", ["mlx5_0", "mlx5_1"])]
)
def test_gpu_affinity(tmp_path: pathlib.Path, affinity: str, chosen: list[str]) -> None:
    node = FakeNode(tmp_path).add_gpu("0000:19:00.0", parents=["0000:15:01.0", "0000:16:00.0"])
    node.add_hca("mlx5_0", pci="0000:1b:00.0", parents=["0000:15:01.0", "0000:16:00.0"], **COMPUTE)
    node.add_hca("mlx5_1", pci="0000:05:00.0", parents=["0000:04:01.0"], **COMPUTE)
    fs = RootedFs(node.root)
    seen = {"n1": observe_rdma(fs, Tools(fs))}
    assert names(select_hcas(seen, {"rdma_select_gpu_affinity": affinity}), "n1") == chosen


def test_no_gpu_beside_any_hca_leaves_none_out(tmp_path: pathlib.Path) -> None:
    node = FakeNode(tmp_path).add_gpu("0000:19:00.0", parents=["0000:15:01.0"])
    node.add_hca("mlx5_0", pci="0000:05:00.0", parents=["0000:04:01.0"], **COMPUTE)
    fs = RootedFs(node.root)
    seen = {"n1": observe_rdma(fs, Tools(fs))}
    assert names(select_hcas(seen, {}), "n1") == ["mlx5_0"]
    assert names(select_hcas(seen, {"rdma_select_gpu_affinity": "required"}), "n1") == []


def test_other_maker_by_either_name_of_its_driver(tmp_path: pathlib.Path) -> None:
    hcas = {"bnxt_re0": {"driver": "bnxt_en", "netdev": "eth1"}}
    assert names(choose(tmp_path / "a", {"n1": hcas}, rdma_allowed_drivers=["bnxt_re"]), "n1") == ["bnxt_re0"]
    assert names(choose(tmp_path / "b", {"n1": hcas}, rdma_allowed_drivers=["bnxt_en"]), "n1") == ["bnxt_re0"]
    assert names(choose(tmp_path / "c", {"n1": hcas}), "n1") == []
