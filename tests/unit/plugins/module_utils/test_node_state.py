# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""read_state on fake roots: firewalls, GPUs, kernel logs, interfaces."""

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._firewall import read_iptables, read_nft
from ansible_collections.gpufabric.cluster.plugins.module_utils._gpu_state import read_smi
from ansible_collections.gpufabric.cluster.plugins.module_utils._kernel_log import find_kinds
from ansible_collections.gpufabric.cluster.plugins.module_utils._node_state import read_state
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_node import FakeNode
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_smi import smi_gpu, smi_xml


@pytest.fixture
def node(tmp_path: pathlib.Path) -> FakeNode:
    fake = FakeNode(tmp_path / "n1")
    fake.path("/dev/shm").mkdir(parents=True)
    fake.write("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n")
    return fake


def read(node: FakeNode) -> dict[str, t.Any]:
    fs = RootedFs(node.root)
    return read_state(fs, Tools(fs))


def nft(*entries: dict[str, t.Any]) -> str:
    return json.dumps({"nftables": [{"metainfo": {"version": "1.0.6"}}, *entries]})


CHAIN = {
    "chain": {"family": "inet", "table": "filter", "name": "in", "type": "filter", "hook": "input", "policy": "accept"}
}


def rule(*expressions: dict[str, t.Any], chain: str = "in") -> dict[str, t.Any]:
    return {"rule": {"family": "inet", "table": "filter", "chain": chain, "handle": 2, "expr": list(expressions)}}


def match(left: dict[str, t.Any], right: t.Any, op: str = "==") -> dict[str, t.Any]:
    return {"match": {"op": op, "left": left, "right": right}}


def dport(protocol: str, right: t.Any) -> dict[str, t.Any]:
    return match({"payload": {"protocol": protocol, "field": "dport"}}, right)


def test_a_bare_node(node: FakeNode) -> None:
    state = read(node)
    assert state["firewall"] == {"sources": [], "policies": [], "rules": [], "problem": "", "firewalld": ""}
    assert state["gpus"]["present"] is False
    assert state["kernel_log"] == {"kinds": {}, "problem": "dmesg is not installed"}
    assert state["port_range"] == [32768, 60999]
    assert state["clock"] == {"synchronized": None}
    assert state["shm"]["bytes"] > 0


def test_nft_rules_that_take_packets(node: FakeNode) -> None:
    entries = [
        CHAIN,
        rule(match({"meta": {"key": "iifname"}}, "eth1"), dport("udp", 4791), {"drop": None}),
        rule(dport("tcp", {"range": [1024, 65535]}), {"counter": {"packets": 3}}, {"reject": None}),
        rule(dport("tcp", {"set": [22, {"range": [80, 90]}]}), {"accept": None}),
        rule(match({"payload": {"protocol": "ip", "field": "saddr"}}, "192.0.2.1"), {"drop": None}),
    ]
    node.add_tool("nft", nft(*entries))
    node.add_tool("firewall-cmd", "running\n")
    firewall = read(node)["firewall"]
    assert [(r["protocol"], r["ports"], r["interfaces"], r["narrow"]) for r in firewall["rules"]] == [
        ("udp", [[4791, 4791]], ["eth1"], False),
        ("tcp", [[1024, 65535]], [], False),
        ("", [], [], True),
    ]
    assert firewall["rules"][0]["where"] == "nft inet filter in"
    assert firewall["rules"][0]["rule"] == "udp ports 4791 on eth1 drop"
    assert firewall["policies"] == [] and firewall["firewalld"] == "running"


def test_an_nft_policy_counts_what_is_accepted() -> None:
    drops = {"chain": {**CHAIN["chain"], "policy": "drop"}}
    found = read_nft([drops, rule(dport("tcp", 22), {"accept": None}), rule({"accept": None})])
    assert found["policies"] == [{"where": "nft inet filter in", "policy": "drop", "accepts": 2}]
    forward = {"chain": {**CHAIN["chain"], "name": "fwd", "hook": "forward", "policy": "drop"}}
    assert read_nft([forward, rule({"drop": None}, chain="fwd")]) == {"policies": [], "rules": []}


def test_an_nft_that_may_not_be_asked(node: FakeNode) -> None:
    node.add_tool("nft", "", "Operation not permitted (you must be root)\n", 1)
    assert "must be root" in read(node)["firewall"]["problem"]


def test_iptables() -> None:
    text = """*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
-A INPUT -i lo -j ACCEPT
-A INPUT -p tcp -m multiport --dports 22,30000:60000 -j DROP
-A INPUT -s 192.0.2.0/24 -j REJECT --reject-with icmp-port-unreachable
-A FORWARD -j DROP
COMMIT
"""
    found = read_iptables(text)
    assert found["policies"] == [{"where": "iptables INPUT", "policy": "drop", "accepts": 1}]
    assert [(r["protocol"], r["ports"], r["narrow"]) for r in found["rules"]] == [
        ("tcp", [[22, 22], [30000, 60000]], False),
        ("", [], True),
    ]


