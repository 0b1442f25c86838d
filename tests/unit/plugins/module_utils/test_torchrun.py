# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One torchrun a machine: who is rank 0, who is told what, and what a launch with a program in its place brings back."""

from __future__ import annotations

import json
import os
import pathlib
import time
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils import _benchmark_run, _run_processes, _torchrun
from ansible_collections.gpufabric.cluster.plugins.module_utils._lease import Lease
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._training_probe import observe
from ansible_collections.gpufabric.cluster.plugins.module_utils._training_task import Task, Training
from ansible_collections.gpufabric.cluster.plugins.modules import lora_step

FS = RootedFs("/")
TASK = Task("gloo", (Training("x", {"model_type": "llama"}),))
SAYS = """#!/bin/sh
echo noise
echo "TRAINING {\\"rank\\": 0, \\"given\\": \\"$*\\", \\"gloo\\": \\"$GLOO_SOCKET_IFNAME\\", \\"nccl\\": \\"$NCCL_BUFFSIZE\\"}"
"""


def node(name: str, address: str, python: str = "/opt/bin/python", **networks: str) -> dict[str, t.Any]:
    named = {
        network.replace("_", ".").replace("n", "", 1) + "/24": interface for network, interface in networks.items()
    }
    return {"name": name, "address": address, "port": 22, "networks": named, "python": python}


def parameters(run_id: str, nodes: list[dict[str, t.Any]], **more: t.Any) -> dict[str, t.Any]:
    given: dict[str, t.Any] = {name: option.get("default") for name, option in lora_step.argument_spec().items()}
    runs = [{"name": "current", "environment": {"NCCL_BUFFSIZE": 8388608}}]
    given.update(run_id=run_id, here=nodes[-1]["name"], nodes=nodes, runs=runs, task=json.loads(TASK.to_json()))
    return {**given, **more}


@pytest.fixture
def lease() -> t.Iterator[Lease]:
    made = Lease(FS, f"test-torch-{os.getpid()}-{time.monotonic_ns() % 1000000}")
    yield made
    made.release()
    assert not os.path.exists(made.directory)
    assert _run_processes.of_run(FS, made.run_id, made.directory) == []


def test_the_launcher_has_rank_0_and_gloo_the_control_network() -> None:
    nodes = [node("a", "10.0.0.1", n10_0_0_0="eth0", n10_9_0_0="ib0"), node("b", "10.0.0.2", n10_0_0_0="eno1")]
    job = lora_step.build_job(
        parameters("20260101-aaaa", nodes, control_networks=["10.0.0.0/24"], ranks_per_node=4), FS
    )
    commands = job.torchruns(job.runs[0], ["a", "b"], 4711)
    assert list(commands) == ["b", "a"]
    (first, own), (second, other) = commands.values()
    assert first[:3] == ["/opt/bin/python", "-m", "torch.distributed.run"] and first[-2:] == ["train", TASK.to_json()]
    where = ["--nproc-per-node", "4", "--master-addr", "10.0.0.2", "--master-port", "4711"]
    assert first[3:13] == ["--nnodes", "2", "--node-rank", "0", *where]
    assert second[3:13] == ["--nnodes", "2", "--node-rank", "1", *where]
    assert (own["GLOO_SOCKET_IFNAME"], other["GLOO_SOCKET_IFNAME"]) == ("eno1", "eth0")
    assert own["NCCL_BUFFSIZE"] == "8388608" and own["HF_HUB_OFFLINE"] == "1"


def test_two_names_of_one_machine_are_one_torchrun_with_the_ranks_of_both() -> None:
    nodes = [node("a", "127.0.0.1"), node("b", "127.0.0.1")]
    job = lora_step.build_job(parameters("20260101-aaaa", nodes, ranks_per_node=2), FS)
    ((argv, environment),) = job.torchruns(job.runs[0], ["a", "b"], 1).values()
    assert argv[argv.index("--nproc-per-node") + 1] == "4" and environment["GLOO_SOCKET_IFNAME"] == "lo"
    assert job.argv(job.runs[0], ["a", "b"])[:3] == argv[:3]


