# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges what the role isolate registered: its verdict, who took no part, and what broke it off."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import judge_isolation


def judge_isolate(nodes: t.Mapping[str, t.Mapping[str, t.Any]], settings: t.Mapping[str, t.Any]) -> list[Finding]:
    """Findings over the registered results of isolate; one node, the launcher, has one."""
    findings: list[Finding] = []
    for launcher, result in nodes.items():
        if result["verdict"]:
            findings += judge_isolation.findings(result["verdict"])
        if result["problem"]:
            findings.append(_broken_off(launcher, result))
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
