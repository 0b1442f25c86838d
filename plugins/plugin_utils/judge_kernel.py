# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges what sysctl_profile found: keys now, keys after the next boot, locked memory, and what only firmware can change."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.module_utils._memlock import limits_in

Node = t.Mapping[str, t.Any]

APPLY = "ansible-playbook gpufabric.cluster.kernel --limit {node}"

#: statuses of a key that is as it should be
_GOOD = ("already", "applied")
#: statuses that say what the node cannot do, rather than that somebody changed it: {status: (finding, cause, fix)}
_CANNOT = {
    "unsupported": (
        "sysctl_unsupported",
        "this kernel or network namespace has no such key",
        "load the module that brings the key, or leave it out: kernel_tuning_sysctl: {{{key}: null}}",
    ),
    "value_not_available": (
        "sysctl_value_not_available",
        "the kernel knows no such value, because the module that brings it is missing",
        "install the kernel's full module package and load it, or choose another value: kernel_tuning_sysctl: {{{key}: ...}}",
    ),
    "read_only": (
        "sysctl_read_only",
        "a container or network namespace may read this key and not set it",
        "set it on the host that carries this node: sysctl -w {key}='{wanted}'",
    ),
}


def judge_kernel(nodes: t.Mapping[str, Node], settings: t.Mapping[str, t.Any]) -> list[Finding]:
    """Findings over the registered results of sysctl_profile, a node each. O(number of keys of all nodes).

    A key that is wrong now and at the next boot gives one finding, not two.
    """
    findings = []
    for name, node in nodes.items():
        findings += _judge_node(name, node)
    return findings


def _judge_node(name: str, node: Node) -> list[Finding]:
    if node.get("held"):
        return _held(name, node)
    lost = {entry["key"]: entry for entry in _boot_losses(node)}
    findings = [f for f in (_key(name, key, lost.get(key["key"])) for key in node["keys"]) if f]
    return (
        findings
        + _home(name, node)
        + _files(name, node)
        + _memlock(name, node)
        + _platform(name, node.get("platform", {}))
        + _problems(name, node)
        + _given_back(name, node)
    )


def _held(name: str, node: Node) -> list[Finding]:
    open_keys = [key["key"] for key in node["keys"] if key["status"] == "differs"]
    if not open_keys:
        return []
    return [
        Finding(
            id="kernel_left_alone",
            severity="notice",
            node=name,
            subject="kernel parameters",
            evidence=f"{len(open_keys)} keys are not as wanted ({', '.join(open_keys)}) and were left alone: {node['held']}",
            expected="an idle node",
            cause="a change under running work could disturb it",
            fix=f"drain it, then {APPLY.format(node=name)}; or say -e gpufabric_busy=ignore",
        )
    ]


def _given_back(name: str, node: Node) -> list[Finding]:
    """That the canary stopped at this node's batch. `canary`: {because: [nodes], untouched: number of nodes}."""
    canary = node.get("canary")
    if not canary:
        return []
    return [
        Finding(
            id="kernel_batch_given_back",
            severity="notice",
            node=name,
            subject="canary",
            evidence=f"the batch of this node was given back, since {', '.join(canary['because'])} did not pass; "
            f"{canary['untouched']} nodes were not touched",
            expected="every node of the batch without an error",
            cause="a batch is given back as a whole, so that no node keeps half-proven settings",
            fix="correct what the errors name, then run the playbook again",
        )
    ]


