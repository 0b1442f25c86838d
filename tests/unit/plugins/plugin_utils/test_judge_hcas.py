# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""judge_hcas: one fault gives exactly one error, on the right node and port; a healthy group gives none."""

from __future__ import annotations

import copy
import functools
import pathlib
import random
import tempfile
import time
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_observe import observe_rdma
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_hcas import judge_hcas
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_node import FakeNode
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_rdma_tools import record_rdma_tools
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

WITNESSES = ("ibstat", "ibv_devinfo", "rdma")
LAB = {"rdma_allowed_drivers": ["mlx5_core", "rdma_rxe"]}
Nodes = dict[str, dict[str, t.Any]]


def observe(node: FakeNode) -> dict[str, t.Any]:
    fs = RootedFs(node.root)
    record_rdma_tools(node)
    return {"observed": observe_rdma(fs, Tools(fs), WITNESSES)}


def lab_node(
    path: pathlib.Path, number: int, change: t.Mapping[int, t.Mapping[str, t.Any]], rails: int = 2
) -> FakeNode:
    """A node of the lab: Soft-RoCE over virtio. change: {rail: other arguments, or "gone": True}."""
    node = FakeNode(path / f"n{number}")
    node.write("/etc/libibverbs.d/rxe.driver", "driver rxe\n")
    for rail in range(rails):
        arguments: dict[str, t.Any] = {
            "netdev": f"eth{rail + 1}",
            "ipv4": f"10.77.{rail}.{number}/24",
            "guid": f"5054:00ff:fe77:{rail:02x}{number:02x}",
            "rate": "100 Gb/sec (4X EDR)",
            **change.get(rail, {}),
        }
        if not arguments.pop("gone", False):
            node.add_hca(f"mlx5_{rail}", driver="rdma_rxe", **arguments)
    return node


def lab(path: pathlib.Path, faults: t.Mapping[int, t.Mapping[int, t.Mapping[str, t.Any]]], nodes: int = 2) -> Nodes:
    return {f"n{n}": observe(lab_node(path, n, faults.get(n, {}))) for n in range(1, nodes + 1)}


def errors(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(f.id, f.node, f.subject) for f in findings if f.severity == "error"]


def ids(findings: list[Finding]) -> set[str]:
    return {f.id for f in findings}


FAULTS: dict[str, tuple[dict[str, t.Any], str, str]] = {
    "admin down": ({"state": "Down", "phys_state": "Disabled"}, "hca_port_down", "mlx5_{rail} port 1"),
    "carrier down": ({"state": "Down", "phys_state": "Polling"}, "hca_port_down", "mlx5_{rail} port 1"),
    "MTU mismatch": ({"mtu": 1500}, "hca_mtu", "mlx5_{rail} port 1"),
    "HCA removed": ({"gone": True}, "hca_missing", "mlx5_{rail}"),
    "address lost": ({"ipv4": ""}, "hca_gid_missing", "mlx5_{rail} port 1"),
}


@pytest.mark.parametrize("nodes", [2, 3])
def test_healthy_lab_has_nothing_to_say(tmp_path: pathlib.Path, nodes: int) -> None:
    assert judge_hcas(lab(tmp_path, {}, nodes), LAB) == []


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("node", [1, 2])
@pytest.mark.parametrize("rail", [0, 1])
@pytest.mark.parametrize("nodes", [2, 3])
def test_each_fault_gives_one_error(tmp_path: pathlib.Path, fault: str, node: int, rail: int, nodes: int) -> None:
    change, found_id, subject = FAULTS[fault]
    findings = judge_hcas(lab(tmp_path, {node: {rail: change}}, nodes), LAB)
    assert errors(findings) == [(found_id, f"n{node}", subject.format(rail=rail))]
    assert ids(findings) == {found_id}, findings
    assert all(f.evidence and f.expected and f.cause and f.fix for f in findings)


def test_two_faults_on_one_node_give_two_errors(tmp_path: pathlib.Path) -> None:
    nodes = lab(tmp_path, {2: {0: {"mtu": 1500}, 1: {"state": "Down", "phys_state": "Polling"}}}, 3)
    assert sorted(errors(judge_hcas(nodes, LAB))) == [
        ("hca_mtu", "n2", "mlx5_0 port 1"),
        ("hca_port_down", "n2", "mlx5_1 port 1"),
    ]


