# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A launch that stays open: what is run next depends on what was measured, as isolate needs it."""

from __future__ import annotations

import json
import pathlib
import sys
import time
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._lease import Lease
from ansible_collections.gpufabric.cluster.plugins.modules import nccl_tests
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import isolate, isolate_verdict
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.benchmark_result import shape_runs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.isolate_runs import Means, measurements_of, runs_of
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_tests_plan import NodeMeans
from ansible_collections.gpufabric.cluster.tests.unit.plugins.module_utils.test_benchmark_run import (
    FS,
    lease,
    parameters,
)

__all__ = ["lease"]


class Open:
    """The controller's side of an open launch, without Ansible."""

    def __init__(self, held: Lease) -> None:
        self.lease = held
        self.count = 0

    def hand_over(self, runs: list[dict[str, t.Any]], nodes: t.Sequence[str] = ("n1", "n2")) -> None:
        given = [{"name": name, "address": "127.0.0.1", "port": 22, "slurm": "", "networks": {}} for name in nodes]
        params = {**parameters(self.lease.run_id, *runs, wait_for_more=True), "nodes": given}
        job = nccl_tests.build_job(params, FS)
        if self.count:
            nccl_tests.hand_over(job, FS, self.count)
        else:
            nccl_tests.start(job, FS, params["ttl_s"])
        self.count += len(runs)

    def wait(self, state: str, timeout_s: float = 60.0) -> dict[str, t.Any]:
        """results.json once the launch is in that state after all that was handed over."""
        directory = pathlib.Path(self.lease.directory)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.lease.renew()
            if (directory / "status").exists():
                status = json.loads((directory / "status").read_text())
                if status["state"] == state and status["finished"] == self.count:
                    results: dict[str, t.Any] = json.loads((directory / "results.json").read_text())
                    return results
            time.sleep(0.05)
        raise AssertionError(f"the launch is not {state} after {timeout_s} s")


def test_batches_one_after_the_other_and_an_empty_one_is_the_end(lease: Lease) -> None:
    launch = Open(lease)
    launch.hand_over([{"environment": {"FAKE_BUSBW": "1"}}])
    assert len(launch.wait("waiting")["results"]) == 1
    launch.hand_over([{"environment": {"FAKE_BUSBW": "2"}}, {"environment": {"FAKE_BUSBW": "3"}}])
    results = launch.wait("waiting")
    runs = [run for raw in results["results"] for run in shape_runs(raw, results["hostnames"])]
    assert [run["rows"][0]["out_of_place"]["busbw_gbs"] for run in runs] == [1.0, 2.0, 3.0]
    launch.hand_over([])
    assert launch.wait("done")["ended"] == ""


def test_a_launch_that_waits_ends_with_its_lease(lease: Lease) -> None:
    launch = Open(lease)
    launch.hand_over([{}])
    launch.wait("waiting")
    lease.renew(0.5)
    deadline = time.monotonic() + 20
    while pathlib.Path(lease.directory).exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not pathlib.Path(lease.directory).exists()


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="isolate decides on the controller, whose Python is 3.11 or later"
)
def test_isolate_names_a_slow_node_through_an_open_launch(lease: Lease) -> None:
    names = ("n1", "n2", "n3", "n4")
    nodes = {name: NodeMeans(name, {"ports": []}, 1, {}) for name in names}
    means = Means("nccl", "n1", lease.run_id, nodes, (), (), iterations=5, warmup=1)
    state = isolate.begin({name: {} for name in names}, {"split": False, "size": 1 << 16, "retests": 6})
    launch = Open(lease)
    while launches := isolate.plan(state):
        planned = runs_of(launches, means)
        runs = []
        for number, one in enumerate(planned):
            speed = (0.4 if "n3" in one.groups[0] else 1.0) * (1 + 0.01 * (number % 3))
            environment = {**one.run["environment"], "FAKE_BUSBW": str(speed)}
            runs.append({**one.run, "environment": environment, "per_iteration": False})
        launch.hand_over(runs, names)
        results = launch.wait("waiting")
        raws = results["results"][-len(runs) :]
        shaped = [run for raw in raws for run in shape_runs(raw, results["hostnames"])]
        state = isolate.observe(state, measurements_of(planned, shaped, [raw["report"] for raw in raws]))
    launch.hand_over([], names)
    launch.wait("done")
    said = isolate_verdict.verdict(state)
    assert [entry["node"] for entry in said["accused"]] == ["n3"] and said["complete"]
