# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: autotune
short_description: Search for faster settings by measurement
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Asks Optuna for settings, measures them with one launch on O(here) that stays open, and remembers every trial in a study on the controller.
  - At the end the best is measured against what is in force, the defaults and the guide's list, in turn.
  - A study that was killed or lost a node goes on with the same arguments. Two on the same nodes exclude each other.
  - O(launcher), O(here), O(nodes) and O(srun_mpi) are those of M(gpufabric.cluster.nccl_tests).
requirements:
  - optuna on the controller
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._launch
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
  plan:
    description: The result of M(gpufabric.cluster.nccl_tests_plan). Its first run is the one that is given other sizes and settings.
    type: dict
    required: true
  nccl:
    description: What M(gpufabric.cluster.nccl_env_info) observed on the launching node, for its NCCL's version and what is in force.
    type: dict
    default: {}
  nccl_version:
    description: The NCCL that ranks load, where that is another one.
    type: str
    default: ''
  launcher:
    description: What starts the ranks.
    type: str
    default: mpirun
  here:
    description: The launching node.
    type: str
    required: true
  nodes:
    description: The nodes that are measured.
    type: list
    elements: dict
    required: true
  srun_mpi:
    description: Slurm's C(--mpi).
    type: str
    default: ''
  poll_s:
    description: Seconds between two looks at a launch.
    type: float
    default: 1
  settings:
    description: The variables of the role C(autotune) without their prefix.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Search for faster settings
  gpufabric.cluster.autotune:
    run_id: "{{ trust.run_id }}"
    plan: "{{ plan }}"
    here: "{{ inventory_hostname }}"
    nodes: "{{ plan.nodes }}"
    settings: "{{ settings }}"
  register: tuned
"""

RETURN = r"""
result:
  description:
    - The best settings, whether they are better than what is in force outside the noise, and what each was compared with; empty where the
      study is not finished.
  returned: success
  type: dict
profile:
  description: The name of the file below RV(directory) that makes the best settings permanent, empty without a gain.
  returned: success
  type: str
directory:
  description: Where the study, autotune.json and the reports lie, on the controller.
  returned: success
  type: str
problem:
  description: Why the study is not finished, empty if it is.
  returned: success
  type: str
left_out:
  description: Nodes that took no part, and why.
  returned: success
  type: list
  elements: dict
released:
  description: Nodes that have given back what the launch put on them.
  returned: success
  type: list
  elements: str
"""
