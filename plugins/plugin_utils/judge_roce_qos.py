# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges whether RoCE traffic is lossless and marked as it should be, from the adapter to NCCL's own traffic class."""

from __future__ import annotations

import collections
import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import listed

Seen = t.Mapping[str, t.Any]

#: the two ECN bits of a traffic class; ECT(0) says that the sender understands marks (RFC 3168)
ECN_BITS = 0x3
ECT_0 = 0x2


@dataclasses.dataclass(frozen=True)
class Goal:
    """What the role's variables ask for. traffic_class: DSCP in its upper six bits, ECN in the lower two."""

    traffic_class: int
    priority: int
    ecn: bool
    cnp_dscp: int

    @property
    def dscp(self) -> int:
        return self.traffic_class >> 2

    @classmethod
    def of(cls, settings: t.Mapping[str, t.Any]) -> Goal:
        return cls(
            int(settings.get("roce_qos_traffic_class", 106)),
            int(settings.get("roce_qos_priority", 3)),
            bool(settings.get("roce_qos_ecn", True)),
            int(settings.get("roce_qos_cnp_dscp", 48)),
        )


@dataclasses.dataclass(frozen=True)
class _Wrong:
    """A deviation of one interface, without the interface, so that those of a node can be put together."""

    id: str
    severity: str
    evidence: str
    expected: str
    cause: str
    fix: str


def judge_roce_qos(nodes: t.Mapping[str, Seen], settings: t.Mapping[str, t.Any]) -> list[Finding]:
    """Findings over the registered results of roce_qos_info; O(N). One finding a node for interfaces that share it."""
    goal = Goal.of(settings)
    findings = []
    for node, result in nodes.items():
        observed = result.get("observed")
        if observed is None:
            continue
        together: dict[_Wrong, list[str]] = collections.defaultdict(list)
        for seen in observed["interfaces"]:
            for wrong in _interface(seen, goal):
                together[wrong].append(str(seen["interface"]))
        findings += [_finding(node, wrong, names) for wrong, names in together.items()]
        if observed["interfaces"] and observed.get("nccl_final", True):
            findings += _nccl(node, observed, goal)
        findings += [_not_applied(node, entry) for entry in observed.get("applied", []) if entry["status"] == "failed"]
        findings += [_unread(node, problem) for problem in observed["problems"]]
    return findings


def _finding(node: str, wrong: _Wrong, names: t.Sequence[str]) -> Finding:
    values = dataclasses.asdict(wrong)
    values["fix"] = wrong.fix.replace("{interface}", names[0])
    return Finding(node=node, subject=listed(names, 12), **values)


def _interface(seen: Seen, goal: Goal) -> t.Iterator[_Wrong]:
    if not seen["tool"]:
        yield _Wrong(
            "roce_qos_unknown",
            "warning",
            f"trust and PFC cannot be read: {seen['problem']}",
            f"trust dscp, PFC on priority {goal.priority}",
            "no tool is installed, or the driver has no DCB",
            "install iproute2 (dcb) or mlnx-tools (mlnx_qos)",
        )
    else:
        yield from _lossless(seen, goal)
    if goal.ecn:
        yield from _ecn(seen, goal)
    yield from _classes(seen, goal)
    if any(seen["pause"].values()):
        yield _Wrong(
            "roce_qos_global_pause",
            "warning",
            f"global pause is on (rx {_on(seen['pause']['rx'])}, tx {_on(seen['pause']['tx'])})",
            "off: PFC and global pause exclude each other",
            "global pause stops all priorities, so congestion spreads to everything on the link",
            "ethtool -A {interface} rx off tx off",
        )


def _on(value: bool | None) -> str:
    return {True: "on", False: "off"}.get(t.cast(bool, value), "unknown")


