# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the launcher is asked to run, and the command line of each run. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils import _launch, _torchrun
from ansible_collections.gpufabric.cluster.plugins.module_utils._run_processes import MARKER

#: what starts the ranks of collectives; a training has TORCHRUN, one on each node, started by the agents
LAUNCHERS = ("mpirun", "srun", "local")
TORCHRUN = "torchrun"

#: where, beside the program that is measured, every run's files lie: below the lease's work directory
SESSION = "t"
REPORT = "report.json"
HOSTS = "hosts"
#: runs that go at the same time, each with a launcher of its own on this node
MOST_AT_ONCE = 64
#: NCCL_DEBUG_FILE: %h is the node's name, %p the process
LOG_FILE = "nccl-%h-%p.log"


@dataclasses.dataclass(frozen=True)
class Node:
    """name: in the inventory; address: on the control network; slurm: what srun calls it; networks: {network: interface};
    python: the interpreter that has PyTorch, where a training needs one.
    """

    name: str
    address: str
    port: int = 22
    slurm: str = ""
    networks: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    python: str = ""


@dataclasses.dataclass(frozen=True)
class Run:
    """One collective over some nodes.

    stage: node, cluster or rail; program: its path and leading arguments; options: its further arguments.
    environment: for the ranks; mca: parameters of Open MPI; nodes: names. alone: each node runs it by itself, all at the same
    time. claim: the transport that the run is meant to use, which the proof is held against. srun_options: for a container of
    Slurm's. beside: whether it may go at the same time as those before and after it that may too and have none of its machines.
    """

    stage: str
    collective: str
    backend: str
    program: tuple[str, ...]
    options: tuple[str, ...]
    nodes: tuple[str, ...]
    ranks_per_node: int = 1
    environment: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    mca: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    timeout_s: float = 600.0
    alone: bool = False
    report: bool = False
    claim: str = ""
    rail: str = ""
    networks: tuple[str, ...] = ()
    srun_options: tuple[str, ...] = ()
    beside: bool = False

    @classmethod
    def from_dict(cls, data: t.Mapping[str, t.Any]) -> Run:
        known = {field.name: data[field.name] for field in dataclasses.fields(cls) if field.name in data}
        for name in ("program", "options", "nodes", "networks", "srun_options"):
            known[name] = tuple(str(item) for item in known.get(name, ()))
        for name in ("environment", "mca"):
            known[name] = {str(key): str(value) for key, value in known.get(name, {}).items()}
        return cls(**known)


