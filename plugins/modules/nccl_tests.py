# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_tests
short_description: Run nccl-tests, or the same collectives over MPI, across nodes
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Runs a list of collectives from the launching node over many nodes, one after another, and brings back what each measured.
  - The runs are carried out by a process of the launcher's own, under a lease that the controller renews every few seconds. Killing
    Ansible ends them, on all nodes, in less than two minutes.
  - Commands are argument vectors, never a shell's text. Every run has a time limit, after which its whole process group is
    ended on every node; what was printed until then is kept. Nothing is concluded from an exit status alone.
  - Before the first run a connection is opened to every node. A node that does not let the launcher in is named and left out.
  - In check mode nothing is started, and the command lines are returned.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._launch
  - gpufabric.cluster._launch.left_out
  - gpufabric.cluster._launch.programs
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
  launcher:
    description:
      - V(mpirun) is Open MPI 4 or 5, HPC-X included; V(srun) is Slurm's; V(local) starts everything on this one machine.
    type: str
    choices: [mpirun, srun, local]
    default: mpirun
  here:
    description: The launching node's name among O(nodes).
    type: str
    required: true
  nodes:
    description: The nodes that runs may use.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The node's name, by which results refer to it.
        type: str
        required: true
      address:
        description: Its address on the control network.
        type: str
        required: true
      port:
        description: The port of its sshd there.
        type: int
        default: 22
      slurm:
        description: What Slurm calls it, if that is not O(nodes[].name).
        type: str
        default: ''
      networks:
        description: Its interfaces by network in CIDR form, so that their counters can prove the transport.
        type: dict
        default: {}
  runs:
    description: What to run, in this order.
    type: list
    elements: dict
    required: true
    suboptions:
      collective:
        description: The collective.
        type: str
        required: true
        choices:
          [all_reduce, all_gather, reduce_scatter, alltoall, gather, scatter, broadcast, reduce, sendrecv, alltoallv, hypercube]
      stage:
        description: What the run is about; V(cluster) and V(rail) need two nodes.
        type: str
        choices: [node, cluster, rail]
        default: cluster
      backend:
        description: V(nccl) runs nccl-tests on GPUs, V(mpi) times the same collectives with MPI and C(mpi4py).
        type: str
        choices: [nccl, mpi]
        required: true
      nodes:
        description: Names of the nodes that take part. Without it all of O(nodes).
        type: list
        elements: str
        default: []
      alone:
        description: Let each node run it by itself, all at the same time.
        type: bool
        default: false
      beside:
        description: Let it go at the same time as those before and after it that may too, where they have none of its machines.
        type: bool
        default: false
      ranks_per_node:
        description: Processes a node.
        type: int
        default: 1
      gpus_per_rank:
        description: GPUs a process (C(-g)); the guide's C(-g 4) is four GPUs of one node.
        type: int
        default: 1
      threads_per_rank:
        description: Threads a process (C(-t)).
        type: int
        default: 1
      min_bytes:
        description: The smallest size, such as V(8) or V(1M).
        type: str
        default: '8'
      max_bytes:
        description: The largest size.
        type: str
        default: 128M
      step_factor:
        description: From one size to the next.
        type: float
        default: 2.0
      step_bytes:
        description: Equal steps instead of a factor.
        type: str
        default: ''
      datatype:
        description: The elements' type.
        type: str
        default: float
      operation:
        description: The reduction.
        type: str
        default: sum
      root:
        description: The root rank.
        type: int
        default: 0
      iterations:
        description: Timed iterations a size.
        type: int
        default: 20
      warmup:
        description: Iterations before them.
        type: int
        default: 5
      check:
        description: Check the data.
        type: bool
        default: true
      per_iteration:
        description: Ask for the spread of single iterations, where this version can tell.
        type: bool
        default: false
      cuda_graph:
        description: Launches in one CUDA graph, 0 for none.
        type: int
        default: 0
      environment:
        description: Variables for the ranks. Only what is listed here is forwarded.
        type: dict
        default: {}
      mca:
        description: Further parameters of Open MPI.
        type: dict
        default: {}
      timeout_s:
        description: Time limit in seconds.
        type: float
        default: 600
      claim:
        description: The transport that the run is meant to use; carried into the result.
        type: str
        default: ''
      rail:
        description: The rail that the run is about; carried into the result.
        type: str
        default: ''
      networks:
        description: Networks in CIDR form through which the run's data should go.
        type: list
        elements: str
        default: []
  containers:
    description: What O(command_prefix) leads to, by node, as M(gpufabric.cluster.nccl_tests_info) tells it; carried into the result.
    type: dict
    default: {}
  wait_for_more:
    description:
      - Keep the launcher waiting for further runs after O(runs), since what is measured next depends on what was measured.
      - They are handed over with O(after), and no runs at all are the end.
    type: bool
    default: false
  after:
    description: Hand O(runs) to a launch that waits for more after so many finished runs, in place of starting one.
    type: int
    default: -1
  srun_mpi:
    description: Slurm's C(--mpi), such as V(pmix). Without it Slurm's own default.
    type: str
    default: ''
