# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The same finding of many nodes, told once."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import listed

#: nodes that are named one by one; more are counted
NAMED_NODES = 8


def merged(per_node: t.Mapping[str, t.Iterable[Finding]], of_all: bool = True) -> list[Finding]:
    """Findings that differ in nothing but the node: one a node for a handful, beyond that one with the nodes counted.

    of_all: one that every node has is about the run, and stands without a node.
    """
    owners: dict[Finding, list[str]] = {}
    for node, findings in per_node.items():
        for finding in findings:
            holders = owners.setdefault(dataclasses.replace(finding, node=""), [])
            if not holders or holders[-1] != node:
                holders.append(node)
    together = []
    for finding, names in owners.items():
        if of_all and len(names) == len(per_node) > 1:
            together.append(finding)
        elif len(names) <= NAMED_NODES:
            together += [dataclasses.replace(finding, node=name) for name in names]
        else:
            together.append(
                dataclasses.replace(finding, evidence=f"{finding.evidence} (on {listed(names, NAMED_NODES)})")
            )
    return together
