# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What judge_state says of planted states; a node like its peers has no finding."""

from __future__ import annotations

import copy
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.module_utils._gpu_state import read_smi
from ansible_collections.gpufabric.cluster.plugins.module_utils._kernel_log import KINDS, find_kinds
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_kernel_log import knowledge
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_state import judge_state
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_smi import smi_gpu, smi_xml

GIB = 1 << 30


def state(number: int, **changes: t.Any) -> dict[str, t.Any]:
    links = [
        {"name": "lo", "index": 1, "kind": "virtual", "up": True, "mtu": 65536, "addresses": ["127.0.0.1/8"]},
        {
            "name": "eno1",
            "index": 2,
            "kind": "physical",
            "up": True,
            "mtu": 1500,
            "addresses": [f"192.0.2.{number}/24"],
        },
    ]
    return {
        "firewall": {"sources": ["nft"], "policies": [], "rules": [], "firewalld": "", "problem": ""},
        "gpus": {"present": False, "gpus": [], "services": {}, "problem": ""},
        "kernel_log": {"kinds": {}, "problem": ""},
        "shm": {"bytes": 64 * GIB, "free_bytes": 63 * GIB},
        "interfaces": links,
        "port_range": [32768, 60999],
        "clock": {"synchronized": True},
        "versions": {"kernel": "6.8.0-60", "driver": "570.86.15", "cuda": "12.8", "toolkit": "12.8.0"},
        **copy.deepcopy(changes),
    }


def judged(**of_n2: t.Any) -> list[Finding]:
    states = {f"n{number}": state(number) for number in range(1, 5)}
    states["n2"] = state(2, **of_n2)
    return judge_state({name: {"state": value} for name, value in states.items()}, {})


def ids(findings: t.Sequence[Finding]) -> list[tuple[str, str]]:
    return [(finding.id, finding.node) for finding in findings]


def test_like_its_peers() -> None:
    assert judged() == []


def rule(**changes: t.Any) -> dict[str, t.Any]:
    usual = {
        "where": "nft inet filter in",
        "rule": "drop",
        "protocol": "",
        "ports": [],
        "interfaces": [],
        "narrow": False,
    }
    return {"sources": ["nft"], "policies": [], "firewalld": "", "problem": "", "rules": [{**usual, **changes}]}


@pytest.mark.parametrize(
    ("changes", "hit"),
    [
        ({"protocol": "tcp", "ports": [[1024, 65535]]}, "ephemeral"),
        ({"protocol": "udp", "ports": [[4791, 4791]]}, "UDP 4791"),
        ({"protocol": "tcp", "ports": [[8080, 8080]]}, ""),
        ({"protocol": "tcp", "ports": [[1024, 65535]], "narrow": True}, ""),
        ({"protocol": "tcp", "ports": [[1024, 65535]], "interfaces": ["lo"]}, ""),
    ],
)
def test_firewall_rules(changes: dict[str, t.Any], hit: str) -> None:
    findings = judged(firewall=rule(**changes))
    assert ids(findings) == ([("firewall_rule", "n2")] if hit else [])
    assert all(hit in finding.evidence for finding in findings)


def test_shared_memory_by_the_number_of_gpus() -> None:
    assert ids(judged(shm={"bytes": 64 << 20, "free_bytes": 64 << 20})) == [("shm_small", "n2")]
    assert ids(judged(shm={"bytes": 64 * GIB, "free_bytes": 1 << 20})) == [("shm_full", "n2")]
    assert judged(shm={"bytes": 256 << 20, "free_bytes": 256 << 20}) == []
    eight = {"present": True, **read_smi(smi_xml([smi_gpu(n) for n in range(8)])), "services": {}, "problem": ""}
    eight.update(nvswitches=0, imex_nodes=0, fabricmanager_version="")
    assert ids(judged(gpus=eight, shm={"bytes": 256 << 20, "free_bytes": 256 << 20})) == [("shm_small", "n2")]