"""

EXAMPLES = r"""
- name: Measure all-reduce over three nodes without GPUs
  gpufabric.cluster.nccl_tests:
    run_id: "{{ chosen.run_id }}"
    here: "{{ inventory_hostname }}"
    nodes: "{{ chosen.nodes }}"
    runs:
      - collective: all_reduce
        backend: mpi
        min_bytes: 1K
        max_bytes: 1M
        mca:
          pml: ob1
          btl: self,tcp
"""

RETURN = r"""
runs:
  description:
    - One entry a run, in the order of O(runs); a run that failed or never started has RV(runs[].failure).
  returned: success
  type: list
  elements: dict
  contains:
    backend: {description: V(nccl) or V(mpi)., returned: always, type: str}
    launcher: {description: The launcher., returned: always, type: str}
    collective: {description: The collective., returned: always, type: str}
    stage: {description: The stage., returned: always, type: str}
    nodes: {description: The nodes that took part., returned: always, type: list, elements: str}
    ranks: {description: Processes in all., returned: always, type: int}
    argv: {description: The command line., returned: always, type: list, elements: str}
    environment: {description: What was forwarded to the ranks., returned: always, type: dict}
    started: {description: When it began in UTC., returned: always, type: str}
    seconds: {description: How long it took., returned: always, type: float}
    rc: {description: The exit status or null., returned: always, type: int}
    timed_out: {description: Whether the time limit ended it., returned: always, type: bool}
    completed: {description: Whether every table has its footer., returned: always, type: bool}
    failure: {description: The kind of failure or null., returned: always, type: str}
    failing_hosts: {description: Nodes that the failure names., returned: always, type: list, elements: str}
    rows: {description: "What was measured; sizes in bytes, times in µs, bandwidths in GB/s.", returned: always, type: list, elements: dict}
    transport: {description: "What it claimed, and what is proven by which evidence.", returned: always, type: dict}
nodes_used:
  description: Nodes that took part in a run.
  returned: success
  type: list
  elements: str
nodes_left_out:
  description: Nodes that did not, and why.
  returned: success
  type: list
  elements: dict
containers:
  description: O(containers).
  returned: success
  type: dict
released:
  description: Nodes that have already given their lease back.
  returned: success
  type: list
  elements: str
started:
  description: Whether the runs were started.
  returned: success
  type: bool
argvs:
  description: The command line of each run.
  returned: in check mode
  type: list
  elements: list
