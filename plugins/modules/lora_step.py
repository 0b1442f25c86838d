# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: lora_step
short_description: Train a few synthetic steps across nodes, and measure their communication
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Starts C(torchrun) on every node with a static rendezvous, trains a model with random weights on random tokens for a few steps,
    and brings back what C(torch.profiler) saw on each rank. Nothing is downloaded, and no disk is shared.
  - The launching node's own process starts and ends everything, under a lease that the controller renews every few seconds, over
    connections to the other nodes that M(gpufabric.cluster.launch_trust) lets in. Killing Ansible ends all ranks on all nodes in
    less than two minutes. A rank that fails or hangs ends the run for all.
  - In check mode nothing is started, and the command lines are returned.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._launch
  - gpufabric.cluster._launch.left_out
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: N/A
    details:
      - A measurement is made each time. Nothing of it stays on the nodes.
options:
  here:
    description: The launching node's name among O(nodes). Rank 0 is on it.
    type: str
    required: true
  nodes:
    description: The nodes that take part. Those with the same address are one machine.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The node's name.
        type: str
        required: true
      address:
        description: Its address on the control network, by which the ranks meet.
        type: str
        required: true
      port:
        description: The port of its sshd there.
        type: int
        default: 22
      networks:
        description: Its interfaces by network in CIDR form.
        type: dict
        default: {}
      python:
        description: Its interpreter with PyTorch.
        type: str
        required: true
  runs:
    description: Launches, in this order.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The setting that it is about; carried into the result.
        type: str
        required: true
      environment:
        description: Variables for the ranks.
        type: dict
        default: {}
  task:
    description: What each launch does, as M(gpufabric.cluster.lora_plan) returns it.
    type: dict
    required: true
  ranks_per_node:
    description: Processes a node.
    type: int
    default: 1
  timeout_s:
    description: Time limit of a launch in seconds.
    type: float
    default: 600
  line_rate_gbps:
    description: What one node's NICs give together, in Gb/s, to tell how much of it is used. V(0) where it is not known.
    type: float
    default: 0
  control_networks:
    description: Networks in CIDR form over which the ranks meet, and over which gloo sends.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Train a few steps
  gpufabric.cluster.lora_step:
    run_id: "{{ chosen.run_id }}"
    here: "{{ inventory_hostname }}"
    nodes: "{{ plan.nodes }}"
    runs:
      - name: current
    task: "{{ plan.task }}"
"""

RETURN = r"""
trainings:
  description: What was measured, a mapping for each launch and training.
  returned: success
  type: list
  elements: dict
failures:
  description: Launches that did not do all that they were asked to, with ranks and reasons.
  returned: success
  type: list
  elements: dict
size_plan:
  description: The sizes that nccl-tests should measure for these trainings.
  returned: success
  type: list
  elements: dict
nodes_left_out:
  description: Nodes that took no part, and why.
  returned: success
  type: list
  elements: dict
released:
  description: Nodes that have already given their lease back.
  returned: success
  type: list
  elements: str
argvs:
  description: The command line of rank 0's torchrun in each launch.
  returned: in check mode
  type: list
  elements: list
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.cluster.plugins.module_utils import _benchmark_job, _launch
from ansible_collections.gpufabric.cluster.plugins.module_utils._benchmark_run import start
from ansible_collections.gpufabric.cluster.plugins.module_utils._lease import Lease, LeaseError
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Account
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._ssh_trust import SshTrust
from ansible_collections.gpufabric.cluster.plugins.module_utils._training_task import Task


def build_job(params: t.Mapping[str, t.Any], fs: RootedFs) -> _benchmark_job.Job:
    """The job with its command lines; ValueError or LookupError says in one sentence what of it cannot be."""
    account = Account.behind(params["user"])
    lease = Lease(fs, params["run_id"])
    names = [node["name"] for node in params["nodes"]]
    if params["here"] not in names:
        raise ValueError(f"here: one of nodes is expected ({', '.join(names)}), not {params['here']!r}")
    task = Task.from_dict(params["task"])
    machines = {node["address"] for node in params["nodes"]}
    runs = tuple(
        _benchmark_job.Run(
            stage="cluster" if len(machines) > 1 else "node",
            collective=run["name"],
            backend=task.backend,
            program=(lease.tool, "train"),
            options=(task.to_json(),),
            nodes=tuple(names),
            ranks_per_node=params["ranks_per_node"],
            environment={str(name): str(value) for name, value in run["environment"].items()},
            timeout_s=params["timeout_s"],
        )
        for run in params["runs"]
    )
    trust = SshTrust(fs, lease, account)
    return _benchmark_job.Job(
        run_id=params["run_id"],
        launcher=_benchmark_job.TORCHRUN,
        here=params["here"],
        nodes=tuple(_benchmark_job.Node(**node) for node in params["nodes"]),
        runs=runs,
        mpi=_launch.Mpi(""),
        work=lease.work,
        user=account.name,
        as_root=account.uid == 0,
        control_networks=tuple(params["control_networks"]),
        ssh=("ssh", "-F", trust.config) if params["trust"] == "run" else ("ssh", "-o", "BatchMode=yes"),
        ttl_s=params["ttl_s"] + 15.0,
    )


def argument_spec() -> dict[str, t.Any]:
    text = {"type": "str", "default": ""}
    name = {"type": "str", "required": True}
    nodes = {
        "name": name,
        "address": name,
        "port": {"type": "int", "default": 22},
        "networks": {"type": "dict", "default": {}},
        "python": name,
    }
    runs = {"name": name, "environment": {"type": "dict", "default": {}}}
    return {
        "run_id": name,
        "here": name,
        "nodes": {"type": "list", "elements": "dict", "required": True, "options": nodes},
        "runs": {"type": "list", "elements": "dict", "required": True, "options": runs},
        "task": {"type": "dict", "required": True},
        "ranks_per_node": {"type": "int", "default": 1},
        "timeout_s": {"type": "float", "default": 600},
        "line_rate_gbps": {"type": "float", "default": 0},
        "left_out": {"type": "list", "elements": "dict", "default": []},
        "problem": text,
        "user": text,
        "trust": {"type": "str", "choices": ["run", "site"], "default": "run"},
        "control_networks": {"type": "list", "elements": "str", "default": []},
        "poll_s": {"type": "float", "default": 5},
        "ttl_s": {"type": "int", "default": 45},
    }


def main() -> None:
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    fs = RootedFs("/")
    try:
        job = build_job(module.params, fs)
        if module.check_mode:
            argvs = [job.argv(run, run.nodes) for run in job.runs]
            module.exit_json(changed=False, started=False, argvs=argvs, trainings=[], failures=[], released=[])
        start(job, fs, module.params["ttl_s"])
    except (ValueError, LookupError, OSError, LeaseError, ImportError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, started=True, directory=Lease(fs, job.run_id).directory)


if __name__ == "__main__":
    main()