def _key(name: str, key: Node, lost: Node | None) -> Finding | None:
    status = key["status"]
    wanted = f"{key['key']} = {key['wanted']}"
    if status in _CANNOT:
        finding, cause, fix = _CANNOT[status]
        return Finding(
            id=finding,
            severity="warning",
            node=name,
            subject=key["key"],
            evidence=key["evidence"],
            expected=wanted,
            cause=cause,
            fix=fix.format(key=key["key"], wanted=key["wanted"]),
        )
    if status not in _GOOD:
        now = f"{key['key']} = {key['value']}" if key["value"] is not None else key["evidence"]
        says = key["evidence"] if status == "failed" else now
        return Finding(
            id="sysctl_failed" if status == "failed" else "sysctl_differs",
            severity="error",
            node=name,
            subject=key["key"],
            evidence=says + (f"; and at the next boot {_winner(lost)}" if lost else ""),
            expected=wanted,
            cause="the kernel refuses the value" if status == "failed" else "it was never applied, or changed since",
            fix=_unseat(lost) if lost else _fix(name, key),
        )
    if lost:
        return Finding(
            id="sysctl_lost_at_boot",
            severity="error",
            node=name,
            subject=key["key"],
            evidence=_winner(lost),
            expected=f"{wanted} after the next boot as well",
            cause=f"{lost['setter']} has the last word" if lost["path"] else "no file sets it at boot",
            fix=_unseat(lost) if lost["path"] else APPLY.format(node=name),
        )
    if key.get("effective") is not None:
        every = ".".join(["net.ipv4.conf.all", key["key"].rpartition(".")[2]])
        return Finding(
            id="sysctl_overruled",
            severity="warning",
            node=name,
            subject=key["key"],
            evidence=f"{key['key']} = {key['value']}, and {every} = {key['effective']} counts, being higher",
            expected=f"{wanted} in force",
            cause="of these two the kernel obeys the higher one",
            fix=f"sysctl -w {every}={key['wanted']}, and in kernel_tuning_sysctl: {{{every}: {key['wanted']}}}",
        )
    return None


def _fix(name: str, key: Node) -> str:
    if key["status"] == "failed":
        return f"sysctl -w {key['key']}='{key['wanted']}' on {name} shows the refusal; correct the value in kernel_tuning_sysctl"
    return APPLY.format(node=name)


def _winner(lost: Node) -> str:
    if not lost["path"]:
        return f"nothing sets {lost['key']}"
    where = f"{lost['path']}:{lost['line']}"
    if lost["status"] == "unset":
        return f"{where} takes {lost['key']} out"
    return f"{where} sets {lost['key']} = {lost['value']}"


def _unseat(lost: Node) -> str:
    if not lost["path"]:
        return "run the playbook kernel again"
    where = f"line {lost['line']} of {lost['path']}"
    return f"remove {where}: sed -i '{lost['line']}d' {lost['path']}; or want its value: kernel_tuning_sysctl: {{{lost['key']}: ...}}"


def _boot_losses(node: Node) -> list[Node]:
    """Verdicts of keys that the next boot will not set as wanted. None where our file itself is missing from the boot:
    that is one finding of its own, and every key would follow from it."""
    boot = node.get("boot", {})
    in_place = _home_status(node) in ("unchanged", "written") and not (
        node["checked"] and _home_status(node) == "written"
    )
    if not boot or boot["masked_by"] or _home_unread(node) or not in_place:
        return []
    return [entry for entry in boot["keys"] if entry["status"] != "kept"]


def _home_status(node: Node) -> str:
    return str(next((file["status"] for file in node["files"] if file["path"] == node.get("home")), ""))


def _home_unread(node: Node) -> bool:
    return bool(node.get("home") == "/etc/sysctl.conf" and not node["boot"]["reads_sysctl_conf"])


def _home(name: str, node: Node) -> list[Finding]:
    """Whether the file of the keys is read at boot at all."""
    boot = node.get("boot", {})
    if boot and boot["masked_by"]:
        return [
            Finding(
                id="systemd_sysctl_masked",
                severity="error",
                node=name,
                subject="systemd-sysctl",
                evidence=f"{boot['masked_by']} -> /dev/null",
                expected="systemd-sysctl.service runs at boot",
                cause="somebody masked it, so that no file of kernel parameters is read at boot",
                fix="systemctl unmask systemd-sysctl.service",
            )
        ]
    if boot and _home_unread(node):
        return [
            Finding(
                id="sysctl_conf_not_read_at_boot",
                severity="warning",
                node=name,
                subject="/etc/sysctl.conf",
                evidence="no file in a sysctl.d directory leads to /etc/sysctl.conf, and systemd-sysctl reads nothing else",
                expected="the keys are set at boot as well",
                cause="this distribution no longer reads /etc/sysctl.conf at boot; `sysctl -p` alone does",
                fix="kernel_tuning_sysctl_file: /etc/sysctl.d/99-zz-gpufabric.conf; or ln -s ../sysctl.conf /etc/sysctl.d/99-sysctl.conf",
            )
        ]
    return []


