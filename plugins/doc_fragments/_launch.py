# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What every module that starts ranks on other nodes is told about how to start them."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  run_id:
    description: The name of this launch, the same as for M(gpufabric.cluster.launch_trust).
    type: str
    required: true
  user:
    description: The user as which everything is started. Without it the one that Ansible connects as.
    type: str
    default: ''
  trust:
    description: V(run) uses the key of M(gpufabric.cluster.launch_trust), V(site) the nodes' own trust.
    type: str
    choices: [run, site]
    default: run
  control_networks:
    description: Networks in CIDR form for the launcher's own messages.
    type: list
    elements: str
    default: []
  poll_s:
    description: Seconds between two renewals of the lease by the controller.
    type: float
    default: 5
  ttl_s:
    description: How long the launcher's lease lasts without a renewal, in seconds. The other nodes' leases last 15 s longer.
    type: int
    default: 45
"""

    LEFT_OUT = r"""
options:
  left_out:
    description: Nodes that were left out before, and why; carried into the result.
    type: list
    elements: dict
    default: []
  problem:
    description: Why nothing is to be run; carried into the result, and then nothing is run.
    type: str
    default: ''
"""

    PROGRAMS = r"""
options:
  directory:
    description: Where the C(*_perf) programs are.
    type: path
    default: ''
  command_prefix:
    description: What stands before each C(*_perf) program, for example a container's command.
    type: list
    elements: str
    default: []
  mpirun:
    description: Name or path of mpirun. Without it the usual places are looked at.
    type: str
    default: ''
  python:
    description: The interpreter with C(mpi4py) for collectives over MPI.
    type: path
    default: /usr/bin/python3
"""
