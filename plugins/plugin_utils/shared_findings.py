# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Says once what is the same on all nodes: a deviation that every node has does not tell one node from another."""

from __future__ import annotations

import collections
import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding

#: parts whose settings are wishes: where all nodes alike do not have them, somebody has not applied them yet, and nothing is broken
WISHES = ("kernel", "nccl_env")

#: a cluster without RDMA is one whose collectives go over TCP
NO_RDMA = "hca_none"


def fold_shared(part_of: t.Mapping[Finding, str], nodes: t.Sequence[str], seeks_faults: bool) -> dict[Finding, str]:
    """The findings with their parts; what all of several *nodes* have in the same words is one finding of the whole run.

    seeks_faults: then errors of WISHES among those, and that no node has an HCA, become warnings, so that a fault of one
    node stands before what has never been set on any.
    """
    alike: dict[tuple[str, ...], dict[str, Finding]] = collections.defaultdict(dict)
    for finding, part in part_of.items():
        alike[_words(finding, part)][finding.node] = finding
    everywhere = set(nodes)
    folded: dict[Finding, str] = {}
    for finding, part in part_of.items():
        same = alike[_words(finding, part)]
        if len(everywhere) < 2 or not everywhere <= set(same):
            folded[finding] = part
        elif finding.node == nodes[0]:
            mild = seeks_faults and (part in WISHES or finding.id == NO_RDMA)
            folded[_for_all(finding, len(nodes), mild)] = part
    return folded


def _words(finding: Finding, part: str) -> tuple[str, ...]:
    return (part, finding.id, finding.severity, finding.subject, finding.evidence, finding.expected)


def _for_all(finding: Finding, count: int, mild: bool) -> Finding:
    severity = "warning" if finding.severity == "error" and mild else finding.severity
    return dataclasses.replace(
        finding,
        node="",
        severity=severity,
        evidence=f"on all {count} nodes: {finding.evidence}",
        fix=finding.fix.replace(f" --limit {finding.node}", ""),
    )
