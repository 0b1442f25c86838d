# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_tests_plan
short_description: Decide which runs make up the benchmark of these nodes
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Runs on the controller, once, with what M(gpufabric.cluster.launch_nodes) chose and M(gpufabric.cluster.nccl_tests_info) found.
  - A node that cannot take part is left out and named.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._attributes.info_module
options:
  launch:
    description: The result of M(gpufabric.cluster.launch_nodes).
    type: dict
    required: true
  settings:
    description: The variables of the role C(nccl_tests) without their prefix.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Plan the benchmark
  gpufabric.cluster.nccl_tests_plan:
    launch: "{{ chosen }}"
    settings:
      backend: auto
      launcher: auto
      preset: quick
  run_once: true
  register: plan
"""

RETURN = r"""
backend:
  description: V(nccl) or V(mpi).
  returned: success
  type: str
launcher:
  description: V(mpirun), V(srun) or V(local).
  returned: success
  type: str
here:
  description: The launching node.
  returned: success
  type: str
nodes:
  description: The nodes that take part, as M(gpufabric.cluster.nccl_tests) takes them.
  returned: success
  type: list
  elements: dict
runs:
  description: The runs, as M(gpufabric.cluster.nccl_tests) takes them.
  returned: success
  type: list
  elements: dict
python:
  description: The launcher's interpreter with C(mpi4py).
  returned: success
  type: str
mpirun:
  description: The launcher's mpirun.
  returned: success
  type: str
left_out:
  description: Nodes that do not take part, and why.
  returned: success
  type: list
  elements: dict
problem:
  description: Why nothing can be run, or empty.
  returned: success
  type: str
"""
