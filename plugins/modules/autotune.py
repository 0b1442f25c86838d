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
  - O(run_id), O(launcher), O(here), O(nodes), O(directory), O(command_prefix), O(mpirun), O(python), O(srun_mpi), O(user), O(trust),
    O(control_networks), O(poll_s) and O(ttl_s) are those of M(gpufabric.cluster.nccl_tests).
requirements:
  - optuna on the controller
extends_documentation_fragment:
  - gpufabric.cluster._attributes
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
  run_id:
    description: The name of the launch.
    type: str
    required: true
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
  directory:
    description: Where the C(*_perf) programs are.
    type: path
    default: ''
  command_prefix:
    description: What stands before each of them.
    type: list
    elements: str
    default: []
  mpirun:
    description: Name or path of mpirun.
    type: str
    default: ''
  python:
    description: The interpreter with C(mpi4py).
    type: path
    default: /usr/bin/python3
  srun_mpi:
    description: Slurm's C(--mpi).
    type: str
    default: ''
  user:
    description: The user as which everything is started.
    type: str
    default: ''
  trust:
    description: Whose SSH trust is used.
    type: str
    choices: [run, site]
    default: run
  control_networks:
    description: Networks in CIDR form for mpirun's own messages.
    type: list
    elements: str
    default: []
  poll_s:
    description: Seconds between two looks at a launch.
    type: float
    default: 1
  ttl_s:
    description: How long the launcher's lease lasts without a renewal, in seconds.
    type: int
    default: 45
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