def test_soft_roce_is_no_compute_hca_unless_allowed(tmp_path: pathlib.Path) -> None:
    found = judge_hcas(lab(tmp_path, {}), {})
    assert errors(found) == [("hca_none", "n1", "RDMA"), ("hca_none", "n2", "RDMA")]
    assert "rdma_rxe" in found[0].evidence


def test_small_mtu_everywhere_is_one_warning_and_none_if_wanted(tmp_path: pathlib.Path) -> None:
    small = {rail: {"mtu": 1500} for rail in (0, 1)}
    nodes = lab(tmp_path, {1: small, 2: small})
    assert [(f.id, f.severity, f.node) for f in judge_hcas(nodes, LAB)] == [("hca_mtu_small", "warning", "")]
    assert judge_hcas(nodes, {**LAB, "rdma_expected_mtu": 1500}) == []


def test_expected_mtu_decides_between_two_nodes_of_one_rail(tmp_path: pathlib.Path) -> None:
    nodes = {f"n{n}": observe(lab_node(tmp_path, n, {0: {"mtu": mtu}}, rails=1)) for n, mtu in ((1, 1500), (2, 4200))}
    assert errors(judge_hcas(nodes, LAB)) == [("hca_mtu", "n1", "mlx5_0 port 1")]
    assert errors(judge_hcas(nodes, {**LAB, "rdma_expected_mtu": 1500})) == [("hca_mtu", "n2", "mlx5_0 port 1")]


# ---- hardware

PARENTS = ("0000:15:01.0", "0000:16:00.0")


def server(path: pathlib.Path, number: int, rails: int = 8, **options: t.Any) -> FakeNode:
    """A GPU server: InfiniBand compute HCAs beside GPUs, one Ethernet front-end adapter with a free port."""
    node = FakeNode(path / f"gpu{number}")
    node.write("/etc/libibverbs.d/mlx5.driver", "driver mlx5\n")
    for rail in range(rails):
        bus = 0x20 + 16 * rail
        parents = [f"0000:{bus - 2:02x}:01.0", f"0000:{bus - 1:02x}:00.0"]
        node.add_gpu(f"0000:{bus + 1:02x}:00.0", parents=parents)
        if rail in options.get("gone", ()):
            continue
        node.add_hca(
            f"mlx5_{rail}",
            pci=f"0000:{bus:02x}:00.0",
            parents=parents,
            **{
                "guid": f"0200:00{number:02x}:0000:{rail:04x}",
                "lid": 10 * number + rail,
                "sm_lid": 1,
                **options.get("change", {}).get(rail, {}),
            },
        )
    front = {"driver": "mlx5_core", "board_id": "TST_0000000100", "hca_type": "MT4125", "fw_ver": "22.41.1000"}
    node.add_hca(
        f"mlx5_{rails}",
        pci="0000:05:00.0",
        netdev="ens5f0",
        rate="100 Gb/sec (2X HDR)",
        guid=f"0200:00{number:02x}:0000:00f0",
        mtu=1500,
        ipv4=f"172.16.0.{number}/16",
        **front,
    )
    node.add_hca(
        f"mlx5_{rails + 1}",
        pci="0000:05:00.1",
        netdev="ens5f1",
        rate="40 Gb/sec (4X QDR)",
        state="Down",
        phys_state="Disabled",
        guid=f"0200:00{number:02x}:0000:00f1",
        **front,
    )
    return node


@functools.cache
def _healthy_server(number: int) -> dict[str, t.Any]:
    with tempfile.TemporaryDirectory() as directory:
        return observe(server(pathlib.Path(directory), number))


def servers(path: pathlib.Path, count: int = 3, **odd: t.Any) -> Nodes:
    """*count* servers, the last of which has the options *odd*."""
    healthy = {f"gpu{n}": copy.deepcopy(_healthy_server(n)) for n in range(1, count + 1 - bool(odd))}
    return {**healthy, f"gpu{count}": observe(server(path, count, **odd))} if odd else healthy


