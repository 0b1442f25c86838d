# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is behind a command prefix: the image's NCCL, files and environment count, and not the node's."""

from __future__ import annotations

import pathlib
import shutil
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_container import look_inside, on_this_node
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_containers import judge_containers, notes_of

PROGRAMS = pathlib.Path(__file__).parents[3] / "fixtures" / "nccl_programs"
LIBRARY = "/usr/lib/libnccl.so.2"
PATHS = {"all_reduce": "/opt/nccl-tests/all_reduce_perf", "alltoall": "/opt/nccl-tests/alltoall_perf"}


@pytest.fixture
def image(tmp_path: pathlib.Path) -> pathlib.Path:
    top = tmp_path / "image"
    texts = {
        "etc/nccl.conf": "NCCL_IB_TIMEOUT=23\nNCCL_PSK=planted-psk\n",
        "root/.nccl.conf": "NCCL_IB_HCA==mlx5_9\n",
        "bin/ldd": f'#!/bin/sh\nprintf "\\tlibmpi.so.40 => /usr/lib/libmpi.so.40 (0x1)\\n\\tlibnccl.so.2 => {top}{LIBRARY} (0x2)\\n"\n',
        LIBRARY[1:]: "\x7fELF\0NCCL version 2.27.3+cuda12.9\0",
    }
    for name, text in texts.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    (top / "bin/ldd").chmod(0o755)
    (top / "opt/nccl-tests").mkdir(parents=True)
    shutil.copy(PROGRAMS / "all_reduce_perf", top / "opt/nccl-tests")
    return top


@pytest.fixture
def node(tmp_path: pathlib.Path) -> RootedFs:
    """A node whose own files say something else than its image's. Programs are this machine's."""
    (tmp_path / "node/etc").mkdir(parents=True)
    (tmp_path / "node/etc/nccl.conf").write_text("NCCL_IB_TIMEOUT=22\nNCCL_IB_QPS_PER_CONNECTION=4\n")
    return RootedFs(str(tmp_path / "node"))


def looked(node: RootedFs, *prefix: str) -> tuple[dict[str, t.Any], dict[str, dict[str, t.Any]]]:
    container, programs = look_inside(node, Tools(RootedFs("/")), [str(PROGRAMS / "container"), *prefix], PATHS)
    return container.as_dict(), programs


def ids(container: dict[str, t.Any]) -> set[str]:
    return {finding.id for finding in judge_containers({"n1": container, "n2": container})}


def test_the_image_counts_and_not_the_node(
    node: RootedFs, image: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_NET_PLUGIN", "none")
    container, programs = looked(node, str(image))
    assert (container["nccl_version"], container["cuda"], container["library"]) == ("2.27.3", "12.9", LIBRARY)
    assert container["effective"] == {
        "NCCL_IB_HCA": {"value": "=mlx5_9", "source": "/root/.nccl.conf"},
        "NCCL_IB_TIMEOUT": {"value": "23", "source": "/etc/nccl.conf"},
        "NCCL_NET_PLUGIN": {"value": "none", "source": "environment"},
    }
    assert "planted-psk" not in str(container), "a key stays on the node"
    assert container["passes_environment"] and container["problem"] == ""
    assert list(programs) == ["all_reduce"] and programs["all_reduce"]["letters"] == "JTbcefghntw"
    assert programs["all_reduce"]["problem"] == "" and programs["all_reduce"]["mpi"] is None
    assert ids(container) == {"container_misses_conf"}
    (finding,) = judge_containers({"n1": container, "n2": container})
    assert "NCCL_IB_TIMEOUT, NCCL_IB_QPS_PER_CONNECTION" in finding.evidence and finding.node == ""
    (note,) = notes_of({"n1": container, "n2": container})
    assert "inside the container: NCCL 2.27.3 for CUDA 12.9" in note and "/root/.nccl.conf and /etc/nccl.conf" in note


def test_a_mounted_file_is_in_force(node: RootedFs, image: pathlib.Path) -> None:
    shutil.copy(node.host_path("/etc/nccl.conf"), image / "etc/nccl.conf")
    (image / "root/.nccl.conf").unlink()
    container, _programs = looked(node, str(image))
    assert container["effective"]["NCCL_IB_QPS_PER_CONNECTION"] == {"value": "4", "source": "/etc/nccl.conf"}
    assert ids(container) == set()


def test_a_container_that_hands_on_no_variable_is_told(
    node: RootedFs, image: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_NET_PLUGIN", "none")
    container, _programs = looked(node, "--bare", str(image))
    assert "NCCL_NET_PLUGIN" not in container["effective"] and not container["passes_environment"]
    assert "container_hides_environment" in ids(container)


def test_an_image_without_nccl_is_told(node: RootedFs, image: pathlib.Path) -> None:
    (image / LIBRARY[1:]).unlink()
    (image / "bin/ldd").write_text("#!/bin/sh\nexit 1\n")
    container, _programs = looked(node, str(image))
    assert container["nccl_version"] == "" and "container_nccl_unknown" in ids(container)


def test_two_images_under_one_name_are_told(node: RootedFs, image: pathlib.Path) -> None:
    container, _programs = looked(node, str(image))
    other = {**container, "nccl_version": "2.28.9"}
    told = [f for f in judge_containers({"n1": container, "n2": container, "n3": other}) if f.severity == "error"]
    assert [finding.evidence for finding in told] == ["2.27.3 on n1, n2; 2.28.9 on n3"]
    assert len(notes_of({"n1": container, "n2": container, "n3": other})) == 2


@pytest.mark.parametrize(
    ("prefix", "said"),
    [
        ([str(PROGRAMS / "container"), "/nowhere.sif"], "could not open image /nowhere.sif"),
        (["no-such-apptainer", "exec", "x.sif"], "no-such-apptainer is not installed"),
        (["true"], "the image's sh did not"),
    ],
)
def test_a_container_that_does_not_start_is_one_sentence(node: RootedFs, prefix: list[str], said: str) -> None:
    container, programs = look_inside(node, Tools(RootedFs("/")), prefix, PATHS)
    assert said in container.problem and programs == {}
    assert judge_containers({"n1": container.as_dict()}) == [], "the plan leaves the node out and says why"


def test_slurm_is_told_on_which_node_to_look() -> None:
    prefix = ["srun", "--container-image=nvcr.io#nvidia/pytorch"]
    assert on_this_node(prefix, "n1.example.org") == [*prefix, "--nodes=1", "--ntasks=1", "--nodelist=n1"]
    assert on_this_node(["apptainer", "exec", "x.sif"], "n1") == ["apptainer", "exec", "x.sif"]
