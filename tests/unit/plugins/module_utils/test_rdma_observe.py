# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""observe_rdma on fake roots: hardware and software devices, odd names, tools that fail."""

from __future__ import annotations

import os
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils import _pci_path, _rdma_sysfs
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_observe import observe_rdma
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_node import FakeNode

IBSTAT_THEN_PANIC = """CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.41.1000
\tHardware version: 0
\tNode GUID: 0x020000fffe000000
\tSystem image GUID: 0x020000fffe000000
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: 0
\t\tLMC: 0
\t\tSM lid: 0
\t\tCapability mask: 0x00010000
\t\tPort GUID: 0x020000fffe000000
\t\tLink layer: Ethernet
"""

IBV_DEVINFO = """hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.41.1000
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t4096 (5)
\t\t\tsm_lid:\t\t\t0
\t\t\tport_lid:\t\t0
\t\t\tport_lmc:\t\t0x00
\t\t\tlink_layer:\t\tEthernet
"""


@pytest.fixture
def node(tmp_path: t.Any) -> FakeNode:
    return FakeNode(tmp_path / "n1")


def observe(node: FakeNode, witnesses: t.Sequence[str] = (), **options: t.Any) -> dict[str, t.Any]:
    fs = RootedFs(node.root)
    return observe_rdma(fs, Tools(fs), witnesses, **options)


def test_hardware_device(node: FakeNode) -> None:
    node.add_hca("mlx5_0", netdev="eth1", ipv4="10.20.0.1/24", pci="0000:1b:00.0", numa_node=1)
    seen = observe(node)
    hca = seen["hcas"][0]
    assert (hca["name"], hca["driver"], hca["rdma_driver"], hca["virtual"]) == ("mlx5_0", "mlx5_core", "mlx5_ib", False)
    assert (hca["board_id"], hca["fw_ver"], hca["hca_type"]) == ("TST_0000000042", "28.41.1000", "MT4129")
    assert (hca["pcie"]["address"], hca["numa_node"]) == ("0000:1b:00.0", 1)
    port = hca["ports"][0]
    assert (port["state"], port["state_code"], port["phys_state"], port["rate_gbps"]) == ("ACTIVE", 4, "LinkUp", 400.0)
    assert port["netdev"] == "eth1"
    assert [g["ipv4"] for g in port["gids"]] == ["", "10.20.0.1"]
    assert port["gids"][1]["type"] == "RoCE v2"
    assert seen["netdevs"]["eth1"]["addresses"] == ["10.20.0.1/24"]
    assert seen["netdevs"]["eth1"]["mtu"] == 4200
    assert seen["problems"] == []


def test_soft_roce_is_known_by_its_parent_not_by_its_description(node: FakeNode) -> None:
    node.add_hca("mlx5_0", netdev="eth1", driver="rdma_rxe")
    node.write("/sys/class/infiniband/mlx5_0/node_desc", "n1 HCA-1\n")  # rdma-ndd renames nodes
    hca = observe(node)["hcas"][0]
    assert (hca["driver"], hca["virtual"], hca["pcie"]) == ("rdma_rxe", True, None)
    assert hca["ports"][0]["netdev"] == "eth1"


def test_soft_roce_without_any_gid_keeps_its_interface(node: FakeNode) -> None:
    node.add_hca("rxe0", netdev="eth1", driver="rdma_rxe", gids={})
    port = observe(node)["hcas"][0]["ports"][0]
    assert (port["gids"], port["netdev"], port["port_guid"]) == ([], "eth1", "")