def test_servers_with_a_down_front_end_port_are_healthy(tmp_path: pathlib.Path) -> None:
    findings = judge_hcas(servers(tmp_path), {})
    assert {f.severity for f in findings} == {"notice"}
    assert sorted(f.subject for f in findings) == ["mlx5_8 port 1", "mlx5_9 port 1"]
    assert all(f.node == "" for f in findings)


def test_one_server_alone_is_judged_too(tmp_path: pathlib.Path) -> None:
    assert errors(judge_hcas(servers(tmp_path, 1), {})) == []
    broken = servers(tmp_path / "broken", 1, change={3: {"state": "Down", "phys_state": "Polling"}})
    assert errors(judge_hcas(broken, {})) == [("hca_port_down", "gpu1", "mlx5_3 port 1")]


@pytest.mark.parametrize(
    ("change", "found_id", "subject"),
    [
        ({"state": "Down", "phys_state": "Polling", "rate": "10 Gb/sec (4X SDR)"}, "hca_port_down", "mlx5_3 port 1"),
        ({"state": "Initializing", "lid": 65535, "sm_lid": 0}, "hca_port_no_sm", "mlx5_3 port 1"),
        ({"lid": 65535, "sm_lid": 0}, "hca_port_no_sm", "mlx5_3 port 1"),
        ({"rate": "200 Gb/sec (2X NDR)"}, "hca_rate", "mlx5_3 port 1"),
        ({"link": ("16.0 GT/s PCIe", "16")}, "hca_pcie", "mlx5_3"),
        ({"link": ("32.0 GT/s PCIe", "8")}, "hca_pcie", "mlx5_3"),
        (
            {"link_layer": "Ethernet", "gids": {0: ("fe80:0000:0000:0000:0200:00ff:fe00:0301", "RoCE v2", "")}},
            "hca_link_layer",
            "mlx5_3 port 1",
        ),
    ],
)
def test_one_broken_rail_of_a_server(
    tmp_path: pathlib.Path, change: dict[str, t.Any], found_id: str, subject: str
) -> None:
    findings = judge_hcas(
        servers(tmp_path, 3, change={3: change}), {"rdma_require_routable_gid": found_id != "hca_link_layer"}
    )
    assert errors(findings) == [(found_id, "gpu3", subject)]


def test_hca_gone_is_named_by_its_place_though_the_others_moved_up(tmp_path: pathlib.Path) -> None:
    """With mlx5_2 gone the kernel calls the later ones mlx5_2 to mlx5_8: their places tell which one is missing."""
    nodes = servers(tmp_path, 3, gone=(2,))
    hcas = nodes["gpu3"]["observed"]["hcas"]
    renamed = {hca["name"]: f"mlx5_{number}" for number, hca in enumerate(hcas)}
    for hca in hcas:
        hca["name"] = renamed[hca["name"]]
    for said in nodes["gpu3"]["observed"]["witnesses"].values():
        said["devices"] = [renamed[name] for name in said["devices"]]
        said["ports"] = {f"{renamed[k.split('/')[0]]}/{k.split('/')[1]}": v for k, v in said["ports"].items()}
    assert errors(judge_hcas(nodes, {})) == [("hca_missing", "gpu3", "mlx5_2")]


def twelve_ports(path: pathlib.Path, number: int, down: t.Collection[int] = (), gone: bool = False) -> dict[str, t.Any]:
    """A node with two adapters of twelve ports, whose data ports are 3, 6, 9 and 12; *down* are the first one's."""
    node = FakeNode(path / f"n{number}")
    node.write("/etc/libibverbs.d/mlx5.driver", "driver mlx5\n")
    for hca in range(1 if gone else 2):
        ports = {
            port: {"state": "Active", "link_layer": "InfiniBand", "lid": 100 * number + 20 * hca + port, "sm_lid": 1}
            if port % 3 == 0 and not (hca == 0 and port in down)
            else {"state": "Down", "phys_state": "Polling", "link_layer": "InfiniBand"}
            for port in range(1, 13)
        }
        node.add_hca(f"mlx5_{hca}", guid=f"0200:00{number:02x}:0000:000{hca}", ports=ports)
    return observe(node)


