# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The open launch that autotune measures with: what it hands over, and what it makes of what comes back."""

from __future__ import annotations

import pathlib
import typing as t
from unittest import mock

import pytest
from ansible_collections.gpufabric.cluster.plugins.action import autotune
from ansible_collections.gpufabric.cluster.plugins.action.nccl_tests import Lost
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search_space import space_for
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_objective import Part
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_study import NodeLostError, StudyError

PART = Part("all_reduce", 1 << 20, 1 << 20)


class Plan(t.NamedTuple):
    """What of a plan the launch looks at."""

    in_force: dict[str, str] = {"btl_tcp_sndbuf": "4096"}
    space: t.Any = space_for("mpi_tcp", "")
    iterations: int = 20
    warmup: int = 5
    transport: str = "mpi_tcp"
    template: t.Any = {"backend": "mpi", "mca": {"btl": "self,tcp"}, "environment": {}}


class Action:
    """Stands for the action plugin: notes what is handed over, and answers with *outcomes* in turn."""

    def __init__(self, *outcomes: dict[str, t.Any]) -> None:
        self.handed: list[tuple[dict[str, t.Any], list[t.Any], int]] = []
        self._outcomes = list(outcomes)

    def _hand_over(self, arguments: t.Any, runs: t.Any, after: int, task_vars: t.Any) -> dict[str, t.Any]:
        self.handed.append((dict(arguments), list(runs), after))
        return {"directory": "/run/gpufabric/x"}

    def _supervise(self, directory: str, parent: int, waiting_after: int | None = None) -> dict[str, t.Any]:
        return self._outcomes.pop(0)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> t.Callable[[Action], autotune._OpenLaunch]:
    monkeypatch.setattr(autotune, "shape_runs", lambda raw, hostnames: raw["shaped"])
    given = {"here": "n1", "run_id": "x", "plan": {}, "nccl": {}, "settings": {}, "mpirun": "mpirun"}
    return lambda action: autotune._OpenLaunch(t.cast(t.Any, action), given, t.cast(t.Any, Plan()), {})


def result(busbw: float | None, proven: str = "tcp", seconds: float = 2.0, **more: t.Any) -> dict[str, t.Any]:
    rows = [{"size_bytes": 1 << 20, "out_of_place": {"busbw_gbs": busbw}}] if busbw else []
    run = {"failure": None if busbw else "exit_status", "rows": rows, "transport": {"proven": proven}, **more}
    return {"seconds": seconds, "shaped": [run]}


Opened = t.Callable[[Action], autotune._OpenLaunch]


def test_one_launch_takes_trial_after_trial_and_is_ended(opened: Opened) -> None:
    results = [result(3.0), result(None)]
    action = Action({"results": results[:1]}, {"results": results}, {"results": results, "released": ["n2"]})
    launch = opened(action)
    first = launch.measure({"btl_tcp_links": "2"}, PART, 60.0)
    assert (first.failure, first.seconds, first.run["rows"][0]["out_of_place"]["busbw_gbs"]) == ("", 2.0, 3.0)
    assert launch.measure({}, PART, 30.0).failure == "exit_status"
    assert launch.close() == ["n2"]
    (arguments, (run,), after), (_same, (second,), next_after), (_end, nothing, last_after) = action.handed
    assert arguments == {"here": "n1", "run_id": "x", "mpirun": "mpirun"}
    assert run["mca"] == {"btl": "self,tcp", "btl_tcp_links": "2", "btl_tcp_sndbuf": "0"} and run["timeout_s"] == 60.0
    assert second["mca"] == {"btl": "self,tcp", "btl_tcp_sndbuf": "0"} and second["timeout_s"] == 30.0
    assert (after, next_after, last_after, nothing) == (-1, 1, 2, [])


@pytest.mark.parametrize(
    ("outcome", "error", "sentence"),
    [
        (
            {"lost": {"n2": "it closed its connection"}, "results": [result(1.0)]},
            NodeLostError,
            "n2 went away: it closed",
        ),
        ({"ended": "interrupted: nobody renewed", "results": []}, Lost, "interrupted"),
        ({"results": []}, Lost, "ended before all was measured"),
        ({"results": [result(1.0, proven="rdma")]}, StudyError, "used rdma where tcp was expected"),
    ],
)
def test_what_ends_a_study(opened: Opened, outcome: dict[str, t.Any], error: type[Exception], sentence: str) -> None:
    launch = opened(Action(outcome))
    with pytest.raises(error, match=sentence):
        launch.measure({}, PART, 60.0)


def test_nodes_that_ran_by_themselves_are_as_good_as_the_slowest(opened: Opened) -> None:
    both = {"seconds": 1.0, "shaped": [result(5.0)["shaped"][0], result(2.0)["shaped"][0]]}
    broken = {"seconds": 1.0, "shaped": [result(5.0)["shaped"][0], result(None)["shaped"][0]]}
    launch = opened(Action({"results": [both]}, {"results": [both, broken]}))
    assert launch.measure({}, PART, 60.0).run["rows"][0]["out_of_place"]["busbw_gbs"] == 2.0
    assert launch.measure({}, PART, 60.0).failure == "exit_status"


def test_files_are_written_as_a_whole_and_only_a_profile_is_a_change(tmp_path: pathlib.Path) -> None:
    reports = {"autotune.json": "{}", "report.md": "#", "report.html": "<p>"}
    assert not autotune.write_files(tmp_path, reports)
    assert autotune.write_files(tmp_path, {**reports, "nccl_env.yml": "a"})
    assert not autotune.write_files(tmp_path, {**reports, "report.md": "##", "nccl_env.yml": "a"})
    assert {path.name for path in tmp_path.iterdir()} == {*reports, "nccl_env.yml"}


def test_a_directory_that_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_unused: t.Any) -> dict[str, t.Any]:
        raise PermissionError(13, "Permission denied", "/srv/results/autotune")

    task = mock.MagicMock(args={"plan": {"problem": ""}}, check_mode=False, async_val=0)
    action = autotune.ActionModule(task, *(mock.MagicMock() for _number in range(5)))
    monkeypatch.setattr(action, "_tune", refused)
    problem = action.run(task_vars={})["problem"]
    assert problem == (
        "/srv/results/autotune cannot be written: Permission denied; set autotune_results_dir to where it can be"
    )