def _lossless(seen: Seen, goal: Goal) -> t.Iterator[_Wrong]:
    """Trust, DSCP table and PFC, with one root cause named once: without trust in DSCP the table does not count."""
    owner = _owner(seen)
    if seen["trust"] not in (None, "dscp"):
        yield _Wrong(
            "roce_qos_trust",
            "error",
            f"trust {seen['trust']}{owner}",
            f"trust dscp, so that DSCP {goal.dscp} reaches priority {goal.priority}",
            "untagged RoCE v2 packets have no PCP: all of them go to priority 0, which is lossy",
            _how(
                seen,
                f"--trust dscp --dscp2prio set,{goal.dscp},{goal.priority}",
                f"app replace dev {{interface}} dscp-prio {goal.dscp}:{goal.priority}",
            ),
        )
    elif seen["trust"] == "dscp" and seen["dscp_prio"].get(str(goal.dscp)) not in (None, goal.priority):
        yield _Wrong(
            "roce_qos_dscp",
            "error",
            f"DSCP {goal.dscp} goes to priority {seen['dscp_prio'][str(goal.dscp)]}{owner}",
            f"priority {goal.priority}",
            f"traffic class {goal.traffic_class} carries DSCP {goal.dscp}: it would travel on a priority without PFC",
            _how(
                seen,
                f"--dscp2prio set,{goal.dscp},{goal.priority}",
                f"app replace dev {{interface}} dscp-prio {goal.dscp}:{goal.priority}",
            ),
        )
    bits = ",".join(str(int(prio == goal.priority)) for prio in range(8))
    set_pfc = _how(seen, f"--pfc {bits}", f"pfc set dev {{interface}} prio-pfc all:off {goal.priority}:on")
    if seen["pfc"] is None:
        yield _Wrong(
            "roce_qos_pfc_unknown",
            "warning",
            f"{seen['tool']} printed no PFC table",
            f"PFC on priority {goal.priority}",
            "the tool's answer was cut short, or the driver does not say",
            f"{seen['tool']} on the node, by hand",
        )
    elif goal.priority not in seen["pfc"]:
        yield _Wrong(
            "roce_qos_pfc",
            "error",
            f"PFC on {_list(seen['pfc'])}{owner}",
            f"PFC on priority {goal.priority}",
            "the priority of RoCE is lossy: under load packets drop and bandwidth collapses",
            set_pfc,
        )
    elif len(seen["pfc"]) > 1:
        yield _Wrong(
            "roce_qos_pfc_more",
            "warning",
            f"PFC on {_list(seen['pfc'])}{owner}",
            f"PFC on priority {goal.priority} alone",
            "each lossless priority takes buffer from the others and spreads congestion",
            set_pfc,
        )


def _owner(seen: Seen) -> str:
    whose = {"firmware": "the firmware (DCBX with the switch)", "agent": "an LLDP agent (DCBX with the switch)"}.get(
        seen["dcbx"]
    )
    return f"; the settings belong to {whose}" if whose else ""


def _how(seen: Seen, by_mlnx_qos: str, by_dcb: str) -> str:
    if seen["dcbx"] in ("firmware", "agent"):
        take = (
            "mlnx_qos -i {interface} -d os" if seen["tool"] == "mlnx_qos" else "dcb dcbx set dev {interface} host ieee"
        )
        return f"correct it at the switch, which hands it out by DCBX; or take it over: {take}"
    return f"mlnx_qos -i {{interface}} {by_mlnx_qos}" if seen["tool"] == "mlnx_qos" else f"dcb {by_dcb}"


def _list(priorities: t.Sequence[int]) -> str:
    return f"priorities {', '.join(map(str, priorities))}" if priorities else "no priority"


def _ecn(seen: Seen, goal: Goal) -> t.Iterator[_Wrong]:
    ecn = seen["ecn"]
    prio = str(goal.priority)
    off = [role for role in ("np", "rp") if ecn[role].get(prio) is False]
    if off:
        yield _Wrong(
            "roce_qos_ecn",
            "error",
            f"ECN is off on priority {prio} as {' and '.join({'np': 'notification point', 'rp': 'reaction point'}[r] for r in off)}",
            f"ECN on priority {prio} in both roles",
            "without DCQCN only PFC holds congestion back, which stops whole links",
            "; ".join(f"echo 1 > /sys/class/net/{{interface}}/ecn/roce_{role}/enable/{prio}" for role in off),
        )
    elif not ecn["source"]:
        yield _Wrong(
            "roce_qos_ecn_unknown",
            "notice",
            "neither sysfs nor debugfs shows the adapter's ECN settings",
            f"ECN on priority {prio}",
            "the driver does not show them, debugfs is not mounted, or the reader is not root",
            "mount -t debugfs none /sys/kernel/debug; run with become",
        )
    if ecn["cnp_dscp"] is not None and ecn["cnp_dscp"] != goal.cnp_dscp:
        yield _Wrong(
            "roce_qos_cnp",
            "warning",
            f"congestion notifications carry DSCP {ecn['cnp_dscp']}",
            f"DSCP {goal.cnp_dscp}",
            "notifications that queue behind data arrive too late to help",
            f"echo {goal.cnp_dscp} > "
            + (
                "/sys/class/net/{interface}/ecn/roce_np/cnp_dscp"
                if ecn["source"] == "sysfs"
                else f"/sys/kernel/debug/mlx5/{seen['pci']}/cc_params/np_cnp_dscp"
            ),
        )