def test_twelve_ports_of_which_four_carry_data(tmp_path: pathlib.Path) -> None:
    nodes = {f"n{n}": twelve_ports(tmp_path / "a", n) for n in (1, 2, 3)}
    assert errors(judge_hcas(nodes, {"rdma_expected_hcas": 2})) == []
    nodes["n2"] = twelve_ports(tmp_path / "b", 2, down=[6])
    assert errors(judge_hcas(nodes, {})) == [("hca_port_down", "n2", "mlx5_0 port 6")]
    nodes["n2"] = twelve_ports(tmp_path / "c", 2, gone=True)
    assert errors(judge_hcas(nodes, {"rdma_expected_hcas": 2})) == [("hca_missing", "n2", "mlx5_1")]


@pytest.mark.parametrize("hardware", [True, False])
def test_other_naming_scheme_is_one_warning(tmp_path: pathlib.Path, hardware: bool) -> None:
    nodes = servers(tmp_path, 3) if hardware else lab(tmp_path, {}, 3)
    odd = list(nodes)[-1]
    observed = nodes[odd]["observed"]
    observed["witnesses"] = {}
    for number, hca in enumerate(observed["hcas"]):
        hca["name"] = f"ibp{number}s0"
    found = [(f.id, f.severity, f.node) for f in judge_hcas(nodes, {} if hardware else LAB) if f.severity != "notice"]
    assert found == [("hca_names_differ", "warning", odd)]


def test_what_all_nodes_share_is_said_once(tmp_path: pathlib.Path) -> None:
    nodes = lab(tmp_path, {}, 3)
    for number, result in enumerate(nodes.values()):
        panic = f"ibstat ended with exit status 255: ibpanic: [{number}] main: stat of IB device 'mlx5_an0' failed"
        result["observed"]["witnesses"]["ibstat"].update(problem=panic, unreadable=["mlx5_an0"])
    assert [(f.id, f.severity, f.node) for f in judge_hcas(nodes, LAB)] == [("rdma_tool_failed", "warning", "")]


def test_rail_dead_on_every_node_is_a_fault_and_no_front_end(tmp_path: pathlib.Path) -> None:
    down = {5: {"state": "Down", "phys_state": "Polling", "rate": "10 Gb/sec (4X SDR)"}}
    nodes = {f"gpu{n}": observe(server(tmp_path, n, change=down)) for n in (1, 2, 3)}
    assert errors(judge_hcas(nodes, {})) == [("hca_port_down", f"gpu{n}", "mlx5_5 port 1") for n in (1, 2, 3)]


def test_odd_firmware_is_named_against_the_majority_once_a_node(tmp_path: pathlib.Path) -> None:
    nodes = servers(tmp_path, 3, change={rail: {"fw_ver": "28.39.2048"} for rail in range(8)})
    odd = [f for f in judge_hcas(nodes, {}) if f.id == "hca_firmware"]
    assert [(f.node, f.severity) for f in odd] == [("gpu3", "warning")]
    assert "28.41.1000, as on 16 of 24" in odd[0].expected
    wanted = [f for f in judge_hcas(nodes, {"rdma_expected_firmware": ["28.39.2048"]}) if f.id == "hca_firmware"]
    assert [(f.node, f.severity) for f in wanted] == [("gpu1", "error"), ("gpu2", "error")]


def test_duplicate_guid_names_both(tmp_path: pathlib.Path) -> None:
    nodes = servers(tmp_path, 3, change={4: {"guid": "0200:0001:0000:0004"}})
    found = [f for f in judge_hcas(nodes, {}) if f.severity == "error"]
    assert [(f.id, f.node, f.subject) for f in found] == [("hca_guid_duplicate", "gpu3", "mlx5_4")]
    assert "gpu1 mlx5_4" in found[0].evidence


def test_expected_count_and_pcie(tmp_path: pathlib.Path) -> None:
    nodes = servers(tmp_path, 2)
    assert (
        errors(
            judge_hcas(nodes, {"rdma_expected_hcas": 8, "rdma_expected_pcie_gts": 32, "rdma_expected_pcie_width": 16})
        )
        == []
    )
    assert errors(judge_hcas(nodes, {"rdma_expected_hcas": 9})) == [
        ("hca_count", "gpu1", "RDMA"),
        ("hca_count", "gpu2", "RDMA"),
    ]
    strict = judge_hcas(nodes, {"rdma_expected_pcie_gts": 64, "rdma_expected_pcie_width": 16})
    assert len(errors(strict)) == 16