"""

import json
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.cluster.plugins.module_utils import (
    _benchmark_job,
    _launch,
    _nccl_container,
    _nccl_tests_probe,
)
from ansible_collections.gpufabric.cluster.plugins.module_utils._benchmark_run import BATCH, start
from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import COLLECTIVES
from ansible_collections.gpufabric.cluster.plugins.module_utils._lease import Lease, LeaseError
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_tests_options import Options
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Account, Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._ssh_trust import SshTrust

OPTION_NAMES = (
    "collective", "min_bytes", "max_bytes", "step_factor", "step_bytes", "datatype", "operation", "root", "iterations", "warmup",
    "check", "gpus_per_rank", "threads_per_rank", "per_iteration", "cuda_graph",
)  # fmt: skip


def build_job(params: t.Mapping[str, t.Any], fs: RootedFs) -> _benchmark_job.Job:
    """The job with its command lines; ValueError or LookupError says in one sentence what of it cannot be."""
    tools = Tools(fs)
    account = Account.behind(params["user"])
    lease = Lease(fs, params["run_id"])
    names = [node["name"] for node in params["nodes"]]
    if params["here"] not in names:
        raise ValueError(f"here: one of nodes is expected ({', '.join(names)}), not {params['here']!r}")
    mpi = _launch.find_mpirun(tools, params["mpirun"])
    wanted = dict.fromkeys(run["collective"] for run in params["runs"] if run["backend"] == "nccl")
    container, programs = (
        _nccl_tests_probe.read_programs(fs, tools, params["directory"], params["command_prefix"], wanted, account)
        if wanted
        else (None, {})
    )
    if container and container.problem:
        raise ValueError(f"command_prefix: {container.problem}")
    reports = container is None or container.sees_work
    runs = [_run(run, params, names, lease, programs, reports) for run in params["runs"]]
    needs_mpi = params["launcher"] == "mpirun" or any(not run.alone and run.ranks_per_node > 1 for run in runs)
    if needs_mpi and params["launcher"] != "srun" and mpi.problem:
        raise ValueError(mpi.problem)
    trust = SshTrust(fs, lease, account)
    ssh = ("ssh", "-F", trust.config) if params["trust"] == "run" else ("ssh", "-o", "BatchMode=yes")
    return _benchmark_job.Job(
        run_id=params["run_id"],
        launcher=params["launcher"],
        here=params["here"],
        nodes=tuple(_benchmark_job.Node(**node) for node in params["nodes"]),
        runs=tuple(runs),
        mpi=mpi,
        work=lease.work,
        user=account.name,
        as_root=account.uid == 0,
        control_networks=tuple(params["control_networks"]),
        ssh=ssh,
        ttl_s=params["ttl_s"] + 15.0,
        open=params["wait_for_more"],
        srun_mpi=params["srun_mpi"],
    )


def _run(
    run: t.Mapping[str, t.Any],
    params: t.Mapping[str, t.Any],
    names: t.Sequence[str],
    lease: Lease,
    programs: t.Mapping[str, t.Mapping[str, t.Any]],
    reports: bool,
) -> _benchmark_job.Run:
    """reports: whether a report that a program of nccl-tests writes would be seen here."""
    options = Options(**{name: run[name] for name in OPTION_NAMES})
    srun_options: list[str] = []
    chosen = run["nodes"] or list(names)
    unknown = [name for name in chosen if name not in names]
    if unknown:
        raise ValueError(f"runs: {', '.join(unknown)} is none of nodes")
    if run["backend"] == "mpi":
        program = [params["python"], lease.tool, "collective", options.collective]
        arguments = options.argv()
    else:
        path = f"{(params['directory'] or '').rstrip('/')}/{options.collective}_perf"
        prefix = params["command_prefix"]
        if _nccl_container.is_srun(prefix) and params["launcher"] != "srun":
            raise ValueError(
                f"command_prefix begins with {prefix[0]}, which starts ranks itself: that needs the launcher srun, not"
                f" {params['launcher']}"
            )
        if _nccl_container.is_srun(prefix):
            prefix, srun_options = [], prefix[1:]
        found = programs.get(options.collective)
        program = [*prefix, path]
        if found is None or found["problem"]:
            raise ValueError(f"{path}: {found['problem'] if found else 'there is no such program'}")
        arguments = options.argv(found["letters"])
    return _benchmark_job.Run(
        program=tuple(program),
        options=tuple(arguments),
        nodes=tuple(chosen),
        networks=tuple(run["networks"]),
        srun_options=tuple(srun_options),
        report=not run["alone"] and (run["backend"] == "mpi" or (reports and "J" in found["letters"])),
        **{
            name: run[name]
            for name in (
                "stage",
                "collective",
                "backend",
                "ranks_per_node",
                "timeout_s",
                "alone",
                "beside",
                "claim",
                "rail",
            )
        },
        **{name: {str(k): str(v) for k, v in run[name].items()} for name in ("environment", "mca")},
    )


def hand_over(job: _benchmark_job.Job, fs: RootedFs, after: int) -> None:
    """Give a waiting launch its next runs."""
    path = f"{Lease(fs, job.run_id).directory}/{BATCH.format(number=after)}"
    fs.write_atomic(path, json.dumps(job.as_dict()["runs"]).encode(), 0o600)


def argument_spec() -> dict[str, t.Any]:
    text = {"type": "str", "default": ""}
    number = {"type": "int", "default": 1}
    flag = {"type": "bool", "default": False}
    return {
        "run_id": {"type": "str", "required": True},
        "launcher": {"type": "str", "choices": list(_benchmark_job.LAUNCHERS), "default": "mpirun"},
        "here": {"type": "str", "required": True},
        "nodes": {
            "type": "list",
            "elements": "dict",
            "required": True,
            "options": {
                "name": {"type": "str", "required": True},
                "address": {"type": "str", "required": True},
                "port": {"type": "int", "default": 22},
                "slurm": text,
                "networks": {"type": "dict", "default": {}},
            },
        },
        "runs": {
            "type": "list",
            "elements": "dict",
            "required": True,
            "options": {
                "collective": {"type": "str", "required": True, "choices": list(COLLECTIVES)},
                "stage": {"type": "str", "choices": ["node", "cluster", "rail"], "default": "cluster"},
                "backend": {"type": "str", "choices": ["nccl", "mpi"], "required": True},
                "nodes": {"type": "list", "elements": "str", "default": []},
                "alone": flag,
                "beside": flag,
                "ranks_per_node": number,
                "gpus_per_rank": number,
                "threads_per_rank": number,
                "min_bytes": {"type": "str", "default": "8"},
                "max_bytes": {"type": "str", "default": "128M"},
                "step_factor": {"type": "float", "default": 2.0},
                "step_bytes": text,
                "datatype": {"type": "str", "default": "float"},
                "operation": {"type": "str", "default": "sum"},
                "root": {"type": "int", "default": 0},
                "iterations": {"type": "int", "default": 20},
                "warmup": {"type": "int", "default": 5},
                "check": {"type": "bool", "default": True},
                "per_iteration": flag,
                "cuda_graph": {"type": "int", "default": 0},
                "environment": {"type": "dict", "default": {}},
                "mca": {"type": "dict", "default": {}},
                "timeout_s": {"type": "float", "default": 600},
                "claim": text,
                "rail": text,
                "networks": {"type": "list", "elements": "str", "default": []},
            },
        },
        "wait_for_more": flag,
        "after": {"type": "int", "default": -1},
        "left_out": {"type": "list", "elements": "dict", "default": []},
        "problem": text,
        "containers": {"type": "dict", "default": {}},
        "directory": {"type": "path", "default": ""},
        "command_prefix": {"type": "list", "elements": "str", "default": []},
        "mpirun": text,
        "python": {"type": "path", "default": "/usr/bin/python3"},
        "srun_mpi": text,
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
            module.exit_json(
                changed=False, started=False, argvs=argvs, runs=[], nodes_used=[], nodes_left_out=[], released=[]
            )
        if module.params["after"] >= 0:
            hand_over(job, fs, module.params["after"])
        else:
            start(job, fs, module.params["ttl_s"])
    except (ValueError, LookupError, OSError, LeaseError, ImportError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, started=True, directory=Lease(fs, job.run_id).directory)


if __name__ == "__main__":
    main()
