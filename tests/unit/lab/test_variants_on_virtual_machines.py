# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's variants, on virtual machines: GPUFABRIC_LAB=1 pytest -m lab tests/unit/lab."""

from __future__ import annotations

import os
import time
import typing as t

import pytest

from lab.cluster import Cluster
from lab.state import Settings

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.environ.get("GPUFABRIC_LAB") != "1", reason="boots virtual machines: set GPUFABRIC_LAB=1"),
]

RELEASE = os.environ.get("GPUFABRIC_LAB_RELEASES", "bookworm").split(",")[0]
PORT = "/sys/class/infiniband/ibsim0/ports/1"
RANKS = (
    "from mpi4py import MPI; c = MPI.COMM_WORLD; "
    "print('rank', c.rank, 'of', c.size, 'on', MPI.Get_processor_name(), 'sum', c.allreduce(c.rank + 1))"
)


def up(tmp_path_factory: pytest.TempPathFactory, variant: str) -> t.Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp(variant) / "run") as one:
        one.up(Settings(releases=(RELEASE,), variant=variant))
        yield one


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Cluster]:
    yield from up(tmp_path_factory, "slurm")


@pytest.fixture(scope="module")
def ibsim(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Cluster]:
    yield from up(tmp_path_factory, "ibsim")


def output(cluster: Cluster, node: str, command: str) -> str:
    done = cluster.run(node, command, timeout_s=120)
    return done.output + done.errors


@pytest.mark.parametrize("plugin", ["pmix", "pmi2"])
def test_srun_starts_ranks_on_every_node(slurm: Cluster, plugin: str) -> None:
    deadline = time.monotonic() + 180
    while "2   idle" not in (seen := output(slurm, "n1", "sinfo")):
        assert time.monotonic() < deadline, seen + output(slurm, "n1", "journalctl -u slurmd -u slurmctld | tail -20")
        time.sleep(2)
    if plugin == "pmi2":
        # Debian's Open MPI has no PMI-2: what the plug-in does for any program is shown by one that asks for its rank.
        text = output(slurm, "n1", "srun --mpi=pmi2 -N2 -n2 sh -c 'echo rank $PMI_RANK of $PMI_SIZE on $(hostname)'")
        assert sorted(text.splitlines()) == ["rank 0 of 2 on n1", "rank 1 of 2 on n2"]
        return
    settings = "OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=10.76.0.0/24"
    text = output(slurm, "n1", f'{settings} srun --mpi=pmix -N2 -n2 python3 -c "{RANKS}"')
    assert sorted(text.splitlines()) == ["rank 0 of 2 on n1 sum 3", "rank 1 of 2 on n2 sum 3"]


def test_the_simulated_hca_is_alike_for_tools_and_in_sys(ibsim: Cluster) -> None:
    for node in ("n1", "n2"):
        lid, sm_lid, state = output(
            ibsim, node, f"cd {PORT}; for f in lid sm_lid state; do echo $(cat $f); done"
        ).split("\n")[:3]
        assert state == "4: ACTIVE"
        text = output(ibsim, node, "ibstat")
        assert f"Base lid: {int(lid, 16)}\n" in text
        assert f"SM lid: {int(sm_lid, 16)}\n" in text
        assert int(lid, 16) > 0


@pytest.mark.parametrize(
    ("kind", "shown", "cabled"),
    [("fabric-link-down", "1: DOWN", None), ("wrong-cable", "4: ACTIVE", 35), ("sm-stopped", "2: INIT", 1)],
)
def test_a_fault_of_the_fabric_shows_and_is_taken_back(
    ibsim: Cluster, kind: str, shown: str, cabled: int | None
) -> None:
    def seen() -> tuple[str, int | None]:
        rows = [row for row in output(ibsim, "n2", "iblinkinfo").splitlines() if '"n2"' in row]
        ports = [int(row.split("[")[0].split()[1]) for row in rows]
        return output(ibsim, "n2", f"cat {PORT}/state").strip(), ports[0] if ports else None

    assert seen() == ("4: ACTIVE", 1)
    ibsim.inject(kind, "n2")
    try:
        assert seen() == (shown, cabled)
    finally:
        ibsim.clear()
    assert seen() == ("4: ACTIVE", 1)