def test_missing_hca_is_not_also_a_wrong_count(tmp_path: pathlib.Path) -> None:
    nodes = servers(tmp_path, 3, gone=(6,))
    assert errors(judge_hcas(nodes, {"rdma_expected_hcas": 8})) == [("hca_missing", "gpu3", "mlx5_6")]


def test_rules_in_place_of_the_kind(tmp_path: pathlib.Path) -> None:
    nodes = servers(tmp_path, 2)
    ethernet = judge_hcas(
        nodes,
        {"rdma_select_subnets": ["172.16.0.0/16"], "rdma_select_gpu_affinity": "ignored", "rdma_expected_hcas": 1},
    )
    assert errors(ethernet) == []
    assert errors(judge_hcas(nodes, {"rdma_select_names": ["mlx5_[0-7]"], "rdma_expected_hcas": 8})) == []
    assert errors(judge_hcas(nodes, {"rdma_select_exclude_names": ["mlx5_7"], "rdma_expected_hcas": 7})) == []
    assert errors(judge_hcas(nodes, {"rdma_select_min_rate_gbps": 400, "rdma_expected_hcas": 8})) == []


def test_bad_subnet_is_one_sentence(tmp_path: pathlib.Path) -> None:
    found = judge_hcas(lab(tmp_path, {}), {**LAB, "rdma_rail_subnets": {"mlx5_0": "10.77.0.0/33"}})
    assert [(f.id, f.subject) for f in found] == [("bad_subnet", "rdma_rail_subnets[mlx5_0]")]


# ---- rails


def test_wrong_subnet_by_majority_and_by_map(tmp_path: pathlib.Path) -> None:
    nodes = lab(tmp_path, {3: {0: {"ipv4": "10.99.0.3/24"}}}, 3)
    assert errors(judge_hcas(nodes, LAB)) == [("rail_subnet", "n3", "mlx5_0 port 1")]
    given = {**LAB, "rdma_rail_subnets": {"mlx5_0": ["10.99.0.0/24", "10.77.0.0/24"]}}
    assert errors(judge_hcas(nodes, given)) == []


def test_swapped_rails_are_said_to_be_swapped(tmp_path: pathlib.Path) -> None:
    nodes = lab(tmp_path, {3: {0: {"ipv4": "10.77.1.3/24"}, 1: {"ipv4": "10.77.0.3/24"}}}, 3)
    found = [f for f in judge_hcas(nodes, LAB) if f.severity == "error"]
    assert [(f.id, f.subject) for f in found] == [("rail_subnet", "mlx5_0 port 1"), ("rail_subnet", "mlx5_1 port 1")]
    assert "swapped" in found[0].cause


def test_one_machine_under_two_names_is_one_error(tmp_path: pathlib.Path) -> None:
    nodes = lab(tmp_path, {}, 3)
    nodes["n4"] = copy.deepcopy(nodes["n2"])
    found = [f for f in judge_hcas(nodes, LAB) if f.severity == "error"]
    assert [(f.id, f.node, f.subject) for f in found] == [("hca_guid_duplicate", "n4", "mlx5_0, mlx5_1")]
    assert "n2 mlx5_0, and 1 more" in found[0].evidence


def test_outside_the_subnets_of_all_rails(tmp_path: pathlib.Path) -> None:
    nodes = lab(tmp_path, {2: {0: {"ipv4": "192.168.7.2/24"}}})
    assert errors(judge_hcas(nodes, {**LAB, "rdma_select_subnets": ["10.77.0.0/16"]})) == [
        ("rail_subnet", "n2", "mlx5_0 port 1")
    ]


def test_routed_rails_have_a_subnet_a_node(tmp_path: pathlib.Path) -> None:
    nodes = lab(tmp_path, {n: {r: {"ipv4": f"10.{r}.{n}.1/31"} for r in (0, 1)} for n in (1, 2, 3)}, 3)
    assert judge_hcas(nodes, LAB) == []


