# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges what the RDMA tools said beside sysfs: missing, failed, or of another opinion."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import listed
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.select_hcas import Observation, Selection

#: ibpanic and ibwarn print their process id, which makes the same complaint another text on each node
PROCESS_ID = re.compile(r"\[\d+\] ")

#: which package brings a tool, in the words of Debian / RHEL / SLES
PACKAGES = {
    "ibstat": "infiniband-diags",
    "iblinkinfo": "infiniband-diags",
    "ibv_devinfo": "ibverbs-utils (Debian), libibverbs-utils (RHEL, SLES)",
    "rdma": "iproute2",
    "lldp": "lldpd",
}

#: tools that come with a vendor's stack: their absence says nothing about a node
VENDORS_OWN = ("ibdev2netdev", "mlxlink")


def judge_witnesses(nodes: t.Mapping[str, Observation], selection: Selection) -> list[Finding]:
    """Warnings and notices: sysfs is the source. One error: user space that cannot open a compute HCA."""
    findings = []
    for node, observed in nodes.items():
        for name, said in observed["witnesses"].items():
            if said["missing"]:
                findings += [_not_installed(node, name)] if name not in VENDORS_OWN else []
            elif said["problem"] and observed["hcas"]:
                findings.append(_failed(node, name, said))
        findings += _no_user_space(node, observed, selection)
        findings += _disagreeing(node, observed, selection)
    return findings


def _not_installed(node: str, name: str) -> Finding:
    return Finding(
        id="rdma_tool_missing",
        severity="notice",
        node=node,
        subject=name,
        evidence=f"{name} is not installed",
        expected="the tool beside sysfs, for a second opinion",
        cause="sysfs alone was read; only what the tool adds is unknown (ibv_devinfo: the active MTU)",
        fix=f"install {PACKAGES.get(name, name)}, or leave {name} out of rdma_witnesses",
    )


def _failed(node: str, name: str, said: t.Mapping[str, t.Any]) -> Finding:
    at = f"; it gave up at {listed(said['unreadable'])}" if said["unreadable"] else ""
    return Finding(
        id="rdma_tool_failed",
        severity="warning",
        node=node,
        subject=name,
        evidence=f"{PROCESS_ID.sub('', said['problem'])}{at}",
        expected="an answer about every device",
        cause="the tool stops at the first device that it cannot read; sysfs was read in full",
        fix=f"{name}; renamed or unreadable devices are the usual reason",
    )


def _no_user_space(node: str, observed: Observation, selection: Selection) -> list[Finding]:
    """Compute HCAs that the kernel has and libibverbs does not open: NCCL would take TCP without a word."""
    said = observed["witnesses"].get("ibv_devinfo")
    if not said or said["missing"] or "did not end" in said["problem"]:
        return []
    unseen = sorted({port.hca["name"] for port in selection.compute[node]} - set(said["devices"]))
    if not unseen:
        return []
    drivers = ", ".join(
        sorted({port.hca["rdma_driver"] for port in selection.compute[node] if port.hca["name"] in unseen})
    )
    providers = observed["stack"]["providers"]
    return [
        Finding(
            id="hca_no_user_space",
            severity="error",
            node=node,
            subject=listed(unseen, 12),
            evidence=f"ibv_devinfo lists {listed(said['devices']) or 'no device'}; providers installed: "
            f"{listed(providers) or 'none'}",
            expected=f"{listed(unseen, 12)} in user space too, as in /sys/class/infiniband",
            cause=f"libibverbs has no provider for {drivers}, or ib_uverbs is not loaded; NCCL would fall back to TCP",
            fix="modprobe ib_uverbs; apt-get install ibverbs-providers (Debian) or rdma-core (RHEL, SLES), in images too",
        )
    ]


def _disagreeing(node: str, observed: Observation, selection: Selection) -> list[Finding]:
    """Compute ports of which a tool says another state than sysfs."""
    findings = []
    for port in selection.compute[node]:
        key = f"{port.hca['name']}/{port.port['port']}"
        states = {name: said["ports"].get(key, {}).get("state") for name, said in observed["witnesses"].items()}
        others = {name: state for name, state in states.items() if state and state != port.port["state"]}
        if others:
            findings.append(
                Finding(
                    id="rdma_witness_disagrees",
                    severity="warning",
                    node=node,
                    subject=port.subject,
                    evidence=f"sysfs says {port.port['state']}, "
                    + ", ".join(f"{name} says {state}" for name, state in others.items()),
                    expected="one answer",
                    cause="the port changed while it was read: it may be flapping",
                    fix=f"watch -n1 cat /sys/class/infiniband/{port.hca['name']}/ports/{port.port['port']}/state",
                )
            )
    return findings
