# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A whole run on this machine with programs that stand for mpirun and nccl-tests: what is kept when it goes wrong."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils import _node_tool, _run_processes
from ansible_collections.gpufabric.cluster.plugins.module_utils._lease import Lease
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Account
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.modules import nccl_tests
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.benchmark_result import shape_runs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_busbw import judge_busbw

PROGRAMS = pathlib.Path(__file__).parents[3] / "fixtures" / "nccl_programs"
FS = RootedFs("/")


def parameters(run_id: str, *runs: dict[str, t.Any], **more: t.Any) -> dict[str, t.Any]:
    """Arguments of the module as Ansible would hand them over, defaults included."""
    spec = nccl_tests.argument_spec()

    def whole(options: t.Mapping[str, t.Any], given: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        return {name: given.get(name, option.get("default")) for name, option in options.items()}

    node = whole(spec["nodes"]["options"], {"name": "n1", "address": "127.0.0.1"})
    other = whole(spec["nodes"]["options"], {"name": "n2", "address": "127.0.0.1"})
    made = [
        whole(
            spec["runs"]["options"],
            {
                "collective": "all_reduce",
                "backend": "nccl",
                "min_bytes": "1K",
                "max_bytes": "64K",
                "step_factor": 4,
                **run,
            },
        )
        for run in runs
    ]
    given = {
        "run_id": run_id,
        "here": "n1",
        "nodes": [node, other],
        "runs": made,
        "directory": str(PROGRAMS),
        "mpirun": str(PROGRAMS / "mpirun"),
        **more,
    }
    return whole(spec, given)


@pytest.fixture
def lease() -> t.Iterator[Lease]:
    made = Lease(FS, f"test-run-{os.getpid()}-{time.monotonic_ns() % 1000000}")
    yield made
    made.release()
    assert not os.path.exists(made.directory) and not os.path.exists(made.note)
    assert _run_processes.of_run(FS, made.run_id, made.directory) == []


def carried_out(
    lease: Lease, params: dict[str, t.Any], timeout_s: float = 40.0
) -> tuple[dict[str, t.Any], list[dict[str, t.Any]]]:
    """Start the launcher's own process as the module does, and wait for its results: (results.json, runs of the record)."""
    nccl_tests.start(nccl_tests.build_job(params, FS), FS, params["ttl_s"])
    deadline = time.monotonic() + timeout_s
    status = pathlib.Path(lease.directory, "status")
    while time.monotonic() < deadline:
        lease.renew()
        if status.exists() and json.loads(status.read_text())["state"] == "done":
            break
        time.sleep(0.1)
    results = json.loads(pathlib.Path(lease.directory, "results.json").read_text())
    return results, [run for raw in results["results"] for run in shape_runs(raw, results["hostnames"])]


def test_a_run_that_is_whole(lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JWT", "planted-secret")
    run = {"claim": "IB", "environment": {"NCCL_DEBUG": "INFO"}}
    results, (run, other) = carried_out(lease, parameters(lease.run_id, run, {"environment": {"FAKE_BUSBW": "1"}}))
    assert run["failure"] is None and run["completed"] and run["ranks"] == 2
    assert [row["size_bytes"] for row in run["rows"]] == [1024, 4096, 16384, 65536]
    assert run["transport"]["proven"] == "IB", "from the log file that a rank wrote and that is gone now"
    assert other["rows"][0]["out_of_place"]["busbw_gbs"] == 1.0
    assert "planted-secret" not in json.dumps(results), "nccl-tests' JSON holds the whole environment"
    assert run["environment"] == {"NCCL_DEBUG": "INFO"}
    argv = run["argv"]
    assert argv[0] == str(PROGRAMS / "mpirun") and argv[argv.index("-np") + 1] == "2"
    assert "plm" not in argv, "one machine needs no remote shell"
    assert not list(pathlib.Path(lease.work).glob("nccl-*"))


@pytest.mark.parametrize(
    ("fails", "failure", "rows"),
    [
        ("die", "exit_status", 2),
        ("wrong", "wrong_results", 4),
        ("oom", "cuda", 0),
        ("ecc", "cuda", 0),
        ("old", "no_rows", 0),
        ("nan", "non_finite_values", 0),
    ],
)
def test_a_run_that_fails_keeps_its_rows_and_the_next_goes_on(
    lease: Lease, fails: str, failure: str, rows: int
) -> None:
    _, (bad, good) = carried_out(lease, parameters(lease.run_id, {"environment": {"FAKE_RUN": fails}}, {}))
    assert (bad["failure"], len(bad["rows"])) == (failure, rows)
    if failure == "cuda":
        _, findings = judge_busbw([bad], {"nccl_tests_line_rate_gbps": 1}, {})
        said = {"oom": "out of memory", "ecc": "uncorrectable ECC error"}[fails]
        assert any(said in finding.evidence for finding in findings), "the cause in CUDA's own words"
    assert good["failure"] is None


def test_a_run_that_hangs_is_ended_with_all_its_processes(lease: Lease) -> None:
    began = time.monotonic()
    _, (bad, good) = carried_out(
        lease, parameters(lease.run_id, {"environment": {"FAKE_RUN": "hang"}, "timeout_s": 2.0}, {})
    )
    assert bad["failure"] == "timeout" and bad["timed_out"] and len(bad["rows"]) == 2
    assert good["failure"] is None
    assert time.monotonic() - began < 30
    assert _run_processes.of_run(FS, lease.run_id, lease.directory, with_services=False) == []


def test_a_controller_that_is_gone_ends_it_all(lease: Lease) -> None:
    params = parameters(lease.run_id, {"environment": {"FAKE_RUN": "hang"}, "timeout_s": 300.0}, ttl_s=2)
    nccl_tests.start(nccl_tests.build_job(params, FS), FS, 2)
    deadline = time.monotonic() + 30
    while os.path.exists(lease.directory) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not os.path.exists(lease.directory) and not os.path.exists(lease.note)


def test_nodes_alone(lease: Lease) -> None:
    _, runs = carried_out(lease, parameters(lease.run_id, {"stage": "node", "alone": True, "gpus_per_rank": 4}))
    assert [(run["nodes"], run["failure"], run["ranks"]) for run in runs] == [(["n1"], None, 4)]
    assert "-g" in runs[0]["argv"] and "mpirun" not in runs[0]["argv"][0]


@pytest.mark.parametrize(
    ("run", "more", "sentence"),
    [
        ({"min_bytes": "1M", "max_bytes": "1K"}, {}, r"min_bytes \(1M\) must be above 0 and at most max_bytes \(1K\)"),
        ({"min_bytes": "lots"}, {}, "a size is a number"),
        ({"step_factor": 1.0}, {}, "step_factor must be above 1"),
        ({"datatype": "floot"}, {}, "datatype: one of"),
        ({"nodes": ["n7"]}, {}, "n7 is none of nodes"),
        ({"collective": "broadcast"}, {}, "there is no such program"),
        ({}, {"command_prefix": ["no-such-container", "exec"]}, "no-such-container is not installed"),
        ({}, {"command_prefix": [str(PROGRAMS / "container"), "/nowhere.sif"]}, "could not open image /nowhere.sif"),
        ({}, {"here": "n9"}, "here: one of nodes is expected"),
        ({}, {"mpirun": "/nowhere/mpirun"}, "/nowhere/mpirun is not installed"),
        ({}, {"run_id": "../.."}, "a run's name is made of"),
        ({}, {"user": "nobody-of-that-name"}, "has no user"),
    ],
)
def test_bad_input_is_one_sentence_and_starts_nothing(
    run: dict[str, t.Any], more: dict[str, t.Any], sentence: str
) -> None:
    with pytest.raises(Exception, match=sentence):
        nccl_tests.build_job({**parameters("test-bad-input", run), **more}, FS)
    assert not os.path.exists(Lease(FS, "test-bad-input").directory)


def test_the_agent_answers_over_a_pipe(lease: Lease) -> None:
    """As over ssh: requests and answers are lines; the connection's end gives the lease back."""
    lease.arm(Account.behind(), _node_tool.build, 600, 3600)
    agent = subprocess.Popen(
        [sys.executable, lease.tool, "agent", lease.run_id], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert agent.stdin is not None and agent.stdout is not None

    def ask(number: int, do: str, **more: t.Any) -> dict[str, t.Any]:
        print(json.dumps({"id": number, "do": do, **more}), file=agent.stdin, flush=True)
        return dict(json.loads(agent.stdout.readline()))  # type: ignore[union-attr]

    assert json.loads(agent.stdout.readline())["hello"] == os.uname().nodename
    assert ask(1, "renew", ttl_s=600) == {"id": 1, "renewed": True}
    assert pathlib.Path(lease.alive).read_text() == "600\n"
    assert ask(2, "mark") == {"id": 2}
    assert 0 <= ask(3, "delta")["delta"]["seconds"] < 600
    assert "error" in ask(4, "nonsense")
    answer = ask(5, "exec", argv=["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=10)
    assert (answer["rc"], answer["stdout"], answer["stderr"]) == (3, "out\n", "err\n")
    agent.stdin.close()
    assert agent.wait(20) == 0
    assert not os.path.exists(lease.directory)