def test_an_address_that_several_nodes_have_misleads() -> None:
    def with_bridge(number: int, index: int) -> dict[str, t.Any]:
        links = state(number)["interfaces"]
        bridge = {
            "name": "virbr0",
            "index": index,
            "kind": "bridge",
            "up": True,
            "mtu": 1500,
            "addresses": ["192.168.122.1/24"],
        }
        return state(number, interfaces=sorted([*links, bridge], key=lambda link: link["index"]))

    behind = judge_state({f"n{n}": {"state": with_bridge(n, 9)} for n in (1, 2, 3)}, {})
    assert [(f.id, f.severity, f.subject) for f in behind] == [("interface_misleads", "notice", "virbr0")]
    before = judge_state(
        {
            f"n{n}": {"state": {**with_bridge(n, 9), "interfaces": with_bridge(n, 9)["interfaces"][::-1]}}
            for n in (1, 2)
        },
        {},
    )
    assert [(f.id, f.severity) for f in before] == [("interface_misleads", "warning")]


def test_versions_that_differ() -> None:
    versions = {"kernel": "6.8.0-60", "driver": "550.54.15", "cuda": "12.4", "toolkit": "12.8.0"}
    findings = judged(versions=versions)
    assert ids(findings) == [("mixed_driver", "n2")]
    assert findings[0].expected == "570.86.15, as on 3 of 4 nodes"


def test_a_clock_that_nobody_keeps() -> None:
    assert ids(judged(clock={"synchronized": False})) == [("clock_unsynchronized", "n2")]


def gpus(*entries: str, **changes: t.Any) -> dict[str, t.Any]:
    services = {"nvidia-fabricmanager": "active", "nvidia-imex": "inactive", "nvidia-persistenced": "active"}
    told = {"present": True, "problem": "", **read_smi(smi_xml(entries)), "services": services, "nvswitches": 4}
    return {**told, "fabricmanager_version": "570.86.15", "imex_nodes": 0, "toolkit": "", **changes}


def test_gpus_that_are_well() -> None:
    assert judged(gpus=gpus(smi_gpu(0), smi_gpu(1, reasons={"gpu_idle": "Active"}))) == []


@pytest.mark.parametrize(
    ("told", "finding", "severity"),
    [
        (
            gpus(smi_gpu(0, reasons={"hw_slowdown": "Active", "hw_thermal_slowdown": "Active"})),
            "gpu_clocks_lowered",
            "error",
        ),
        (gpus(smi_gpu(0, reasons={"sw_thermal_slowdown": "Active"})), "gpu_clocks_lowered", "warning"),
        (gpus(smi_gpu(0, limit="500.00 W")), "gpu_power_capped", "warning"),
        (gpus(smi_gpu(0, pending="Yes")), "gpu_row_remap_pending", "warning"),
        (gpus(smi_gpu(0, failure="Yes", pending="Yes")), "gpu_row_remap_failed", "error"),
        (gpus(smi_gpu(0, uncorrectable="2")), "gpu_ecc_uncorrectable", "error"),
        (gpus(smi_gpu(0, width="8x")), "gpu_pcie_narrow", "warning"),
        (gpus(smi_gpu(0, state="In Progress", status="N/A")), "gpu_fabric_incomplete", "error"),
        (gpus(smi_gpu(0), services={"nvidia-fabricmanager": "failed"}), "fabricmanager_not_running", "error"),
        (gpus(smi_gpu(0), fabricmanager_version="550.54.15"), "fabricmanager_version", "error"),
        (gpus(smi_gpu(0), services={"nvidia-imex": "inactive"}, imex_nodes=18), "imex_not_running", "error"),
        (gpus(problem="nvidia-smi ended with exit status 18"), "nvidia_smi_failed", "error"),
    ],
)
def test_gpus_that_are_not(told: dict[str, t.Any], finding: str, severity: str) -> None:
    assert [(f.id, f.node, f.severity) for f in judged(gpus=told)] == [(finding, "n2", severity)]


def test_the_kernels_log() -> None:
    text = "NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.\nNVRM: Xid (PCI:0000:4e:00): 999, new\n"
    findings = judged(kernel_log={"kinds": find_kinds(text), "problem": ""})
    assert [(f.severity, f.subject) for f in findings] == [
        ("error", "Xid 79 of GPU 0000:4e:00"),
        ("warning", "Xid 999 of GPU 0000:4e:00"),
    ]
    assert "xid-errors" in findings[1].fix


def test_every_kind_of_line_has_its_words() -> None:
    assert set(knowledge()["kernel_log"]) | {"xid"} == set(KINDS)
