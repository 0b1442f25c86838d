# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How a program is started on many nodes at once: the command lines of mpirun and srun. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools

#: where HPC-X and other stacks keep their Open MPI when no module or PATH leads there
MPIRUN_PLACES = (
    "/opt/hpcx",
    "/opt/amazon/openmpi",
    "/opt/amazon/openmpi5",
    "/usr/mpi/gcc",
    "/usr/lib64/openmpi",
    "/opt/openmpi",
)


@dataclasses.dataclass(frozen=True)
class Mpi:
    """An mpirun. major: Open MPI's, 0 for a launcher of another family; problem: why it cannot be used, "" where it can."""

    path: str
    version: str = ""
    major: int = 0
    problem: str = ""

    def as_dict(self) -> dict[str, t.Any]:
        return dataclasses.asdict(self)


def find_mpirun(tools: Tools, wanted: str = "") -> Mpi:
    """The mpirun named *wanted* (a name or a path), else the one in the usual directories, else one of MPIRUN_PLACES."""
    candidates = [wanted] if wanted else ["mpirun", "mpirun.openmpi", *_elsewhere(tools)]
    for candidate in candidates:
        if tools.find(candidate):
            return identify(tools, candidate)
    where = wanted or "mpirun"
    return Mpi(where, problem=f"{where} is not installed")


def _elsewhere(tools: Tools) -> list[str]:
    found = []
    for place in MPIRUN_PLACES:
        for directory in [place, *tools.fs.glob(place, "*"), *tools.fs.glob("/opt", "hpcx-*")]:
            found += [f"{directory}/bin/mpirun", f"{directory}/ompi/bin/mpirun"]
    return found


def identify(tools: Tools, mpirun: str) -> Mpi:
    """Read `mpirun --version`. Open MPI and HPC-X print "mpirun (Open MPI) 4.1.4" (5: also on "prterun (PRRTE) ..." lines)."""
    done = tools.run([mpirun, "--version"], timeout=30)
    text = done.stdout + done.stderr
    match = re.search(r"\(Open MPI\)\s+((\d+)\.\d+\S*)", text)
    if match:
        major = int(match.group(2))
        problem = "" if major in (4, 5) else f"{mpirun} is Open MPI {match.group(1)}; 4 and 5 are supported"
        return Mpi(mpirun, match.group(1), major, problem)
    family = re.search(r"HYDRA|Intel\(R\) MPI|MVAPICH|MPICH", text)
    what = f"belongs to {family.group(0)}" if family else (done.problem or "does not say that it is Open MPI's")
    return Mpi(mpirun, problem=f"{mpirun} {what}; Open MPI 4 or 5 is needed")


@dataclasses.dataclass(frozen=True)
class Host:
    """address: by which the launcher reaches the node and srun knows it; ranks: started on it."""

    address: str
    ranks: int


@dataclasses.dataclass(frozen=True)
class Launch:
    """What to start where.

    environment: forwarded to each rank, by name and value. control_networks: in CIDR form, where the launcher's own
    messages go. session: a directory that exists on each node for the launcher's session files. ssh: the remote shell
    and its arguments, empty for the site's own. mca: further parameters of Open MPI. as_root: the launcher runs as root.
    srun_options: further ones of srun, such as a container's image.
    """

    program: tuple[str, ...]
    hosts: tuple[Host, ...]
    environment: t.Mapping[str, str]
    control_networks: tuple[str, ...] = ()
    session: str = ""
    ssh: tuple[str, ...] = ()
    mca: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    as_root: bool = False
    srun_options: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        return sum(host.ranks for host in self.hosts)

    @property
    def per_node(self) -> int:
        """Ranks a node; ValueError where nodes differ, which neither `ppr` nor --ntasks-per-node can say."""
        counts = {host.ranks for host in self.hosts}
        if len(counts) != 1:
            raise ValueError(f"every node of one launch needs the same number of ranks, not {sorted(counts)}")
        return counts.pop()


def hostfile(launch: Launch) -> str:
    """Open MPI's host file: one line a node."""
    return "".join(f"{host.address} slots={host.ranks}\n" for host in launch.hosts)


def mpirun_argv(mpi: Mpi, launch: Launch, hosts_path: str) -> list[str]:
    """Open MPI's command line. Names differ: 4 has ORTE (orte_, plm_rsh_), 5 has PRRTE (prte_, plm_ssh_, --prtemca).

    The tree of ssh connections is turned off: only the launcher holds the key, and only it opens connections.
    Ranks are not bound: NCCL's own threads would share the one core that a bound rank gets.
    """
    argv = [mpi.path]
    if launch.as_root:
        argv.append("--allow-run-as-root")
    argv += [
        "--hostfile",
        hosts_path,
        "-np",
        str(launch.ranks),
        "--map-by",
        f"ppr:{launch.per_node}:node",
        "--bind-to",
        "none",
    ]
    for name, value in _runtime_parameters(mpi, launch).items():
        argv += ["--mca" if mpi.major == 4 else "--prtemca", name, value]
    for name, value in launch.mca.items():
        argv += ["--mca", name, value]
    for name, value in launch.environment.items():
        argv += ["-x", f"{name}={value}"]
    return [*argv, *launch.program]


def _runtime_parameters(mpi: Mpi, launch: Launch) -> dict[str, str]:
    session = {"orte_tmpdir_base" if mpi.major == 4 else "prte_tmpdir_base": launch.session} if launch.session else {}
    if len(launch.hosts) == 1:
        return (
            session  # nothing is started elsewhere: a remote shell that was asked for, and is missing, would end mpirun
        )
    plm = "rsh" if mpi.major == 4 else "ssh"
    parameters = {"plm": plm, f"plm_{plm}_no_tree_spawn": "1", f"plm_{plm}_num_concurrent": "128"}
    if launch.ssh:
        parameters[f"plm_{plm}_agent"] = " ".join(launch.ssh)
    networks = ",".join(launch.control_networks)
    if networks:
        parameters["oob_tcp_if_include" if mpi.major == 4 else "prte_if_include"] = networks
    return {**parameters, **session}


def srun_argv(launch: Launch, job_name: str, time_limit_s: float, mpi_type: str = "") -> list[str]:
    """Slurm's command line. Values of --export may not hold commas, so names are listed and the values are srun's own environment."""
    minutes = max(int(-(-time_limit_s // 60)), 1)
    names = ["PATH", "HOME", "USER", "LD_LIBRARY_PATH", *launch.environment]
    argv = [
        "srun",
        f"--job-name={job_name}",
        f"--nodes={len(launch.hosts)}",
        f"--ntasks={launch.ranks}",
        f"--ntasks-per-node={launch.per_node}",
        f"--nodelist={','.join(host.address for host in launch.hosts)}",
        f"--time={minutes}",
        "--kill-on-bad-exit=1",
        "--unbuffered",
        "--cpu-bind=none",
        f"--export={','.join(names)}",
    ]
    if mpi_type:
        argv.append(f"--mpi={mpi_type}")
    return [*argv, *launch.srun_options, *launch.program]


def on_one_node(name: str) -> list[str]:
    """srun's options for one process on the node that Slurm calls *name*."""
    return ["--nodes=1", "--ntasks=1", f"--nodelist={name}"]
