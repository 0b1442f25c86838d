# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What of nccl-tests, MPI and the HCAs' interfaces a node has. PRIVATE to the collection."""

from __future__ import annotations

import re
import sys
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils import _launch, _rdma_sysfs
from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import COLLECTIVES
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_container import Container, look_inside
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_tests_options import letters_of
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Account, Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

#: says whether mpi4py can be imported, without starting MPI
PROBE = "import importlib.util, sys; sys.exit(0 if importlib.util.find_spec('mpi4py') else 3)"
#: every program that MPI was compiled into refers to this function
MPI_SYMBOL = b"MPI_Init"
ELF = b"\x7fELF"
#: nccl-tests 2.17.4 and later carry their version in this line's format
_VERSION = re.compile(rb"nccl-tests version (\d+\.\d+\.\d+)")


def observe(
    fs: RootedFs,
    tools: Tools,
    mpirun: str,
    directory: str,
    prefix: t.Sequence[str],
    pythons: t.Sequence[str],
    account: Account | None = None,
) -> dict[str, t.Any]:
    """One node's means to run a benchmark. account: the user of the ranks, as whom a container is looked into.

    mpirun: {path, version, major, problem}; python: an interpreter that has mpi4py, "" if none; container: what is behind *prefix*
    (_nccl_container.Container), None without one; programs, in directory: see read_program(); srun: whether Slurm's launcher is
    there; ports: the HCAs' ports, [{device, port, state, netdev, link_layer, driver, rate_gbps}].
    """
    container, programs = read_programs(fs, tools, directory, prefix, account=account)
    return {
        "mpirun": _launch.find_mpirun(tools, mpirun).as_dict(),
        "python": next((python for python in pythons if python and _has_mpi4py(tools, python)), ""),
        "directory": directory,
        "programs": programs,
        "container": container.as_dict() if container else None,
        "srun": tools.find("srun") is not None,
        "ports": read_ports(fs),
    }


def pythons(wanted: str = "") -> list[str]:
    """Interpreters to look for mpi4py in: the one named, else the distribution's and the one that runs this."""
    return [wanted] if wanted else list(dict.fromkeys(["/usr/bin/python3", sys.executable]))


def _has_mpi4py(tools: Tools, python: str) -> bool:
    return tools.run([python, "-c", PROBE], timeout=30).ok


def read_programs(
    fs: RootedFs,
    tools: Tools,
    directory: str,
    prefix: t.Sequence[str] = (),
    collectives: t.Iterable[str] = COLLECTIVES,
    account: Account | None = None,
) -> tuple[Container | None, dict[str, dict[str, t.Any]]]:
    """(what is behind *prefix*, None without one; {collective: see read_program()}) of the `*_perf` programs in *directory*."""
    paths = {collective: f"{directory.rstrip('/')}/{collective}_perf" for collective in collectives if directory}
    if prefix:
        return look_inside(fs, tools, prefix, paths, account)
    found = {collective: read_program(fs, tools, path) for collective, path in paths.items()}
    return None, {collective: program for collective, program in found.items() if program is not None}


def read_program(fs: RootedFs, tools: Tools, path: str) -> dict[str, t.Any] | None:
    """{path, mpi, version, letters, problem}, or None where there is no such file.

    mpi: built with MPI=1, so that several processes form one communicator; None where it is a script around the program.
    letters: the options that it knows, read from its usage text, for which no GPU is needed.
    """
    if not fs.is_file(path):
        return None
    try:
        content = fs.read_bytes(path)
    except OSError as error:
        return {"path": path, "mpi": None, "version": "", "letters": "", "problem": str(error)}
    version = _VERSION.search(content)
    done = tools.run([path, "-h"], timeout=60)
    usage = done.stdout + done.stderr
    return {
        "path": path,
        "mpi": MPI_SYMBOL in content if content.startswith(ELF) else None,
        "version": version.group(1).decode() if version else "",
        "letters": "".join(sorted(letters_of(usage))),
        "problem": "" if "USAGE" in usage else (done.problem or "it prints no usage text"),
    }


def read_ports(fs: RootedFs) -> list[dict[str, t.Any]]:
    """Ports of all HCAs, without their counters."""
    devices, _unused = _rdma_sysfs.read_devices(fs, counters="none")
    return [
        {
            "device": device["name"],
            "driver": device["driver"],
            "port": port["port"],
            "state": port["state"],
            "netdev": port["netdev"],
            "link_layer": port["link_layer"],
            "rate_gbps": port["rate_gbps"],
        }
        for device in devices
        for port in device["ports"]
    ]