@pytest.mark.parametrize(
    ("name", "driver", "rdma_driver"),
    [
        ("bnxt_re0", "bnxt_en", "bnxt_re"),
        ("irdma0", "ice", "irdma"),
        ("rdmap0s6", "efa", "efa"),
        ("hns_0", "hns3", "hns_roce_hw_v2"),
        ("mlx5_bond_0", "mlx5_core", "mlx5_ib"),
        ("ibp12s0", "mlx5_core", "mlx5_ib"),
        ("rocep1s0f0", "mlx5_core", "mlx5_ib"),
    ],
)
def test_other_makers_and_names(node: FakeNode, name: str, driver: str, rdma_driver: str) -> None:
    node.add_hca(name, driver=driver, netdev="eth1")
    hca = observe(node)["hcas"][0]
    assert (hca["name"], hca["driver"], hca["rdma_driver"]) == (name, driver, rdma_driver)


def test_twelve_ports_with_data_on_some(node: FakeNode) -> None:
    active = (3, 6, 9, 12)
    ports = {
        n: {"state": "Active" if n in active else "Down", "phys_state": "LinkUp" if n in active else "Disabled"}
        for n in range(1, 13)
    }
    node.add_hca("mlx5_0", ports={n: {"link_layer": "Ethernet", **p} for n, p in ports.items()})
    found = observe(node)["hcas"][0]["ports"]
    assert [p["port"] for p in found] == list(range(1, 13))
    assert [p["port"] for p in found if p["state"] == "ACTIVE"] == list(active)


def test_infiniband_lids(node: FakeNode) -> None:
    node.add_hca("mlx5_0", lid=65535, sm_lid=0, state="Initializing")
    port = observe(node)["hcas"][0]["ports"][0]
    assert (port["lid"], port["sm_lid"], port["state"], port["link_layer"]) == (65535, 0, "INIT", "InfiniBand")


def test_gid_table_that_starts_late_and_one_that_is_long(node: FakeNode, monkeypatch: t.Any) -> None:
    gid = "0000:0000:0000:0000:0000:ffff:0a14:0001"
    late = {14: (gid, "RoCE v2", "eth1")}
    node.add_hca("mlx5_0", netdev="eth1", gids=late, slots=1024)
    reads = 0
    real = _rdma_sysfs._read_quickly

    def counted(path: str) -> str:
        nonlocal reads
        reads += 1
        return real(path)

    monkeypatch.setattr(_rdma_sysfs, "_read_quickly", counted)
    port = observe(node)["hcas"][0]["ports"][0]
    assert [(g["index"], g["ipv4"]) for g in port["gids"]] == [(14, "10.20.0.1")]
    assert port["gid_slots"] == 1024
    assert reads == 15 + _rdma_sysfs.GID_GAP


def test_vxlan_above_a_bond_does_not_take_the_port(node: FakeNode) -> None:
    link_local, mapped = "fe80:0000:0000:0000:0200:00ff:fe00:0001", "0000:0000:0000:0000:0000:ffff:0a14:0009"
    gids = {0: (link_local, "RoCE v2", "bond1"), 2: (mapped, "RoCE v2", "br.vx7"), 3: (mapped, "RoCE v2", "bond1")}
    node.add_hca("mlx5_bond_0", netdev="bond1", gids=gids)
    assert observe(node)["hcas"][0]["ports"][0]["netdev"] == "bond1"


def test_counters_that_are_no_numbers_and_those_of_virtual_functions(node: FakeNode) -> None:
    counters = {
        "counters/link_downed": "N/A (no PMA)",
        "hw_counters/out_of_sequence": "7",
        "hw_counters/lifespan": "12",
    }
    node.add_hca("mlx5_0", counters=counters).add_hca("mlx5_1", pci="0000:60:00.1", counters=counters)
    node.add_pci("0000:60:00.0").link("/sys/bus/pci/devices/0000:60:00.1/physfn", "../0000:60:00.0")
    first, second = observe(node)["hcas"]
    assert first["ports"][0]["counters"] == {"link_downed": None, "out_of_sequence": 7}
    assert (second["vf"], second["ports"][0]["counters"]) == (True, {})
    assert observe(node, counters="all")["hcas"][1]["ports"][0]["counters"] == {
        "link_downed": None,
        "out_of_sequence": 7,
    }
    assert observe(node, counters="none")["hcas"][0]["ports"][0]["counters"] == {}


