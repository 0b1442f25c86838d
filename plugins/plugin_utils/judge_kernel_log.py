# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges telling lines of a node's kernel log."""

from __future__ import annotations

import functools
import json
import pathlib
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding

_DATA = pathlib.Path(__file__).parent / "data" / "node_state.json"

#: for an Xid that the data does not name
UNKNOWN_XID = {
    "severity": "warning",
    "cause": "an error of the GPU or its driver",
    "fix": "look it up in NVIDIA's list of Xid errors: docs.nvidia.com/deploy/xid-errors",
}


@functools.lru_cache(maxsize=1)
def knowledge() -> dict[str, dict[str, dict[str, str]]]:
    """{xids, kernel_log, clock_reasons}: what single lines and values mean, and what to do about them."""
    return t.cast("dict[str, dict[str, dict[str, str]]]", json.loads(_DATA.read_text(encoding="utf-8")))


def judge_kernel_log(node: str, log: t.Mapping[str, t.Any]) -> list[Finding]:
    """Findings over one node's ``kernel_log``, as module_utils/_kernel_log.py gives it: one a kind, and one an Xid."""
    findings = []
    for kind, found in log["kinds"].items():
        if kind == "xid":
            findings += _xids(node, found)
            continue
        known = knowledge()["kernel_log"][kind]
        where = f" {', '.join(found['devices'])}" if found["devices"] else ""
        findings.append(
            Finding(
                id=f"kernel_log_{kind}",
                severity=known["severity"],
                node=node,
                subject=f"{known['subject']}{where}",
                evidence=f"{found['count']} line(s) in the kernel's log, the last: {found['lines'][-1]}",
                expected="none",
                cause=known["cause"],
                fix=known["fix"],
            )
        )
    if log["problem"]:
        findings.append(
            Finding(
                id="kernel_log_unread",
                severity="notice",
                node=node,
                subject="kernel log",
                evidence=log["problem"],
                expected="what dmesg prints",
                cause="kernel.dmesg_restrict lets only root read it",
                fix="-e diagnose_become=true, with a user that may become root",
            )
        )
    return findings


def _xids(node: str, found: t.Mapping[str, t.Any]) -> list[Finding]:
    findings = []
    for code, count in found["codes"].items():
        known = knowledge()["xids"].get(code, UNKNOWN_XID)
        line = next((line for line in reversed(found["lines"]) if f"): {code}" in line), found["lines"][-1])
        findings.append(
            Finding(
                id="gpu_xid",
                severity=known["severity"],
                node=node,
                subject=f"Xid {code} of GPU {', '.join(found['devices'])}",
                evidence=f"{count} line(s) in the kernel's log: {line}",
                expected="no Xid",
                cause=known["cause"],
                fix=known["fix"],
            )
        )
    return findings