def test_flat_subnet_is_one_warning_and_a_notice_if_arp_is_guarded(tmp_path: pathlib.Path) -> None:
    flat = {n: {r: {"ipv4": f"10.77.0.{10 * r + n}/16"} for r in (0, 1)} for n in (1, 2)}
    nodes = lab(tmp_path, flat)
    assert [(f.id, f.severity) for f in judge_hcas(nodes, LAB)] == [("rail_subnets_overlap", "warning")]
    for result in nodes.values():
        for netdev in result["observed"]["netdevs"].values():
            netdev.update(arp_ignore=1, arp_announce=2)
    assert [(f.id, f.severity) for f in judge_hcas(nodes, LAB)] == [("rail_subnets_overlap", "notice")]


def test_duplicate_address(tmp_path: pathlib.Path) -> None:
    nodes = lab(tmp_path, {2: {1: {"ipv4": "10.77.1.1/24"}}}, 3)
    assert errors(judge_hcas(nodes, LAB)) == [("rail_address_duplicate", "n2", "mlx5_1 port 1")]


def test_crossed_arp_names_the_node_that_answers_wrongly(tmp_path: pathlib.Path) -> None:
    nodes = lab(tmp_path, {}, 2)
    for number, result in enumerate(nodes.values(), 1):
        for rail, netdev in enumerate(result["observed"]["netdevs"].values()):
            netdev["mac"] = f"02:00:00:00:0{number}:0{rail}"
    nodes["n1"]["observed"]["neighbours"] = [{"ip": "10.77.0.2", "mac": "02:00:00:00:02:01", "netdev": "eth1"}]
    assert [(f.id, f.node, f.subject) for f in judge_hcas(nodes, LAB)] == [("rail_crossed_arp", "n2", "mlx5_0 port 1")]


def test_cabling_against_a_map(tmp_path: pathlib.Path) -> None:
    nodes = servers(tmp_path, 2)
    for result in nodes.values():
        for rail, hca in enumerate(result["observed"]["hcas"][:8]):
            hca["ports"][0]["peer"] = {"switch": f"leaf{rail}", "port": "7", "by": "iblinkinfo"}
    nodes["gpu2"]["observed"]["hcas"][5]["ports"][0]["peer"]["switch"] = "leaf4"
    rules = [{"rail": f"mlx5_{rail}", "switch": f"leaf{rail}"} for rail in range(8)]
    assert errors(judge_hcas(nodes, {"rdma_cabling": rules})) == [("rail_cabling", "gpu2", "mlx5_5 port 1")]


def test_map_without_neighbours_is_not_proven(tmp_path: pathlib.Path) -> None:
    found = judge_hcas(servers(tmp_path, 2), {"rdma_cabling": [{"rail": "mlx5_*", "switch": "leaf*"}]})
    assert [(f.severity, f.node) for f in found if f.id == "rail_cabling_unknown"] == [("warning", "")]
    assert errors(found) == []


# ---- cables

CABLE = {
    "fec": "RS-FEC",
    "effective_ber": 0.0,
    "recommendation": "No issue was observed",
    "temp_c": 54,
    "temp_range": [-5.0, 75.0],
}


@pytest.mark.parametrize(
    ("change", "found_id"),
    [
        ({}, None),
        ({"raw_ber": 1e-7, "raw_errors_per_lane": [32379149, 224947]}, None),
        ({"effective_ber": 3e-9, "recommendation": "Bad signal integrity"}, "hca_link_errors"),
        ({"recommendation": "Bad signal integrity"}, "hca_link_advice"),
        ({"temp_c": 81}, "hca_module_temperature"),
        ({"fec": "No FEC"}, "hca_fec"),
    ],
)
def test_cable_of_one_port(tmp_path: pathlib.Path, change: dict[str, t.Any], found_id: str | None) -> None:
    nodes = servers(tmp_path, 2)
    for result in nodes.values():
        for hca in result["observed"]["hcas"]:
            hca["ports"][0]["cable"] = dict(CABLE)
    nodes["gpu2"]["observed"]["hcas"][4]["ports"][0]["cable"].update(change)
    found = [(f.id, f.severity, f.node, f.subject) for f in judge_hcas(nodes, {}) if f.severity != "notice"]
    assert found == ([(found_id, "warning", "gpu2", "mlx5_4 port 1")] if found_id else [])