def _classes(seen: Seen, goal: Goal) -> t.Iterator[_Wrong]:
    if seen["tclass"] not in (None, 0, goal.traffic_class):
        yield _Wrong(
            "roce_qos_tclass",
            "error",
            f"the adapter overrides every traffic class with {seen['tclass']} (DSCP {seen['tclass'] >> 2})",
            f"{goal.traffic_class}, or no override",
            "the override covers queue pairs that the kernel makes and no others, so traffic splits over two priorities",
            f"echo {goal.traffic_class} > /sys/class/infiniband/{seen['hca']}/tc/{seen['port']}/traffic_class",
        )
    if seen["cma_tos"] not in (None, goal.traffic_class):
        yield _Wrong(
            "roce_qos_cma",
            "warning",
            f"rdma_cm gives new connections type of service {seen['cma_tos']}",
            str(goal.traffic_class),
            "applications that connect by rdma_cm (storage, UCX, MPI) use the lossy priority",
            f"cma_roce_tos -d {seen['hca']} -p {seen['port']} -t {goal.traffic_class}",
        )


def _nccl(node: str, observed: Seen, goal: Goal) -> list[Finding]:
    """NCCL_IB_TC of the node's nccl.conf against the fabric's traffic class."""
    text = observed["nccl_tc"]
    overridden = all(seen["tclass"] == goal.traffic_class for seen in observed["interfaces"])
    if text is None:
        if overridden:
            return []
        evidence, severity = "/etc/nccl.conf sets no NCCL_IB_TC, and NCCL's default is 0 (DSCP 0)", "warning"
    elif not text.isdecimal() or int(text) != goal.traffic_class:
        evidence, severity = f"NCCL_IB_TC={text} in /etc/nccl.conf", "error"
    else:
        return _no_ect(node, goal)
    return [
        Finding(
            id="roce_qos_nccl",
            severity=severity,
            node=node,
            subject="NCCL_IB_TC",
            evidence=evidence,
            expected=f"NCCL_IB_TC={goal.traffic_class} (DSCP {goal.dscp}, priority {goal.priority})",
            cause="NCCL marks its own packets: with another class they miss the lossless priority",
            fix=f"set NCCL_IB_TC={goal.traffic_class} by the role nccl_env",
        )
    ]


def _no_ect(node: str, goal: Goal) -> list[Finding]:
    if not goal.ecn or goal.traffic_class & ECN_BITS == ECT_0:
        return []
    return [
        Finding(
            id="roce_qos_no_ect",
            severity="warning",
            node=node,
            subject="NCCL_IB_TC",
            evidence=f"traffic class {goal.traffic_class} has the ECN bits {goal.traffic_class & ECN_BITS:02b}",
            expected=f"{goal.dscp << 2 | ECT_0} (DSCP {goal.dscp} with ECT(0))",
            cause="switches drop packets in place of marking them if the sender does not announce ECN",
            fix=f"roce_qos_traffic_class: {goal.dscp << 2 | ECT_0}, and NCCL_IB_TC alike",
        )
    ]


def _not_applied(node: str, entry: Seen) -> Finding:
    return Finding(
        id="roce_qos_not_applied",
        severity="error",
        node=node,
        subject=f"{entry['interface']} {entry['setting']}",
        evidence=entry["why"],
        expected="the setting that was asked for",
        cause="the adapter or its driver refused it",
        fix="dmesg | tail; then set it by hand to see the reason",
    )


def _unread(node: str, problem: Seen) -> Finding:
    return Finding(
        id=problem["id"],
        severity="warning",
        node=node,
        subject=problem["subject"],
        evidence=problem["evidence"],
        expected="an interface that can be read",
        cause="the name is misspelt, or the interface is gone",
        fix="ip -br link; then correct roce_qos_interfaces",
    )