def _files(name: str, node: Node) -> list[Finding]:
    findings = []
    for file in node["files"]:
        if file["status"] == "foreign":
            findings.append(
                Finding(
                    id="foreign_file",
                    severity="error",
                    node=name,
                    subject=file["path"],
                    evidence=f"{file['path']} lacks this collection's header, so it was left alone",
                    expected="a name that nobody else uses",
                    cause="somebody else wrote a file of this name",
                    fix=f"move it away: mv {file['path']} {file['path']}.orig",
                )
            )
        elif file["status"] in ("differs", "left_over"):
            findings.append(
                Finding(
                    id="kernel_file_differs",
                    severity="error" if file["status"] == "differs" else "warning",
                    node=name,
                    subject=file["path"],
                    evidence=f"{file['path']} is not as this profile would write it"
                    if file["status"] == "differs"
                    else f"{file['path']} is left over from an earlier profile",
                    expected="the file as the role writes it",
                    cause="it was never applied, or edited, or other variables were given since",
                    fix=APPLY.format(node=name),
                )
            )
    return findings


def _memlock(name: str, node: Node) -> list[Finding]:
    memlock = node.get("memlock") or {}
    if not memlock or node.get("checked"):
        return []
    findings = []
    for kind, measured in (("a systemd service", memlock), ("a new SSH session", _session(node))):
        if measured.get("hard") and _below(measured, memlock["wanted"]):
            findings.append(
                Finding(
                    id="memlock_too_low",
                    severity="error",
                    node=name,
                    subject=f"memlock of {kind}",
                    evidence=f"{kind} gets {measured['hard']} hard, {measured['soft']} soft ({measured.get('evidence', '')})",
                    expected=memlock["wanted"],
                    cause="ranks started this way cannot register the memory that RDMA needs",
                    fix=f"{APPLY.format(node=name)}; then look for a later file in /etc/security/limits.d, "
                    "and for pam_limits in /etc/pam.d/sshd",
                )
            )
    return findings


def _session(node: Node) -> Node:
    return limits_in(str((node.get("memlock_session") or {}).get("text", "")))


def _below(measured: Node, wanted: str) -> bool:
    def size(text: str) -> float:
        return float("inf") if text == "unlimited" else float(text)

    return min(size(measured["hard"]), size(measured["soft"])) < size(wanted)


def _platform(name: str, platform: Node) -> list[Finding]:
    findings = []
    translated = {a: kind for a, kind in platform.get("iommu", {}).items() if kind != "identity"}
    if translated:
        findings.append(
            Finding(
                id="iommu_translates",
                severity="warning",
                node=name,
                subject="IOMMU",
                evidence=", ".join(f"{address}: {kind}" for address, kind in translated.items()),
                expected="identity (passthrough) for GPUs and HCAs, unless virtual machines are given them",
                cause="each DMA of these devices is translated, which costs bandwidth and breaks peer-to-peer on some platforms",
                fix="add iommu=pt to the kernel's command line (GRUB_CMDLINE_LINUX), rebuild it, and reboot",
            )
        )
    if platform.get("acs"):
        findings.append(
            Finding(
                id="acs_redirects",
                severity="warning",
                node=name,
                subject="PCIe ACS",
                evidence=f"request or completion redirect is on at {', '.join(platform['acs'])}",
                expected="no redirect above GPUs and HCAs on bare metal",
                cause="peer-to-peer traffic between GPU and HCA goes up to the root complex instead of through the switch",
                fix="switch ACS off in the firmware; until then: setpci -s BRIDGE ECAP_ACS+0x6.w=0000 for each, after every boot",
            )
        )
    slow = {governor: n for governor, n in platform.get("governors", {}).items() if governor != "performance"}
    if slow:
        findings.append(
            Finding(
                id="cpu_governor",
                severity="warning",
                node=name,
                subject="CPU frequency",
                evidence=", ".join(f"{n} CPUs: {governor}" for governor, n in slow.items()),
                expected="governor performance",
                cause="a clock that follows load lags behind bursts of communication",
                fix="cpupower frequency-set -g performance; tuned-adm profile throughput-performance makes it last",
            )
        )
    return findings


def _problems(name: str, node: Node) -> list[Finding]:
    return [
        Finding(
            id=problem["id"],
            severity="notice" if problem["id"] == "sysctl_file_unreadable" else "warning",
            node=name,
            subject=problem["subject"],
            evidence=problem["evidence"],
            expected="no such complaint",
            fix="correct the named line or file",
        )
        for problem in node.get("problems", [])
    ]