# ---- tools


def test_modules_that_are_not_loaded(tmp_path: pathlib.Path) -> None:
    nodes = lab(tmp_path, {})
    for result in nodes.values():
        result["observed"]["stack"]["modules"] = ["ib_uverbs", "ib_umad"]
    found = judge_hcas(nodes, {**LAB, "rdma_modules": ["mlx5_core", "ib_uverbs", "ib-umad", "rdma_ucm"]})
    assert [(f.id, f.node, f.subject) for f in found] == [("rdma_modules_absent", "", "rdma_ucm")]


OFED = {"vendor_stack": "OFED-internal-25.01-0.6.0", "mlx5_core": {"loaded": True, "version": "25.01-0.6.0"}}


@pytest.mark.parametrize(
    ("stack", "expected", "found"),
    [
        (OFED, "", [("rdma_stack", "warning", "gpu3")]),
        ({}, "inbox", []),
        (OFED, "OFED-internal-25.*", [("rdma_stack", "error", "gpu1"), ("rdma_stack", "error", "gpu2")]),
        (
            {**OFED, "mlx5_core": {"loaded": True, "version": ""}},
            "OFED-*",
            [
                ("rdma_stack", "error", "gpu1"),
                ("rdma_stack", "error", "gpu2"),
                ("rdma_stack_not_running", "warning", "gpu3"),
            ],
        ),
    ],
)
def test_rdma_stack(
    tmp_path: pathlib.Path, stack: dict[str, t.Any], expected: str, found: list[tuple[str, str, str]]
) -> None:
    nodes = servers(tmp_path, 3)
    nodes["gpu3"]["observed"]["stack"].update(stack)
    told = judge_hcas(nodes, {"rdma_expected_stack": expected})
    assert [(f.id, f.severity, f.node) for f in told if f.severity != "notice"] == found


def test_another_model_and_a_subnet_manager(tmp_path: pathlib.Path) -> None:
    nodes = servers(tmp_path, 3, change={2: {"board_id": "TST_0000000077"}, 4: {"lid": 1}})
    told = [(f.id, f.severity, f.node, f.subject) for f in judge_hcas(nodes, {}) if f.id != "hca_left_out"]
    assert told == [("hca_board", "warning", "gpu3", "mlx5_2"), ("hca_runs_sm", "notice", "gpu3", "mlx5_4 port 1")]


def test_a_vendors_tool_is_not_missed(tmp_path: pathlib.Path) -> None:
    nodes = lab(tmp_path, {})
    absent = {"devices": [], "ports": {}, "unreadable": [], "missing": True, "problem": "mlxlink is not installed"}
    nodes["n1"]["observed"]["witnesses"]["mlxlink"] = absent
    assert judge_hcas(nodes, LAB) == []


def test_missing_and_panicking_tools_are_no_errors(tmp_path: pathlib.Path) -> None:
    nodes = lab(tmp_path, {})
    said = nodes["n1"]["observed"]["witnesses"]
    said["ibstat"].update(
        problem="ibstat ended with exit status 255: ibpanic", devices=["mlx5_0"], unreadable=["mlx5_1"]
    )
    said["rdma"] = {"devices": [], "ports": {}, "unreadable": [], "missing": True, "problem": "rdma is not installed"}
    found = judge_hcas(nodes, LAB)
    assert [(f.id, f.severity, f.node) for f in found] == [
        ("rdma_tool_failed", "warning", "n1"),
        ("rdma_tool_missing", "notice", "n1"),
    ]


def test_no_user_space_driver_is_one_error(tmp_path: pathlib.Path) -> None:
    node = lab_node(tmp_path, 1, {})
    fs = RootedFs(node.root)
    record_rdma_tools(node, user_space=[])
    nodes = {"n1": {"observed": observe_rdma(fs, Tools(fs), WITNESSES)}, "n2": observe(lab_node(tmp_path, 2, {}))}
    assert errors(judge_hcas(nodes, LAB)) == [("hca_no_user_space", "n1", "mlx5_0, mlx5_1")]