def test_pcie_link_of_slot_and_function(node: FakeNode) -> None:
    node.add_hca("mlx5_0", pci="0000:1b:00.0", parents=["0000:15:01.0", "0000:1a:00.0"], link=("16.0 GT/s PCIe", "8"))
    pcie = observe(node)["hcas"][0]["pcie"]
    assert (pcie["speed_gts"], pcie["width"], pcie["max_speed_gts"], pcie["max_width"]) == (16.0, 8, 32.0, 16)
    assert (pcie["slot_speed_gts"], pcie["slot_width"]) == (32.0, 16)
    assert pcie["narrowest"] == {"address": "0000:15:01.0", "speed_gts": 16.0, "width": 8}


def test_unknown_pcie_link_of_a_virtual_machine(node: FakeNode) -> None:
    node.add_hca("mlx5_0", link=("Unknown", "0"), maximum=("Unknown", "255"), numa_node=-1)
    hca = observe(node)["hcas"][0]
    assert (hca["pcie"]["speed_gts"], hca["pcie"]["width"], hca["pcie"]["narrowest"]) == (None, None, None)
    assert hca["numa_node"] is None


def test_nearest_gpu_by_pcie_path(node: FakeNode) -> None:
    switch = ["0000:15:01.0", "0000:16:00.0"]
    node.add_gpu("0000:19:00.0", parents=[*switch, "0000:17:01.0"]).add_gpu(
        "0000:9b:00.0", parents=["0000:97:01.0"], numa_node=1
    )
    node.add_hca("mlx5_0", pci="0000:1b:00.0", parents=[*switch, "0000:17:02.0"])
    node.add_hca("mlx5_1", pci="0000:9d:00.0", parents=["0000:9c:01.0"], numa_node=1)
    first, second = observe(node)["hcas"]
    assert first["gpu"] == {"relation": "PIX", "addresses": ["0000:19:00.0"]}
    assert second["gpu"] == {"relation": "NODE", "addresses": ["0000:9b:00.0"]}


@pytest.mark.parametrize(
    ("one", "other", "same_numa", "relation"),
    [
        (["pci0", "a", "b", "x"], ["pci0", "a", "b", "y"], True, "PIX"),
        (["pci0", "a", "b", "c", "x"], ["pci0", "a", "b", "d", "e", "y"], True, "PXB"),
        (["pci0", "a", "x"], ["pci0", "b", "y"], True, "PHB"),
        (["pci0", "x"], ["pci1", "y"], True, "NODE"),
        (["pci0", "x"], ["pci1", "y"], False, "SYS"),
    ],
)
def test_relation(one: list[str], other: list[str], same_numa: bool, relation: str) -> None:
    assert _pci_path.relation(one, other, same_numa) == relation


def test_panicking_tool_loses_nothing(node: FakeNode) -> None:
    node.add_hca("mlx5_0", netdev="eth1").add_hca("mlx5_1", netdev="eth2")
    node.add_tool(
        "ibstat", IBSTAT_THEN_PANIC, "ibpanic: [77] main: stat of IB device 'mlx5_1' failed: Invalid argument\n", 255
    )
    node.add_tool("ibv_devinfo", IBV_DEVINFO)
    seen = observe(node, ["ibstat", "ibv_devinfo", "rdma"])
    assert [h["name"] for h in seen["hcas"]] == ["mlx5_0", "mlx5_1"]
    ibstat = seen["witnesses"]["ibstat"]
    assert (ibstat["devices"], ibstat["unreadable"], ibstat["missing"]) == (["mlx5_0"], ["mlx5_1"], False)
    assert "255" in ibstat["problem"]
    assert seen["witnesses"]["rdma"]["missing"] is True
    assert [(p["ports"][0]["active_mtu"], p["ports"][0]["max_mtu"]) for p in seen["hcas"]] == [
        (4096, 4096),
        (None, None),
    ]


