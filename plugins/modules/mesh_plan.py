# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: mesh_plan
short_description: Plan which nodes probe each other, and by which rails
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Walks the nodes of the play once, on the controller, with what C(node_facts), C(rdma) and the started responders told.
  - Up to O(full_mesh_nodes) nodes each node probes every other one. Above that it probes O(sampled_rounds) others, by the circle method.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._attributes.info_module
options:
  full_mesh_nodes:
    description: Up to so many nodes everyone probes everyone.
    type: int
    default: 32
  sampled_rounds:
    description: How many others a node probes where there are more nodes.
    type: int
    default: 8
  bandwidth_rounds:
    description: With how many others a node measures loss and bandwidth.
    type: int
    default: 3
  passes:
    description: How often a bandwidth is measured at most in the first look. What looks bad to the node itself is measured again.
    type: int
    default: 1
  budget_s:
    description: Seconds for one node's probes.
    type: float
    default: 240
  plans:
    description:
      - RV(nodes) of an earlier call. Then a second look is planned, after the first one was taken, at what O(thresholds) make suspect.
      - Only nodes that have something to measure again are in it.
    type: dict
    default: {}
  thresholds:
    description: From where on a number is bad, as C(slow_ratio), C(slow_ratio_software), C(loss_percent) and C(latency_ratio).
    type: dict
    default: {}
  respect_busy:
    description: Put no load on nodes that run GPU processes or a Slurm job.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Plan who probes whom
  gpufabric.cluster.mesh_plan:
    bandwidth_rounds: 2
  run_once: true
  register: mesh
"""

RETURN = r"""
nodes:
  description: Each node's part, as O(gpufabric.cluster.fabric_probe#module:plan) takes it.
  returned: success
  type: dict
tokens:
  description: What lets a node in at the responders, by node.
  returned: success
  type: dict
"""
