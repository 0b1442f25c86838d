# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: lora_plan
short_description: Decide which nodes train, with how many ranks, and what
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Runs on the controller, once, with what M(gpufabric.cluster.launch_nodes) chose and M(gpufabric.cluster.training_info) found.
  - A node that cannot take part is left out and named. What cannot be trained is said in RV(problem).
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._attributes.info_module
options:
  launch:
    description: The result of M(gpufabric.cluster.launch_nodes).
    type: dict
    required: true
  settings:
    description: The variables of the role C(lora_workload) without their prefix.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Plan the training
  gpufabric.cluster.lora_plan:
    launch: "{{ chosen }}"
    settings: "{{ choice }}"
  run_once: true
  register: plan
"""

RETURN = r"""
here:
  description: The launching node.
  returned: success
  type: str
backend:
  description: V(nccl) or V(gloo).
  returned: success
  type: str
nodes:
  description: The nodes that take part, as M(gpufabric.cluster.lora_step) takes them.
  returned: success
  type: list
  elements: dict
ranks_per_node:
  description: Processes a node.
  returned: success
  type: int
task:
  description: What each launch does.
  returned: success
  type: dict
trainings:
  description: Each training with the messages that one of its steps sends.
  returned: success
  type: list
  elements: dict
runs:
  description: The launches, in turn for each setting.
  returned: success
  type: list
  elements: dict
left_out:
  description: Nodes that do not take part, and why.
  returned: success
  type: list
  elements: dict
problem:
  description: Why nothing can be trained, or empty.
  returned: success
  type: str
"""