def test_hanging_tool_is_bounded(node: FakeNode) -> None:
    node.add_hca("mlx5_0").add_tool("ibstat", "CA 'mlx5_0'\n", sleep=30)
    seen = observe(node, ["ibstat"], timeout=0.5)
    assert "did not end" in seen["witnesses"]["ibstat"]["problem"]
    assert len(seen["hcas"]) == 1


def test_no_witness_no_process(node: FakeNode) -> None:
    node.add_hca("mlx5_0").add_tool("ibstat").add_tool("ibv_devinfo")
    observe(node)
    assert node.tool_calls() == []


def test_node_without_anything(node: FakeNode) -> None:
    seen = observe(node, ["ibstat", "ibv_devinfo", "rdma"])
    assert (seen["hcas"], seen["netdevs"], seen["gpus"], seen["unbound"]) == ([], {}, [], [])
    assert all(w["missing"] for w in seen["witnesses"].values())


def test_adapter_without_its_rdma_driver(node: FakeNode) -> None:
    node.add_pci("0000:1b:00.0", driver="mlx5_core", pci_class="0x020000")
    node.add_pci("0000:1c:00.0", vendor="0x8086", pci_class="0x020000")
    assert [f["address"] for f in observe(node)["unbound"]] == ["0000:1b:00.0"]


def test_device_without_ports_is_said(node: FakeNode) -> None:
    node.write("/sys/class/infiniband/mlx5_0/node_guid", "0\n")
    assert observe(node)["problems"][0]["id"] == "hca_unreadable"


def test_neighbours_that_answer_twice_come_first(node: FakeNode) -> None:
    node.add_hca("mlx5_0", netdev="eth1").add_hca("mlx5_1", netdev="eth2")
    rows = [("10.0.0.9", "0x2", "52:54:00:00:00:09", "eth0"), ("10.20.0.2", "0x2", "02:00:00:00:00:22", "eth1")]
    rows += [("10.20.1.3", "0x0", "00:00:00:00:00:00", "eth2"), ("10.20.1.2", "0x2", "02:00:00:00:00:22", "eth2")]
    table = "IP address HW type Flags HW address Mask Device\n" + "".join(
        f"{ip} 0x1 {flags} {mac} * {dev}\n" for ip, flags, mac, dev in rows
    )
    node.write("/proc/net/arp", table)
    assert [(n["ip"], n["netdev"]) for n in observe(node)["neighbours"]] == [
        ("10.20.0.2", "eth1"),
        ("10.20.1.2", "eth2"),
    ]


def test_gpudirect_by_what_the_kernel_exposes(node: FakeNode) -> None:
    node.add_hca("mlx5_0").add_gpu("0000:19:00.0")
    node.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15\n")
    node.write("/proc/kallsyms", "0000000000000000 T ib_umem_dmabuf_get_pinned\t[ib_uverbs]\n")
    stack = observe(node)["stack"]
    assert (stack["gpudirect"]["open_driver"], stack["gpudirect"]["dmabuf"], stack["gpudirect"]["peermem"]) == (
        True,
        True,
        "",
    )
    node.write("/sys/module/nvidia_peermem/version", "570.86.15\n")
    assert observe(node)["stack"]["gpudirect"]["peermem"].endswith("nvidia_peermem/version")


def test_vendor_stack(node: FakeNode) -> None:
    assert observe(node)["stack"]["vendor_stack"] == ""
    node.write("/etc/mlnx-release", "Bluefield-Image_4.9\n")
    assert observe(node)["stack"]["vendor_stack"] == "Bluefield-Image_4.9"
    node.add_tool("ofed_info", "OFED-internal-25.01-0.6.0:\n", when="-s")
    assert observe(node)["stack"]["vendor_stack"] == "OFED-internal-25.01-0.6.0"


