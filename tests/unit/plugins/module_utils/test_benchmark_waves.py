# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs that go at the same time, as the pairs of a round do: who goes with whom, and that none disturbs another."""

from __future__ import annotations

import pathlib
import threading
import time
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils import _benchmark_job
from ansible_collections.gpufabric.cluster.plugins.module_utils._lease import Lease
from ansible_collections.gpufabric.cluster.plugins.modules import nccl_tests
from ansible_collections.gpufabric.cluster.tests.unit.plugins.module_utils.test_benchmark_run import (
    FS,
    carried_out,
    lease,
    parameters,
)

__all__ = ["lease"]

Runs = t.Sequence[t.Mapping[str, t.Any]]
PAIRS = (["n1", "n2"], ["n3", "n4"])


def on_machines(run_id: str, *runs: dict[str, t.Any], addresses: t.Sequence[str] = ()) -> dict[str, t.Any]:
    """The module's arguments for nodes with an address each, whose ranks all start here."""
    given = parameters(run_id, *({"beside": True, **run} for run in runs), launcher="local")
    addresses = addresses or [f"127.0.0.{number}" for number in range(1, 5)]
    nodes = [{**given["nodes"][0], "name": f"n{k}", "address": address} for k, address in enumerate(addresses, 1)]
    return {**given, "nodes": nodes}


def waves(*runs: dict[str, t.Any], addresses: t.Sequence[str] = ()) -> list[list[list[str]]]:
    job = nccl_tests.build_job(on_machines("test-waves", *runs, addresses=addresses), FS)
    return [[list(run.nodes) for run in wave] for wave in job.waves(job.runs)]


@pytest.mark.parametrize(
    ("runs", "together"),
    [
        ([{"nodes": PAIRS[0]}, {"nodes": PAIRS[1]}], [list(PAIRS)]),
        ([{"nodes": PAIRS[0]}, {"nodes": ["n2", "n3"]}], [[PAIRS[0]], [["n2", "n3"]]]),
        ([{"nodes": PAIRS[0]}, {"nodes": PAIRS[1], "beside": False}], [[PAIRS[0]], [PAIRS[1]]]),
        ([{"nodes": PAIRS[0], "beside": False}, {"nodes": PAIRS[1]}], [[PAIRS[0]], [PAIRS[1]]]),
        (
            [{"nodes": PAIRS[0]}, {"nodes": ["n1", "n3"]}, {"nodes": ["n2", "n4"]}],
            [[PAIRS[0]], [["n1", "n3"], ["n2", "n4"]]],
        ),
    ],
)
def test_only_runs_that_share_no_node_and_may_go_together(
    runs: list[dict[str, t.Any]], together: list[list[list[str]]]
) -> None:
    assert waves(*runs) == together


def test_two_names_of_one_machine_are_not_two_machines() -> None:
    runs = ({"nodes": ["n1"], "ranks_per_node": 2}, {"nodes": ["n2"], "ranks_per_node": 2})
    assert waves(*runs, addresses=["127.0.0.1", "127.0.0.1"]) == [[["n1"]], [["n2"]]]


def test_no_more_at_once_than_this_node_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_benchmark_job, "MOST_AT_ONCE", 1)
    assert waves({"nodes": PAIRS[0]}, {"nodes": PAIRS[1]}) == [[PAIRS[0]], [PAIRS[1]]]


def test_pairs_of_a_round_measure_at_the_same_time_and_keep_their_order(lease: Lease, tmp_path: pathlib.Path) -> None:
    """Each waits for the other: one after the other they would run out of time."""
    meeting = {"FAKE_MEET": f"{tmp_path}:2"}
    runs = [
        {"nodes": pair, "environment": {**meeting, "FAKE_BUSBW": str(k)}, "timeout_s": 30.0}
        for k, pair in enumerate(PAIRS, 1)
    ]
    _results, shaped = carried_out(lease, on_machines(lease.run_id, *runs))
    assert [(run["nodes"], run["failure"]) for run in shaped] == [(pair, None) for pair in PAIRS]
    assert [run["rows"][0]["out_of_place"]["busbw_gbs"] for run in shaped] == [1.0, 2.0]


@pytest.mark.parametrize("fails", ["die", "hang"])
def test_a_pair_that_fails_leaves_the_other_one_alone(lease: Lease, tmp_path: pathlib.Path, fails: str) -> None:
    """The launcher is in the pair that fails, and starts the other one's ranks."""
    bad = {"nodes": PAIRS[0], "environment": {"FAKE_RUN": fails}, "timeout_s": 2.0}
    good = {"nodes": PAIRS[1], "environment": {"FAKE_MEET": f"{tmp_path}:2"}, "timeout_s": 60.0}
    params = on_machines(lease.run_id, bad, good)
    job = nccl_tests.build_job(params, FS)
    output = pathlib.Path(job.file("stdout", job.runs[0]))

    def let_go() -> None:
        """Once the bad pair is over, whose output is taken away then."""
        for over in (False, True):
            while output.exists() is over:
                time.sleep(0.01)
        (tmp_path / "go").touch()

    threading.Thread(target=let_go, daemon=True).start()
    _results, shaped = carried_out(lease, params)
    assert [run["failure"] for run in shaped] == [{"die": "exit_status", "hang": "timeout"}[fails], None]
    assert [len(run["rows"]) for run in shaped] == [2, 4]