def test_machines_with_different_numbers_of_ranks_are_refused() -> None:
    places = [_torchrun.Place("a", "10.0.0.1", 2, "python"), _torchrun.Place("b", "10.0.0.2", 1, "python")]
    with pytest.raises(ValueError, match="the same number of ranks"):
        _torchrun.commands(places, 1, ["tool"], {})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"backend": "mpi"}, "the training's backend is 'mpi'"),
        ({"trainings": [{"name": "x", "config": {}, "strategy": "ddq"}]}, "the strategy of x is 'ddq'"),
        ({"speed": 9}, "is not understood"),
    ],
)
def test_a_task_that_cannot_be_meant_is_refused_in_one_sentence(change: dict[str, t.Any], said: str) -> None:
    task = {**json.loads(TASK.to_json()), **change}
    with pytest.raises(ValueError, match=said):
        lora_step.build_job(parameters("20260101-aaaa", [node("a", "127.0.0.1")], task=task), FS)


def carried_out(lease: Lease, folder: pathlib.Path, program: str, interpreter: str = "") -> dict[str, t.Any]:
    """The result of one launch in which *program*, or the program of that path, stands for Python."""
    python = folder / "python"
    python.write_text(program)
    python.chmod(0o755)
    folder.chmod(0o755)
    params = parameters(lease.run_id, [node("n1", "127.0.0.1", interpreter or str(python))])
    _benchmark_run.start(lora_step.build_job(params, FS), FS, params["ttl_s"])
    status, deadline = pathlib.Path(lease.directory, "status"), time.monotonic() + 60
    while time.monotonic() < deadline:
        lease.renew()
        if status.exists() and json.loads(status.read_text())["state"] == "done":
            found: list[dict[str, t.Any]] = json.loads(pathlib.Path(lease.directory, "results.json").read_text())[
                "results"
            ]
            return found[0]
        time.sleep(0.05)
    raise AssertionError("not done in time")


def test_what_the_ranks_print_comes_back(lease: Lease, tmp_path: pathlib.Path) -> None:
    result = carried_out(lease, tmp_path, SAYS)
    assert (result["rc"], result["timed_out"], result["problem"]) == (0, False, "")
    assert '"nccl": "8388608"' in result["alone"]["n1"]["stdout"] and '"gloo": "lo"' in result["alone"]["n1"]["stdout"]


def test_what_a_failing_torchrun_leaves_behind_is_ended(lease: Lease, tmp_path: pathlib.Path) -> None:
    result = carried_out(lease, tmp_path, "#!/bin/sh\nsetsid sleep 300 &\necho 'it broke' >&2\nexit 3\n")
    assert (result["rc"], result["alone"]["n1"]["stderr"]) == (3, "it broke\n")


def test_an_interpreter_that_is_not_there_is_said(lease: Lease, tmp_path: pathlib.Path) -> None:
    result = carried_out(lease, tmp_path, SAYS, "/nowhere/python")
    assert "/nowhere/python is not installed" in result["alone"]["n1"]["error"] and result["rc"] is None


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("#!/bin/sh\nexit 1\n", "cannot import PyTorch"),
        (
            '#!/bin/sh\necho \'PROBE {"versions": {"torch": "2.13"}, "gpus": [], "nccl": ""}\'\n',
            "has no transformers and no peft",
        ),
        (
            '#!/bin/sh\necho \'PROBE {"versions": {"torch": "2", "transformers": "5", "peft": "0"}, "gpus": [143771], "nccl": "2.28.9"}\'\n',
            "",
        ),
    ],
)
def test_a_node_says_what_it_lacks_to_train(tmp_path: pathlib.Path, program: str, problem: str) -> None:
    python = tmp_path / "python"
    python.write_text(program)
    python.chmod(0o755)
    found = observe(FS, Tools(FS), str(python))
    assert found["python"] == str(python) and found["memory_mb"] > 0 and found["cores"] > 0
    assert problem in found["problem"] and bool(found["problem"]) == bool(problem)
    assert found["gpus"] == ([143771] if not problem else [])


def test_an_interpreter_that_was_named_and_is_missing_is_said() -> None:
    assert observe(FS, Tools(FS), "/nowhere/python")["problem"] == "/nowhere/python was not found"
