# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges a node's GPUs and the services of their fabric."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_kernel_log import knowledge

#: a power limit below this share of the GPU's default is a cap that costs speed
CAPPED = 0.95

#: for a reason that the data does not name
UNKNOWN_REASON = {"severity": "notice", "cause": "", "fix": "nvidia-smi -q -d PERFORMANCE"}

FABRIC_DONE = ("Completed", "N/A", "")


def judge_gpus(node: str, gpus: t.Mapping[str, t.Any]) -> list[Finding]:
    """Findings over one node's ``gpus`` as module_utils/_gpu_state.py gives them."""
    if not gpus["present"]:
        return []
    findings = []
    if gpus["problem"]:
        findings.append(
            Finding(
                id="nvidia_smi_failed",
                severity="error",
                node=node,
                subject="nvidia-smi",
                evidence=gpus["problem"],
                expected="an answer for every GPU",
                cause="the driver is not loaded, differs from its libraries, or has lost a GPU",
                fix="cat /proc/driver/nvidia/version; dmesg | grep -i nvrm; reboot if the driver was updated",
            )
        )
    for gpu in gpus["gpus"]:
        findings += [*_clocks(node, gpu), *_power(node, gpu), *_memory(node, gpu), *_fabric(node, gpu, gpus)]
    return [*findings, *_services(node, gpus)]


def _subject(gpu: t.Mapping[str, t.Any]) -> str:
    return f"GPU {gpu['index']}"


def _clocks(node: str, gpu: t.Mapping[str, t.Any]) -> list[Finding]:
    findings = []
    for reason in gpu["reasons"]:
        known = knowledge()["clock_reasons"].get(reason, UNKNOWN_REASON)
        # The general one is always set beside the one that says why.
        if reason == "hw_slowdown" and any(other.startswith("hw_") and other != reason for other in gpu["reasons"]):
            continue
        heat = f", {gpu['temperature_c']:.0f} °C" if gpu["temperature_c"] is not None else ""
        findings.append(
            Finding(
                id="gpu_clocks_lowered",
                severity=known["severity"],
                node=node,
                subject=_subject(gpu),
                evidence=f"clocks are lowered: {reason}{heat} ({gpu['name']}, {gpu['bus']})",
                expected="no reason but an idle GPU",
                cause=known["cause"],
                fix=known["fix"],
            )
        )
    return findings


def _power(node: str, gpu: t.Mapping[str, t.Any]) -> list[Finding]:
    limit, usual = gpu["power_limit_w"], gpu["default_power_limit_w"]
    if not limit or not usual or limit >= CAPPED * usual:
        return []
    return [
        Finding(
            id="gpu_power_capped",
            severity="warning",
            node=node,
            subject=_subject(gpu),
            evidence=f"the power limit is {limit:.0f} W",
            expected=f"{usual:.0f} W, the GPU's default",
            cause="somebody set a lower limit; one slow GPU slows every collective",
            fix=f"nvidia-smi -i {gpu['index']} -pl {usual:.0f}",
        )
    ]


