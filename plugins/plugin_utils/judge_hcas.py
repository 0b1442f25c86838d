# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges what hca_info found on a group of nodes: every deviation named once, with its node and port.

One fault gives one error. What follows from it is left out: a port that is down is not also slow, and an HCA that is
missing is not also a wrong count. A warning that all nodes share is said once.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import (
    hca_cables,
    hca_nodes,
    hca_ports,
    hca_rails,
    hca_witnesses,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.role_specs import merge_common
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.select_hcas import Observation, Settings, select_hcas


def judge_hcas(nodes: t.Mapping[str, Observation], settings: Settings) -> list[Finding]:
    """Findings over the registered results of hca_info of nodes that share their settings; O(N) for N nodes.

    nodes: {node: {"observed": ...}}; settings: the public variables of the role rdma. A node whose result holds no
    observation is passed over here: that it is missing is the report's finding.
    """
    observed = {node: result["observed"] for node, result in nodes.items() if "observed" in result}
    problem = hca_rails.bad_subnet_setting(settings)
    if problem is not None:
        return [problem]
    selection = select_hcas(observed, settings)
    findings = [
        *hca_nodes.judge_presence(observed, selection, settings),
        *hca_ports.judge_ports(selection, settings),
        *hca_rails.judge_rails(observed, selection, settings),
        *hca_cables.judge_cables(selection),
        *hca_nodes.judge_software(observed, selection, settings),
        *hca_witnesses.judge_witnesses(observed, selection),
    ]
    lesser = merge_common([finding for finding in findings if finding.severity != "error"], observed)
    return [finding for finding in findings if finding.severity == "error"] + lesser