def test_needs_no_root(node: FakeNode) -> None:
    """Attributes that only root may read are left out, and the rest is there."""
    node.add_hca("mlx5_0", netdev="eth1", counters={"counters/symbol_error": "0"})
    hidden = node.path("/sys/class/infiniband/mlx5_0/board_id")
    hidden.unlink()
    os.symlink("/nowhere", hidden)
    hca = observe(node)["hcas"][0]
    assert (hca["board_id"], hca["fw_ver"]) == ("", "28.41.1000")


# ---- tools that look at one port

IBLINKINFO = """CA: n1 HCA-1:
      0x0200000000000001      1    1[  ] ==( 4X         106.25 Gbps Active/  LinkUp)==>       2    7[  ] "leaf3" ( )
"""

MLXLINK = """Operational Info
----------------
State                              : Active
Physical state                     : LinkUp
Speed                              : NDR
Width                              : 4x
FEC                                : RS-FEC - (544,514)

Troubleshooting Info
--------------------
Status Opcode                      : 0
Recommendation                     : No issue was observed

Physical Counters and BER Info
------------------------------
Effective Physical Errors          : 0
Effective Physical BER             : 15E-255
"""

LLDP = """{"lldp": {"interface": [{"eth1": {"chassis": {"leaf1": {"id": {"type": "mac", "value": "0a:00:00:00:00:01"}}},
 "port": {"id": {"type": "ifname", "value": "Ethernet7"}}}}]}}"""


def test_neighbour_of_an_infiniband_port(node: FakeNode) -> None:
    node.add_hca("mlx5_0", lid=1, sm_lid=1).add_hca("mlx5_1", netdev="eth1")
    node.add_tool("iblinkinfo", IBLINKINFO, when="-C mlx5_0 -P 1 -D 0 -n 1")
    first, second = observe(node, ["iblinkinfo"])["hcas"]
    assert first["ports"][0]["peer"] == {"switch": "leaf3", "port": "7", "by": "iblinkinfo"}
    assert second["ports"][0]["peer"] is None
    assert [call for call in node.tool_calls() if call.startswith("iblinkinfo")] == [
        "iblinkinfo -C mlx5_0 -P 1 -D 0 -n 1"
    ]


def test_neighbour_of_an_ethernet_port(node: FakeNode) -> None:
    node.add_hca("mlx5_0", netdev="eth1").add_tool("lldpcli", LLDP, when="-f json show neighbors")
    port = observe(node, ["lldp"])["hcas"][0]["ports"][0]
    assert port["peer"] == {"switch": "leaf1", "port": "Ethernet7", "by": "LLDP"}


def test_cable_of_hardware_only(node: FakeNode) -> None:
    node.add_hca("mlx5_0", pci="0000:1b:00.0").add_hca("rxe0", netdev="eth1", driver="rdma_rxe")
    node.add_tool("mlxlink", MLXLINK, when="-d 0000:1b:00.0 -m -c")
    first, second = observe(node, ["mlxlink"])["hcas"]
    assert (first["ports"][0]["cable"]["fec"], first["ports"][0]["cable"]["effective_ber"]) == (
        "RS-FEC - (544,514)",
        0.0,
    )
    assert second["ports"][0]["cable"] is None


def test_port_tool_that_fails_on_one_port(node: FakeNode) -> None:
    node.add_hca("mlx5_0", lid=1, sm_lid=1).add_hca("mlx5_1", lid=2, sm_lid=1)
    node.add_tool("iblinkinfo", IBLINKINFO).add_tool(
        "iblinkinfo", "", "Failed to open mlx5_1 port 1\n", 1, when="-C mlx5_1*"
    )
    said = observe(node, ["iblinkinfo"])["witnesses"]["iblinkinfo"]
    assert (said["devices"], said["unreadable"], said["missing"]) == (["mlx5_0"], ["mlx5_1"], False)
    assert "Failed to open mlx5_1" in said["problem"]
