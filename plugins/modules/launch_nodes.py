# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: launch_nodes
short_description: Choose the nodes of a launch, its launcher and the addresses between them
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Walks the nodes of the play once, on the controller, with what the role C(node_facts) found on them.
  - A node that did not answer, that is busy, or that has no address by which others reach it, is left out and named.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._attributes.info_module
options:
  launcher:
    description: The node from which programs are started. Without it the first usable node is.
    type: str
    default: ''
  respect_busy:
    description: Leave out nodes that run GPU processes or a Slurm job.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Choose the nodes
  gpufabric.cluster.launch_nodes:
  run_once: true
  register: chosen
"""

RETURN = r"""
run_id:
  description: The name of this launch.
  returned: success
  type: str
launcher:
  description: The launching node, empty if there is no usable one.
  returned: success
  type: str
nodes:
  description: The usable nodes with their addresses on the control network.
  returned: success
  type: list
  elements: dict
names:
  description: The names of RV(nodes).
  returned: success
  type: list
  elements: str
peers:
  description: What O(gpufabric.cluster.launch_trust#module:peers) takes.
  returned: success
  type: list
  elements: dict
left_out:
  description: Nodes that are not used, and why.
  returned: success
  type: list
  elements: dict
sources:
  description: The cluster's own addresses, merged, as sshd's C(from=) takes them.
  returned: success
  type: list
  elements: str
control_networks:
  description: The networks of the control addresses.
  returned: success
  type: list
  elements: str
needed:
  description: Whether the nodes are more than one machine, so that trust between them is needed.
  returned: success
  type: bool
"""
