# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Command lines of launchers, and options that this version of a program knows."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils import _benchmark_job, _launch, _ssh_trust
from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import (
    counts,
    parse_size,
    size_text,
    steps,
)
from ansible_collections.gpufabric.cluster.plugins.module_utils._launch import Host, Launch, Mpi
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_tests_options import Options, letters_of
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_tests_probe import read_programs
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

LAUNCH = Launch(
    program=("/opt/nt/all_reduce_perf", "-b", "8"),
    hosts=(Host("192.0.2.1", 8), Host("192.0.2.2", 8)),
    environment={"NCCL_DEBUG": "INFO", "A": "x y"},
    control_networks=("192.0.2.0/24",),
    session="/run/x/t",
    ssh=("ssh", "-F", "/run/x/ssh_config"),
    mca={"pml": "ob1"},
    as_root=True,
)
MPI4, MPI5 = Mpi("mpirun", "4.1.4", 4), Mpi("mpirun", "5.0.7", 5)


def pairs(argv: list[str], option: str) -> dict[str, str]:
    return {argv[i + 1]: argv[i + 2] for i, word in enumerate(argv) if word == option}


def test_open_mpi_4_is_pinned_to_the_control_network_and_to_one_ssh() -> None:
    argv = _launch.mpirun_argv(MPI4, LAUNCH, "/run/x/hosts")
    assert argv[:9] == [
        "mpirun",
        "--allow-run-as-root",
        "--hostfile",
        "/run/x/hosts",
        "-np",
        "16",
        "--map-by",
        "ppr:8:node",
        "--bind-to",
    ]
    assert pairs(argv, "--mca") == {
        "plm": "rsh",
        "plm_rsh_no_tree_spawn": "1",
        "plm_rsh_num_concurrent": "128",
        "plm_rsh_agent": "ssh -F /run/x/ssh_config",
        "oob_tcp_if_include": "192.0.2.0/24",
        "orte_tmpdir_base": "/run/x/t",
        "pml": "ob1",
    }
    assert argv[-3:] == ["/opt/nt/all_reduce_perf", "-b", "8"]
    assert "A=x y" in argv, "one argument: there is no shell in between"


def test_open_mpi_5_has_other_names() -> None:
    argv = _launch.mpirun_argv(MPI5, LAUNCH, "/run/x/hosts")
    assert pairs(argv, "--prtemca") == {
        "plm": "ssh",
        "plm_ssh_no_tree_spawn": "1",
        "plm_ssh_num_concurrent": "128",
        "plm_ssh_agent": "ssh -F /run/x/ssh_config",
        "prte_if_include": "192.0.2.0/24",
        "prte_tmpdir_base": "/run/x/t",
    }
    assert pairs(argv, "--mca") == {"pml": "ob1"}


def test_host_file_and_unequal_nodes() -> None:
    assert _launch.hostfile(LAUNCH) == "192.0.2.1 slots=8\n192.0.2.2 slots=8\n"
    unequal = Launch(("p",), (Host("a", 8), Host("b", 4)), {})
    with pytest.raises(ValueError, match=r"same number of ranks, not \[4, 8\]"):
        _launch.mpirun_argv(MPI4, unequal, "h")


def test_srun_lists_names_and_forwards_nothing_else() -> None:
    argv = _launch.srun_argv(LAUNCH, "gpufabric-1", 90.0, "pmix")
    assert "--ntasks=16" in argv and "--ntasks-per-node=8" in argv and "--nodelist=192.0.2.1,192.0.2.2" in argv
    assert "--time=2" in argv and "--mpi=pmix" in argv and "--kill-on-bad-exit=1" in argv
    (export,) = [word for word in argv if word.startswith("--export=")]
    assert export == "--export=PATH,HOME,USER,LD_LIBRARY_PATH,NCCL_DEBUG,A", (
        "never ALL: the submitting shell's variables stay there"
    )