def _memory(node: str, gpu: t.Mapping[str, t.Any]) -> list[Finding]:
    index, remapped, link = gpu["index"], gpu["remapped"], gpu["pcie"]

    def found(id_: str, severity: str, evidence: str, cause: str, fix: str) -> Finding:
        where = f"{gpu['name']}, {gpu['bus']}"
        return Finding(id_, severity, node, _subject(gpu), f"{evidence} ({where})", cause=cause, fix=fix)

    reset = f"drain the node; nvidia-smi -i {index} --gpu-reset, or reboot"
    findings = []
    if remapped["failed"]:
        said = ("a memory row could not be remapped", "the spare rows are used up", "replace the GPU (RMA)")
        findings.append(found("gpu_row_remap_failed", "error", *said))
    elif remapped["pending"]:
        said = ("a memory row waits to be remapped", "an uncorrectable memory error was found", reset)
        findings.append(found("gpu_row_remap_pending", "warning", *said))
    if gpu["ecc_uncorrectable"]:
        count = f"{gpu['ecc_uncorrectable']} uncorrectable ECC errors since the driver was loaded"
        findings.append(
            found("gpu_ecc_uncorrectable", "error", count, "bad memory", f"{reset}; replace it if they come back")
        )
    if gpu["ecc_mode"] == "Disabled":
        said = ("ECC is disabled", "somebody switched it off", f"nvidia-smi -i {index} -e 1, and a reboot")
        findings.append(found("gpu_ecc_off", "notice", *said))
    if gpu["mig"] == "Enabled":
        cause = "instances of a GPU have no NVLink or P2P between them"
        findings.append(found("gpu_mig", "warning", "MIG is enabled", cause, f"nvidia-smi -i {index} -mig 0"))
    # An idle GPU lowers the generation of its link, never the width.
    if link["width"] and link["max_width"] and link["width"] < link["max_width"]:
        lanes = f"its PCIe link has {link['width']:.0f} of {link['max_width']:.0f} lanes"
        look = f"lspci -vv -s {gpu['bus'][-12:]} | grep LnkSta; reseat it"
        findings.append(found("gpu_pcie_narrow", "warning", lanes, "a bad seat, riser or retimer", look))
    return findings


def _fabric(node: str, gpu: t.Mapping[str, t.Any], gpus: t.Mapping[str, t.Any]) -> list[Finding]:
    state, status = gpu["fabric"]["state"], gpu["fabric"]["status"]
    if state in FABRIC_DONE and status in ("Success", "N/A", ""):
        return []
    return [
        Finding(
            id="gpu_fabric_incomplete",
            severity="error",
            node=node,
            subject=_subject(gpu),
            evidence=f"its NVLink fabric is {state}, {status}",
            expected="Completed, Success",
            cause="the fabric manager has not set this GPU up: CUDA answers 802, system not yet initialized",
            fix="systemctl status nvidia-fabricmanager; its version must be the driver's exactly: "
            f"driver {gpus['driver']}, fabric manager {gpus['fabricmanager_version'] or 'unknown'}",
        )
    ]


def _services(node: str, gpus: t.Mapping[str, t.Any]) -> list[Finding]:
    findings = []
    manager = gpus["services"].get("nvidia-fabricmanager", "")
    if gpus["nvswitches"] and manager and manager != "active":
        findings.append(
            Finding(
                id="fabricmanager_not_running",
                severity="error",
                node=node,
                subject="nvidia-fabricmanager",
                evidence=f"systemctl is-active says {manager}, and the node has {gpus['nvswitches']} NVSwitches",
                expected="active",
                cause="without it no GPU behind an NVSwitch can be used",
                fix="systemctl enable --now nvidia-fabricmanager; journalctl -u nvidia-fabricmanager",
            )
        )
    version = gpus["fabricmanager_version"]
    if version and gpus["driver"] and version != gpus["driver"]:
        findings.append(
            Finding(
                id="fabricmanager_version",
                severity="error",
                node=node,
                subject="nvidia-fabricmanager",
                evidence=f"version {version}, and the driver is {gpus['driver']}",
                expected="the driver's version exactly",
                cause="one of them was updated without the other",
                fix=f"install nvidia-fabricmanager {gpus['driver']} and restart it",
            )
        )
    imex = gpus["services"].get("nvidia-imex", "")
    if gpus["imex_nodes"] and imex and imex != "active":
        findings.append(
            Finding(
                id="imex_not_running",
                severity="error",
                node=node,
                subject="nvidia-imex",
                evidence=f"systemctl is-active says {imex}, and nodes_config.cfg names {gpus['imex_nodes']} nodes",
                expected="active on all of them",
                cause="NVLink between nodes (MNNVL) needs it",
                fix="systemctl enable --now nvidia-imex; nvidia-imex-ctl -N",
            )
        )
    return findings
