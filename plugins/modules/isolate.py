# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: isolate
short_description: Find the node, link, rack or rail at fault, in few launches
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Measures every node alone, then disjoint pairs in rounds, then suspects with known-good partners, until it is known who is slow and
    how sure that is.
  - What is measured next depends on what was measured, so one launch on O(here) stays open and takes its runs step by step.
  - O(launcher), O(here) and O(nodes) are those of M(gpufabric.cluster.nccl_tests).
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._launch
  - gpufabric.cluster._launch.left_out
  - gpufabric.cluster._launch.programs
attributes:
  check_mode:
    support: full
    details:
      - Nothing is measured in check mode.
  diff_mode:
    support: none
  idempotent:
    support: N/A
    details:
      - It measures.
options:
  backend:
    description: With what to measure.
    type: str
    choices: [nccl, mpi]
    required: true
  launcher:
    description: What starts the ranks.
    type: str
    default: mpirun
  here:
    description: The launching node.
    type: str
    required: true
  nodes:
    description: The nodes that may be measured.
    type: list
    elements: dict
    required: true
  collective:
    description: What is measured.
    type: str
    default: all_reduce
  iterations:
    description: Timed iterations.
    type: int
    default: 20
  warmup:
    description: Iterations before them.
    type: int
    default: 2
  environment:
    description: Variables for the ranks of NCCL runs.
    type: dict
    default: {}
  settings:
    description: How many rounds, which size, how sure; the role C(isolate) describes each.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Find who is slow
  gpufabric.cluster.isolate:
    run_id: "{{ trust.run_id }}"
    backend: mpi
    here: "{{ inventory_hostname }}"
    nodes: "{{ plan.nodes }}"
    settings:
      size: 4M
  register: isolated
"""

RETURN = r"""
verdict:
  description:
    - The accused nodes with their runs, partners, ratio to the median, and how often a healthy node would be accused on such evidence.
    - Links, racks, paths and rails at fault, what could not be told, and how many launches it took.
  returned: success
  type: dict
hang:
  description:
    - The nodes and links that make a run of all nodes hang or fail, where pairs do not, and what could not be told. Empty where pairs
      explain enough already, or there are fewer than three nodes.
  returned: success
  type: dict
measurements:
  description: Every measurement with its group, busbw in GB/s, and what stood beside it.
  returned: success
  type: list
  elements: dict
problem:
  description: Why it could not be carried out to the end, empty if it was.
  returned: success
  type: str
left_out:
  description: Nodes that took no part, and why.
  returned: success
  type: list
  elements: dict
lost:
  description: Nodes that went away while it ran, and how that was noticed.
  returned: success
  type: dict
released:
  description: Nodes that have given back what the launch put on them.
  returned: success
  type: list
  elements: str
"""