def test_gpus_of_a_new_driver(node: FakeNode) -> None:
    idle = {"gpu_idle": "Active", "sw_power_cap": "Not Active"}
    hot = {"hw_slowdown": "Active", "hw_thermal_slowdown": "Active"}
    gpus = [
        smi_gpu(0, reasons=idle),
        smi_gpu(1, reasons=hot, limit="500.00 W", pending="Yes", state="In Progress", status="N/A"),
    ]
    node.add_tool("nvidia-smi", smi_xml(gpus), when="-q -x")
    node.add_tool("systemctl", "active\ninactive\nactive\n", rc=3, when="is-active *")
    node.write("/dev/nvidia-nvswitch0", "").write("/dev/nvidia-nvswitchctl", "")
    node.add_tool("nv-fabricmanager", "Fabric Manager version is : 570.86.15\n", when="--version")
    node.write("/usr/local/cuda/version.json", '{"cuda": {"name": "CUDA SDK", "version": "12.8.0"}}')
    state = read(node)["gpus"]
    first, second = state["gpus"]
    assert state["driver"] == "570.86.15" and state["toolkit"] == "12.8.0" and state["nvswitches"] == 1
    assert state["services"] == {
        "nvidia-fabricmanager": "active",
        "nvidia-imex": "inactive",
        "nvidia-persistenced": "active",
    }
    assert state["fabricmanager_version"] == "570.86.15"
    assert first["reasons"] == [] and first["power_limit_w"] == 700.0
    assert second["reasons"] == ["hw_slowdown", "hw_thermal_slowdown"] and second["power_limit_w"] == 500.0
    assert second["remapped"]["pending"] and not first["remapped"]["pending"]
    assert second["fabric"] == {"state": "In Progress", "status": "N/A"}
    assert first["pcie"] == {"gen": 5.0, "max_gen": 5.0, "width": 16.0, "max_width": 16.0}


def test_gpus_of_an_old_driver() -> None:
    found = read_smi(smi_xml([smi_gpu(0, reasons={"hw_slowdown": "Active"}, old=True)]))["gpus"][0]
    assert found["reasons"] == ["hw_slowdown"] and found["power_limit_w"] == 700.0
    assert found["fabric"] == {"state": "", "status": ""} and found["ecc_uncorrectable"] == 0


@pytest.mark.parametrize(
    "text", ["", "NVIDIA-SMI has failed because it couldn't communicate with the driver", "<nvidia_smi_log>", "<a/>"]
)
def test_an_answer_that_is_none(text: str) -> None:
    assert read_smi(text)["gpus"] == []


def test_a_driver_that_does_not_answer(node: FakeNode) -> None:
    node.add_tool("nvidia-smi", "", "Failed to initialize NVML: Driver/library version mismatch\n", 18)
    gpus = read(node)["gpus"]
    assert gpus["present"] and "version mismatch" in gpus["problem"]


def test_kernel_log_lines_by_kind() -> None:
    text = """[    0.000000] Linux version 6.8.0
[   12.5] IPv6: ADDRCONF(NETDEV_UP): eth1: link is not ready
[  100.1] NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[  100.2] NVRM: Xid (PCI:0000:4e:00): 79, pid=77, name=python3, GPU has fallen off the bus.
[  101.0] NVRM: Xid (PCI:0000:5f:00): 48, pid=78, name=python3, DBE
[  200.0] mlx5_core 0000:1a:00.0: mlx5_health_check: device's health compromised - reached miss count
[  201.0] mlx5_core 0000:1a:00.0 ens1f0np0: Link down
[  300.0] Out of memory: Killed process 4242 (python3) total-vm:1kB
"""
    kinds = find_kinds(text)
    assert {kind: found["count"] for kind, found in kinds.items()} == {
        "xid": 3,
        "hca_error": 1,
        "link_flap": 1,
        "out_of_memory": 1,
    }
    assert kinds["xid"]["codes"] == {"79": 2, "48": 1} and kinds["xid"]["devices"] == ["0000:4e:00", "0000:5f:00"]
    assert find_kinds("") == {}


def test_interfaces_in_the_kernels_order(node: FakeNode) -> None:
    node.add_netdev("eth0", addresses=["192.0.2.10/24"]).add_netdev("docker0", addresses=["172.17.0.1/16"])
    node.write("/sys/class/net/eth0/ifindex", "2\n").write("/sys/class/net/docker0/ifindex", "5\n")
    node.write("/sys/class/net/docker0/bridge/bridge_id", "8000.0\n")
    links = read(node)["interfaces"]
    assert [(link["name"], link["kind"], link["addresses"]) for link in links] == [
        ("eth0", links[0]["kind"], ["192.0.2.10/24"]),
        ("docker0", "bridge", ["172.17.0.1/16"]),
    ]
