# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges how error counters moved over a benchmark. Their absolute values say nothing: they count since boot."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.select_hcas import Observation, Port, select_hcas


@dataclasses.dataclass(frozen=True)
class Meaning:
    """What a move of some counters means. most: how many may come in a healthy run."""

    severity: str
    names: tuple[str, ...]
    cause: str
    fix: str
    most: int = 0


#: Documentation/ABI/stable/sysfs-class-infiniband and NVIDIA's "understanding mlx5 counters"; the last names of each are Soft-RoCE's
MEANINGS = (
    Meaning(
        "error",
        ("link_downed", "link_error_recovery"),
        "the link went down during the run: a cable, optics or the switch port",
        "mlxlink -d {hca} -p {port} -m -c; then reseat or swap the cable",
    ),
    Meaning(
        "error",
        ("retry_exceeded_err", "req_transport_retries_exceeded", "retry_rnr_exceeded_err", "req_rnr_retries_exceeded"),
        "a peer did not answer after all retries: connections of the job broke",
        "look at the peers' ports and the path between them; raise NCCL_IB_TIMEOUT only after that",
    ),
    Meaning(
        "warning",
        (
            "symbol_error",
            "port_rcv_errors",
            "port_rcv_remote_physical_errors",
            "local_link_integrity_errors",
            "excessive_buffer_overrun_errors",
            "rx_icrc_encapsulated",
        ),
        "the link corrupts packets",
        "mlxlink -d {hca} -p {port} -m -c; then clean, reseat or swap the cable",
    ),
    Meaning(
        "warning",
        ("port_xmit_discards", "out_of_buffer", "rx_discards_phy"),
        "packets were dropped for want of buffer: congestion, or a priority without flow control",
        "ansible-playbook gpufabric.cluster.roce_qos; look at the switch's queues",
    ),
    Meaning(
        "warning",
        (
            "out_of_sequence",
            "packet_seq_err",
            "local_ack_timeout_err",
            "implied_nak_seq_err",
            "rcvd_seq_err",
            "out_of_seq_request",
            "completer_retry_err",
        ),
        "packets were lost on the way and sent again",
        "ansible-playbook gpufabric.cluster.roce_qos; look for discards on the switches between the nodes",
        most=10,
    ),
)


def judge_counters(nodes: t.Mapping[str, Observation], settings: t.Mapping[str, t.Any]) -> list[Finding]:
    """Findings over results of hca_info that were given an earlier reading; O(N). One a compute port and meaning.

    nodes: {node: {"observed": ...}}, of which ``moved`` holds what rose; settings: the public variables of the role rdma.
    """
    observed = {node: result["observed"] for node, result in nodes.items() if "observed" in result}
    findings = []
    for node, ports in select_hcas(observed, settings).compute.items():
        for port in ports:
            moved = observed[node]["moved"].get(port.subject, {})
            findings += [_finding(port, meaning, moved) for meaning in _meanings(moved)]
    return findings


def _meanings(moved: t.Mapping[str, int]) -> list[Meaning]:
    return [meaning for meaning in MEANINGS if sum(moved.get(name, 0) for name in meaning.names) > meaning.most]


def _finding(port: Port, meaning: Meaning, moved: t.Mapping[str, int]) -> Finding:
    told = ", ".join(f"{name} +{moved[name]}" for name in meaning.names if name in moved)
    return Finding(
        id="hca_counters" if meaning.severity == "warning" else "hca_counters_fatal",
        severity=meaning.severity,
        node=port.node,
        subject=port.subject,
        evidence=f"during the run: {told}",
        expected="no error counted" if not meaning.most else f"{meaning.most} at most",
        cause=meaning.cause,
        fix=meaning.fix.format(hca=port.hca["name"], port=port.port["port"]),
    )