@dataclasses.dataclass(frozen=True)
class Job:
    """All runs of one launch. here: the launcher's own name in the inventory; ssh: the remote shell's argv.

    open: what is run next depends on what was measured, so the launcher waits for further batches of runs. srun_mpi: --mpi.
    """

    run_id: str
    launcher: str
    here: str
    nodes: tuple[Node, ...]
    runs: tuple[Run, ...]
    mpi: _launch.Mpi
    work: str
    user: str
    as_root: bool
    control_networks: tuple[str, ...] = ()
    ssh: tuple[str, ...] = ()
    ttl_s: float = 60.0
    open: bool = False
    srun_mpi: str = ""

    @classmethod
    def from_dict(cls, data: t.Mapping[str, t.Any]) -> Job:
        known = {field.name: data[field.name] for field in dataclasses.fields(cls) if field.name in data}
        known["nodes"] = tuple(Node(**node) for node in data["nodes"])
        known["runs"] = tuple(Run.from_dict(run) for run in data["runs"])
        known["mpi"] = _launch.Mpi(**data["mpi"])
        for name in ("control_networks", "ssh"):
            known[name] = tuple(data.get(name, ()))
        return cls(**known)

    def as_dict(self) -> dict[str, t.Any]:
        return dataclasses.asdict(self)

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def interfaces(self, run: Run, nodes: t.Sequence[str]) -> dict[str, list[str]]:
        """{node: its interfaces in the run's networks}."""
        return {
            node.name: [node.networks[network] for network in run.networks if network in node.networks]
            for node in self.nodes
            if node.name in nodes
        }

    def environment(self, run: Run) -> dict[str, str]:
        """What every rank gets: the run's own variables and the mark by which its processes are found again.

        NCCL writes a file a rank where it is asked to say something, so that lines of ranks do not mix; the agents bring them back.
        srun has no --mca: there Open MPI reads its parameters from the environment.
        """
        log = {"NCCL_DEBUG_FILE": f"{self.work}/{LOG_FILE}"} if "NCCL_DEBUG" in run.environment else {}
        mca = {f"OMPI_MCA_{name}": value for name, value in run.mca.items()} if self.launcher == "srun" else {}
        return {MARKER: self.run_id, **log, **mca, **run.environment}

    def program(self, run: Run) -> tuple[str, ...]:
        report = ("-J", self.file(REPORT, run)) if run.report else ()
        return (*run.program, *run.options, *report)

    def alone(self, run: Run, name: str) -> tuple[str, ...]:
        """What the node *name* starts by itself. A container of Slurm's is a job of its own there."""
        if not run.srun_options:
            return self.program(run)
        node = self.node(name)
        return ("srun", *run.srun_options, *_launch.on_one_node(node.slurm or node.name), *self.program(run))

    def waves(self, runs: t.Iterable[Run]) -> list[list[Run]]:
        """The runs in their order, those in one list that go at the same time. Two names of one machine are that machine."""
        address = {node.name: node.address for node in self.nodes}
        made: list[list[Run]] = []
        taken: set[str] = set()
        for run in runs:
            machines = {address[name] for name in run.nodes}
            joins = made and made[-1][0].beside and run.beside and len(made[-1]) < MOST_AT_ONCE
            if not joins or machines & taken:
                made.append([])
                taken = set()
            made[-1].append(run)
            taken |= machines
        return made

    def file(self, name: str, run: Run) -> str:
        """The path of a run's own file. None that goes at the same time has its first node."""
        number = next(number for number, node in enumerate(self.nodes) if node.name == run.nodes[0])
        return f"{self.work}/{number}-{name}"

    def launch(self, run: Run, nodes: t.Sequence[str]) -> _launch.Launch:
        """The launch of *run* over *nodes*, those that are still there. The launcher comes first, so that rank 0 is here."""
        ordered = sorted(nodes, key=lambda name: name != self.here)
        by_name = {node.name: node for node in self.nodes}
        slurm = self.launcher == "srun"
        # Two names of one machine are one host with the ranks of both.
        ranks: dict[str, int] = {}
        for name in ordered:
            address = (by_name[name].slurm or name) if slurm else by_name[name].address
            ranks[address] = ranks.get(address, 0) + run.ranks_per_node
        hosts = [_launch.Host(address, count) for address, count in ranks.items()]
        return _launch.Launch(
            program=self.program(run),
            hosts=tuple(hosts),
            environment=self.environment(run),
            control_networks=self.control_networks,
            session=f"{self.work}/{SESSION}",
            ssh=self.ssh,
            mca=run.mca,
            as_root=self.as_root,
            srun_options=run.srun_options,
        )

    def torchruns(self, run: Run, nodes: t.Sequence[str], port: int) -> dict[str, tuple[list[str], dict[str, str]]]:
        """{node: (command line, variables)} of a training's torchrun on every machine. The launcher comes first, so that rank 0
        is here; port: on which it waits for the others.
        """
        by_name = {node.name: node for node in self.nodes}
        places: dict[str, _torchrun.Place] = {}
        for name in sorted(nodes, key=lambda name: name != self.here):
            node = by_name[name]
            known = places.get(node.address)
            ranks = run.ranks_per_node + (known.ranks if known else 0)
            first = known.name if known else name
            interfaces = [node.networks[network] for network in self.control_networks if network in node.networks]
            places[node.address] = _torchrun.Place(first, node.address, ranks, node.python, tuple(interfaces))
        return _torchrun.commands(list(places.values()), port, self.program(run), self.environment(run))

    def argv(self, run: Run, nodes: t.Sequence[str]) -> list[str]:
        """The command line of *run*, as it is started and as it is shown. A training's is that of its first node."""
        if self.launcher == TORCHRUN:
            return next(iter(self.torchruns(run, nodes, 0).values()))[0]
        if run.alone:
            return list(self.alone(run, nodes[0]))
        if self.launcher == "local" and run.ranks_per_node * len(nodes) == 1:
            return list(self.program(run))
        launch = self.launch(run, nodes)
        if self.launcher == "srun":
            return _launch.srun_argv(launch, f"gpufabric-{self.run_id}", run.timeout_s, self.srun_mpi)
        return _launch.mpirun_argv(self.mpi, launch, self.file(HOSTS, run))


def minimum_nodes(run: Run) -> int:
    """A run over the cluster says nothing about a network with one node."""
    return 1 if run.alone or run.stage == "node" else 2