def test_srun_s_ranks_get_open_mpi_s_parameters_from_their_environment() -> None:
    run = _benchmark_job.Run(
        "cluster", "all_reduce", "mpi", ("python3",), (), ("n1",), mca={"btl_tcp_if_include": "a,b"}
    )
    nodes = (_benchmark_job.Node("n1", "192.0.2.1"),)
    for launcher, given in (("srun", {"OMPI_MCA_btl_tcp_if_include": "a,b"}), ("mpirun", {})):
        job = _benchmark_job.Job("run", launcher, "n1", nodes, (run,), MPI4, "/run/x", "root", True)
        assert {k: v for k, v in job.environment(run).items() if k.startswith("OMPI_")} == given
        shown = " ".join(job.argv(run, ["n1"]))
        assert ("OMPI_MCA_btl_tcp_if_include" in shown) == (launcher == "srun")


@pytest.mark.parametrize(
    ("printed", "major", "problem"),
    [
        ("mpirun (Open MPI) 4.1.4\n", 4, ""),
        ("mpirun (Open MPI) 4.1.7a1\n", 4, ""),
        ("mpirun (Open MPI) 5.0.7\n", 5, ""),
        ("mpirun (Open MPI) 3.1.6\n", 3, "4 and 5 are supported"),
        ("HYDRA build details:\n    Version: 4.0\n", 0, "belongs to HYDRA"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11\n", 0, "belongs to Intel(R) MPI"),
        ("", 0, "does not say that it is Open MPI's"),
    ],
)
def test_mpirun_is_known_by_what_it_says(tmp_path: pathlib.Path, printed: str, major: int, problem: str) -> None:
    program = tmp_path / "usr/bin/mpirun"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nprintf '%s' '{printed}'\n")
    program.chmod(0o755)
    found = _launch.find_mpirun(Tools(RootedFs(str(tmp_path))))
    assert found.major == major
    assert problem in found.problem and bool(problem) == bool(found.problem)


def test_hpc_x_is_found_where_it_is_unpacked(tmp_path: pathlib.Path) -> None:
    tools = Tools(RootedFs(str(tmp_path)))
    assert _launch.find_mpirun(tools).problem == "mpirun is not installed"
    program = tmp_path / "opt/hpcx-v2.18-gcc/ompi/bin/mpirun"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.7a1'\n")
    program.chmod(0o755)
    assert _launch.find_mpirun(tools).path == "/opt/hpcx-v2.18-gcc/ompi/bin/mpirun"


# ---- options

USAGE = "USAGE: x \n\t[-b,--minbytes <min>] \n\t[-T,--timeout <time in seconds>] \n\t[-J,--output_file <file>] \n\t[-h,--help]\n"


def test_only_options_that_the_program_lists() -> None:
    assert letters_of(USAGE) == {"b", "T", "J", "h"}
    options = Options("all_reduce", per_iteration=True, timeout_s=30, blocking=1)
    assert options.argv("bTJh")[-2:] == ["-T", "30"]
    assert "-I" not in options.argv("bTJh") and "-z" not in options.argv("bTJh")
    assert options.argv("bTJhIz")[-2:] == ["-I", "1"]
    assert "-I" not in Options("all_reduce", per_iteration=True, cuda_graph=4).argv("IG"), "nccl-tests refuses both"


def test_operation_and_root_only_where_they_mean_something() -> None:
    assert "-o" in Options("all_reduce").argv() and "-r" not in Options("all_reduce").argv()
    assert "-r" in Options("broadcast").argv() and "-o" not in Options("broadcast").argv()
    assert "-g" not in Options("all_reduce").argv(), "the MPI collectives know no GPUs"
    assert Options("all_reduce", step_bytes="1M").argv()[4:6] == ["-i", "1048576"]


@pytest.mark.parametrize(
    ("text", "size"), [("8", 8), ("1K", 1024), ("0.5M", 524288), ("8g", 8 << 30), ("1.5G", 3 << 29), ("4KB", 4096)]
)
def test_sizes_as_nccl_tests_reads_them(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_steps_and_counts() -> None:
    assert steps(1024, 8192) == [1024, 2048, 4096, 8192]
    assert steps(1000, 3500, step_bytes=1000) == [1000, 2000, 3000]
    assert steps(8, 8, 1.0) == [8]
    assert counts("all_reduce", 1000, 3, 4) == (250, 1000)
    assert counts("all_gather", 100, 3, 4) == (8, 96), "each rank's part is rounded down to 16 bytes"
    assert counts("alltoall", 40, 3, 4) == (0, 0)


def test_slurm_s_container_joins_the_launcher_s_srun() -> None:
    """Its image is an option of the srun that starts the ranks; a node alone is a job of its own on that node."""
    nodes = (_benchmark_job.Node("n1", "192.0.2.1"), _benchmark_job.Node("n2", "192.0.2.2", slurm="gpu-2"))
    options = ("--container-image=/images/nccl.sqsh",)
    run = _benchmark_job.Run(
        "cluster", "all_reduce", "nccl", ("/opt/all_reduce_perf",), ("-b", "8"), ("n1", "n2"), srun_options=options
    )
    job = _benchmark_job.Job("run", "srun", "n1", nodes, (run,), MPI4, "/run/x", "root", True)
    argv = job.argv(run, ["n1", "n2"])
    assert argv[0] == "srun" and argv.count("srun") == 1 and "--nodelist=n1,gpu-2" in argv
    assert argv[-4:] == [*options, "/opt/all_reduce_perf", "-b", "8"]
    again = _benchmark_job.Job.from_dict(json.loads(json.dumps(job.as_dict())))
    assert again.argv(again.runs[0], ["n1", "n2"]) == argv, "as the launcher reads it"
    alone = job.alone(dataclasses.replace(run, alone=True), "n2")
    assert alone == ("srun", *options, "--nodes=1", "--ntasks=1", "--nodelist=gpu-2", "/opt/all_reduce_perf", "-b", "8")


def test_sizes_as_people_say_them() -> None:
    said = {
        0: "0 bytes",
        8: "8 bytes",
        1000: "1000 bytes",
        1024: "1 KiB",
        1536 << 10: "1536 KiB",
        256 << 20: "256 MiB",
        8 << 30: "8 GiB",
    }
    assert {size: size_text(size) for size in said} == said


def test_an_endless_list_of_sizes_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 10000 sizes"):
        Options("all_reduce", min_bytes="1", max_bytes="8G", step_bytes="8")


def test_programs_are_known_by_their_own_words() -> None:
    directory = pathlib.Path(__file__).parents[3] / "fixtures" / "nccl_programs"
    fs = RootedFs("/")
    (program,) = read_programs(fs, Tools(fs), str(directory))[1].values()
    assert program["letters"] == "JTbcefghntw" and program["problem"] == ""
    assert program["mpi"] is None, "a script around the program does not show what that was built with"


@pytest.mark.parametrize(("more", "mpi"), [(b"", False), (b"\0MPI_Init\0", True)])
def test_a_program_shows_whether_it_was_built_with_mpi(tmp_path: pathlib.Path, more: bytes, mpi: bool) -> None:
    path = tmp_path / "all_reduce_perf"
    path.write_bytes(pathlib.Path("/bin/true").read_bytes() + more)
    path.chmod(0o755)
    fs = RootedFs("/")
    (program,) = read_programs(fs, Tools(fs), str(tmp_path))[1].values()
    assert program["mpi"] is mpi and program["problem"] == "it prints no usage text"


# ---- the ssh client's files


def test_ssh_knows_these_nodes_and_nothing_else() -> None:
    peers = [
        {"address": "192.0.2.1", "port": 22, "host_keys": ["ssh-ed25519 AAAA", "ssh-rsa BBBB"]},
        {"address": "192.0.2.2", "port": 2222, "host_keys": ["ssh-ed25519 CCCC"]},
    ]
    assert _ssh_trust.known_hosts(peers).splitlines() == [
        "192.0.2.1 ssh-ed25519 AAAA",
        "192.0.2.1 ssh-rsa BBBB",
        "[192.0.2.2]:2222 ssh-ed25519 CCCC",
    ]
    config = _ssh_trust.ssh_config(peers, "ops", "/k", "/kh")
    assert config.startswith("Host 192.0.2.2\n  Port 2222\nHost *\n")
    for line in (
        "StrictHostKeyChecking yes",
        "UserKnownHostsFile /kh",
        "GlobalKnownHostsFile none",
        "IdentityAgent none",
        "BatchMode yes",
    ):
        assert f"  {line}\n" in config
