# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges what the role isolate registered: its verdict, who took no part, and what broke it off."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import judge_hang, judge_isolation


def judge_isolate(nodes: t.Mapping[str, t.Mapping[str, t.Any]], settings: t.Mapping[str, t.Any]) -> list[Finding]:
    """Findings over the registered results of isolate; one node, the launcher, has one."""
    findings: list[Finding] = []
    for launcher, result in nodes.items():
        lost = result.get("lost") or {}
        if result["verdict"]:
            findings += judge_isolation.findings(result["verdict"], lost)
        if result.get("hang"):
            findings += judge_hang.findings(result["hang"])
            findings += [judge_isolation.vanished_finding(name, lost) for name in result["hang"]["vanished"]]
        if result["problem"]:
            findings.append(_broken_off(launcher, result))
        findings += _done_with_the_guilty(launcher, result, settings)
        findings += [
            Finding(
                id="node_left_out",
                severity="warning",
                node=entry["node"],
                subject="isolate",
                evidence=f"it took no part: {entry['why']}",
                expected="a node that can be measured",
                cause="what is not measured is not cleared either",
                fix="correct that, and run isolate again",
            )
            for entry in result["left_out"]
        ]
    return findings


def _broken_off(launcher: str, result: t.Mapping[str, t.Any]) -> Finding:
    begun = bool(result["verdict"])
    return Finding(
        id="isolate_incomplete" if begun else "isolate_not_run",
        severity="error",
        node="",
        subject="isolate",
        evidence=result["problem"],
        expected="measurements until the verdict is final",
        cause="what is said of nodes rests on what was measured until then" if begun else "",
        fix=f"look at {launcher}, then run isolate again",
    )


def _done_with_the_guilty(
    launcher: str, result: t.Mapping[str, t.Any], settings: t.Mapping[str, t.Any]
) -> list[Finding]:
    """What was asked for and could not be done: nodes that stay in Slurm, an inventory that is not there."""
    accused = [str(entry["node"]) for entry in result["verdict"].get("accused", [])]
    guilty = ",".join([*accused, *(result.get("hang") or {}).get("guilty", [])])
    findings = []
    if result.get("not_drained"):
        findings.append(
            Finding(
                id="isolate_not_drained",
                severity="error",
                node=launcher,
                subject="Slurm",
                evidence=f"scontrol could not drain {guilty}: {' '.join(result['not_drained'].split())}",
                expected="drained nodes, since isolate_slurm_drain is true",
                cause="the launching node has no scontrol, its user may not drain nodes, or Slurm knows them by other names",
                fix=f"scontrol update nodename={guilty} state=drain reason=isolate, where Slurm is administered",
            )
        )
    if result.get("not_written"):
        findings.append(
            Finding(
                id="isolate_inventory_not_written",
                severity="error",
                node="",
                subject="isolate_inventory_file",
                evidence=f"{settings.get('isolate_inventory_file', '')} was not written: {' '.join(result['not_written'].split())}",
                expected="a file in a directory that is there, and that whoever runs ansible-playbook can write",
                fix="correct isolate_inventory_file, or make its directory, and run isolate again",
            )
        )
    return findings