def test_adapter_whose_rdma_driver_is_absent(tmp_path: pathlib.Path) -> None:
    node = FakeNode(tmp_path / "n9").add_pci("0000:1b:00.0", driver="mlx5_core", pci_class="0x020000")
    found = judge_hcas({**servers(tmp_path, 2), "n9": observe(node)}, {})
    assert errors(found) == [("hca_none", "n9", "RDMA")]
    assert "mlx5_ib" in next(f for f in found if f.node == "n9").cause


def test_results_without_observation_are_passed_over(tmp_path: pathlib.Path) -> None:
    nodes = lab(tmp_path, {})
    nodes["n3"] = {"failed": True, "msg": "boom"}
    assert judge_hcas(nodes, LAB) == []
    assert judge_hcas({}, LAB) == []


# ---- bad input


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_no_attribute_text_of_a_port_raises(data: st.DataObject) -> None:
    """Whatever a kernel, a driver or an emulation puts into the attributes, it is read and judged."""
    with tempfile.TemporaryDirectory() as directory:
        node = lab_node(pathlib.Path(directory), 1, {})
        for attribute in data.draw(st.sets(st.sampled_from(ATTRIBUTES), max_size=5)):
            node.write(f"/sys/class/infiniband/mlx5_0/{attribute}", data.draw(st.text(max_size=30)))
        for attribute in data.draw(st.sets(st.sampled_from(NETDEV_ATTRIBUTES), max_size=2)):
            node.write(f"/sys/class/net/eth1/{attribute}", data.draw(st.text(max_size=12)))
        node.add_tool("ip", stdout=data.draw(st.sampled_from(ADDRESSES)))
        fs = RootedFs(node.root)
        seen = {"n1": {"observed": observe_rdma(fs, Tools(fs))}}
    judge_hcas({**seen, "n2": _healthy_lab_node()}, {"rdma_allowed_drivers": ["rdma_rxe", "mlx5_core", ""]})


ATTRIBUTES = (
    "node_guid",
    "node_type",
    "fw_ver",
    "ports/1/state",
    "ports/1/phys_state",
    "ports/1/rate",
    "ports/1/lid",
    "ports/1/sm_lid",
    "ports/1/link_layer",
    "ports/1/gids/0",
    "ports/1/gids/1",
    "ports/1/gid_attrs/types/0",
    "ports/1/gid_attrs/ndevs/0",
)
NETDEV_ATTRIBUTES = ("mtu", "speed", "flags", "carrier", "address")
ADDRESSES = (
    "",
    "[",
    "{}",
    '[{"ifname": "eth1", "addr_info": [{"local": "10.77.0.999", "prefixlen": 24}, {"local": "x"}, 7, null]}]',
    '[{"ifname": "eth1", "addr_info": null}, 3]',
)


@functools.cache
def _healthy_lab_node() -> dict[str, t.Any]:
    with tempfile.TemporaryDirectory() as directory:
        return observe(lab_node(pathlib.Path(directory), 2, {}))


# ---- scale


def test_512_nodes_of_9_hcas_in_under_5_seconds(tmp_path: pathlib.Path) -> None:
    template = observe(server(tmp_path, 1))["observed"]
    template["hcas"].pop()  # 8 compute HCAs and a front-end one
    nodes: Nodes = {}
    for number in range(512):
        seen = copy.deepcopy(template)
        for rail, hca in enumerate(seen["hcas"]):
            hca["node_guid"] = f"0200:{number:04x}:0000:{rail:04x}"
        nodes[f"gpu{number:03}"] = {"observed": seen}
    victim = random.Random(4).randrange(512)
    nodes[f"gpu{victim:03}"]["observed"]["hcas"][5]["ports"][0].update(state="DOWN", state_code=1, phys_state="Polling")
    for said in nodes[f"gpu{victim:03}"]["observed"]["witnesses"].values():
        said["ports"]["mlx5_5/1"]["state"] = "DOWN"
    began = time.monotonic()
    findings = judge_hcas(nodes, {})
    seconds = time.monotonic() - began
    assert errors(findings) == [("hca_port_down", f"gpu{victim:03}", "mlx5_5 port 1")]
    assert seconds < 5, f"{seconds:.1f} s"
