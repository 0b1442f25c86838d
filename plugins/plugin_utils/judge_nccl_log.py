# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What NCCL's own log says against a run that was fast enough: versions that differ, GPUDirect RDMA that is off, HCAs that idle."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.expectation import Run, nvlink_gbs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.line_rates import LineRates, Nodes
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.transport import family


def judge_nccl_log(run: Run, nodes: Nodes, rates: LineRates, what: str) -> list[Finding]:
    """Findings on the log that belongs to *run* (transport.log), by the node that the log's hosts are. what: the run in words."""
    log = run["transport"].get("log")
    if not log:
        return []
    names = {hostname: node for node, hostname in run["hostnames"].items()}
    findings = _versions(log, what)
    if family(str(log["transport"] or "")) == "IB" and run["stage"] != "node":
        for host, directions in log["gdr_by_host"].items():
            findings += _gdr(names.get(host, host), directions, nodes, what)
        findings += _hcas(log, names, rates, run, what)
    return findings


def _versions(log: t.Mapping[str, t.Any], what: str) -> list[Finding]:
    versions = log["versions"]["nccl"]
    if len(versions) < 2:
        return []
    return [
        Finding(
            id="nccl_versions_differ",
            severity="error",
            node="",
            subject=what,
            evidence=f"the ranks have NCCL {', '.join(versions)}",
            expected="one version on all nodes, or in one image",
            fix="install the same libnccl2 on all nodes; in containers pin the image by its digest",
        )
    ]


def _gdr(node: str, directions: t.Mapping[str, t.Mapping[str, int]], nodes: Nodes, what: str) -> list[Finding]:
    """Receiving through GPUDirect RDMA is on wherever the HCA can reach the GPU's memory. Sending (NIC reads from the GPU) is on by
    default only where GPUs have NVLink, so without it one direction alone is right (NCCL_NET_GDR_READ, paths.cc)."""
    receive = directions.get("receive", {}).get("with", 0)
    send = directions.get("send", {}).get("with", 0)
    gpus = nodes.get(node, {}).get("node", {}).get("observed", {}).get("gpus", [])
    has_nvlink = bool(gpus) and nvlink_gbs(gpus[0]["name"]) is not None
    if receive and (send or not has_nvlink):
        return []
    if not receive and not send and not any(directions.get(way, {}).get("without", 0) for way in ("receive", "send")):
        return []
    missing = "in one direction only" if receive or send else "not at all"
    return [
        Finding(
            id="gdr_off",
            severity="warning",
            node=node,
            subject=what,
            evidence=f"channels with GPUDirect RDMA: {send} sending, {receive} receiving: {missing}",
            expected="GPUDirect RDMA on every channel",
            cause="nvidia_peermem is not loaded and the kernel has no DMA-BUF for it, or GPU and HCA are too far apart (ACS, IOMMU)",
            fix="modprobe nvidia_peermem, or NCCL_DMABUF_ENABLE=1 with the open kernel modules; nvidia-smi topo -m shows the distance",
        )
    ]


def _hcas(
    log: t.Mapping[str, t.Any], names: t.Mapping[str, str], rates: LineRates, run: Run, what: str
) -> list[Finding]:
    used: dict[str, set[int]] = {}
    for entry in log["net_devices_used"]:
        used.setdefault(entry["host"], set()).add(entry["device"])
    findings = []
    for host, devices in used.items():
        node = names.get(host, host)
        active = rates.hcas(node)
        ranks = run["ranks"] // max(len(run["nodes"]), 1)
        # A node uses no more HCAs than it has ranks, and a run over one rail is meant to use one.
        wanted = min(len(active), ranks)
        if not run["rail"] and len(devices) < wanted:
            findings.append(
                Finding(
                    id="hcas_unused",
                    severity="warning",
                    node=node,
                    subject=what,
                    evidence=f"{len(devices)} of {len(active)} active HCAs were used by {ranks} ranks",
                    expected=f"{wanted} HCAs",
                    cause="NCCL_IB_HCA leaves some out, or the topology that NCCL sees is not the machine's",
                    fix="compare NCCL_IB_HCA with rdma link; in virtual machines set NCCL_TOPO_FILE",
                )
            )
    return findings
