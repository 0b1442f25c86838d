# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The open launch that isolate measures with: pairs first, then all nodes at once, and what is kept where it breaks off."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.action import isolate as action
from ansible_collections.gpufabric.cluster.plugins.action.nccl_tests import Lost
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import bisect_hang, isolate, isolate_verdict
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.isolate_runs import Means
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_isolate import judge_isolate
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_tests_plan import NodeMeans

NODES = ("n1", "n2", "n3", "n4", "n5", "n6")
Hangs = t.Callable[[t.Sequence[str]], bool]


class Launcher(action.ActionModule):
    """Measures without nodes: a run over nodes for which *hangs* does not end. ends_after: it goes away after so many runs."""

    def __init__(self, hangs: Hangs, ends_after: int | None = None) -> None:
        self._hangs, self._ends_after = hangs, ends_after
        self.runs: list[t.Sequence[str]] = []
        self.handed: list[int] = []
        self._display = t.cast(t.Any, self)

    def v(self, sentence: str) -> None:
        """What would be displayed with -v."""

    def _hand_over(self, arguments: t.Any, runs: t.Any, after: int, task_vars: t.Any) -> dict[str, t.Any]:
        self.handed.append(after)
        self.runs += [run["nodes"] for run in runs]
        return {"directory": "/run/gpufabric/x"}

    def _supervise(self, directory: str, parent: int, waiting_after: int | None = None) -> dict[str, t.Any]:
        done = self.runs[: self._ends_after]
        results = [{"nodes": nodes, "hung": self._hangs(nodes), "report": None} for nodes in done]
        return {"results": results, "ended": "" if len(done) == len(self.runs) else "the lease ended"}


def shape(raw: t.Mapping[str, t.Any], hostnames: t.Any) -> list[dict[str, t.Any]]:
    told = {"nodes": raw["nodes"], "problem": "", "seconds": 2.0, "transport": {}, "deltas": {}}
    if raw["hung"]:
        return [{**told, "failure": "timeout", "completed": False, "rows": []}]
    return [{**told, "failure": None, "completed": True, "rows": [{"out_of_place": {"busbw_gbs": 1.0}}]}]


def measured(
    monkeypatch: pytest.MonkeyPatch, launcher: Launcher, whole: bool = True, names: t.Sequence[str] = NODES
) -> action._Measured:
    monkeypatch.setattr(action, "shape_runs", shape)
    nodes = {name: NodeMeans(name, {"ports": []}, 0, {}) for name in names}
    means = Means("mpi", "n1", "run", nodes, (), (), iterations=1, warmup=0)
    found = action._Measured(isolate.begin({name: {} for name in names}, {"split": False}))
    launcher._measure(found, means, {"here": "n1"}, {}, whole)
    return found


def judged(found: action._Measured) -> list[tuple[str, str]]:
    said = {"verdict": isolate_verdict.verdict(found.pairs), "problem": "", "left_out": []}
    hang = bisect_hang.verdict(found.whole) if found.whole else {}
    return [(f.id, f.node) for f in judge_isolate({"n1": {**said, "hang": hang}}, {}) if f.severity == "error"]


def test_where_all_is_well_all_nodes_run_at_once_once(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(lambda nodes: False)
    found = measured(monkeypatch, launcher)
    assert [list(nodes) for nodes in launcher.runs if len(nodes) > 2] == [list(NODES)]
    assert judged(found) == [] and found.rows[-1]["stage"] == "hang"
    assert launcher.handed[0] == -1 and launcher.handed[-1] == len(launcher.runs), "one launch, which is ended"


def test_what_hangs_by_the_number_of_nodes_is_said_to_be_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as open files that are too few: pairs pass, and threes."""
    launcher = Launcher(lambda nodes: len(nodes) > 3)
    assert judged(measured(monkeypatch, launcher)) == [("hang_unreproduced", "")]


def test_a_link_that_only_a_whole_run_uses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of pairs do not bring every two nodes together."""
    names = [f"n{number:02}" for number in range(40)]
    first = Launcher(lambda nodes: False)
    measured(monkeypatch, first, whole=False, names=names)
    met = {frozenset(nodes) for nodes in first.runs}
    one, two = next((a, b) for a in names for b in names if a < b and {a, b} not in met)
    launcher = Launcher(lambda nodes: {one, two} <= set(nodes))
    assert judged(measured(monkeypatch, launcher, names=names)) == [("link_hangs", one)]


def test_it_is_not_run_where_pairs_explain_enough_or_nobody_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Launcher(lambda nodes: "n3" in nodes)
    assert judged(measured(monkeypatch, bad)) == [("node_fails", "n3")]
    unwanted, two = Launcher(lambda nodes: False), Launcher(lambda nodes: False)
    measured(monkeypatch, unwanted, whole=False)
    measured(monkeypatch, two, names=NODES[:2])
    assert not [nodes for launcher in (bad, unwanted, two) for nodes in launcher.runs if len(nodes) > 2]


def test_what_was_measured_before_the_launcher_was_lost_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Launcher(lambda nodes: "n3" in nodes)
    measured(monkeypatch, whole)
    seen: list[action._Measured] = []
    made = action._Measured
    monkeypatch.setattr(action, "_Measured", lambda state: seen.append(made(state)) or seen[-1])
    with pytest.raises(Lost, match="the lease ended"):
        measured(monkeypatch, Launcher(lambda nodes: "n3" in nodes, ends_after=len(whole.runs) - 1))
    (found,) = seen
    verdict = isolate_verdict.verdict(found.pairs)
    assert 0 < verdict["launches"] < len(whole.runs) and not verdict["unmeasured"]


def test_finished_runs_of_the_step_in_which_the_launcher_is_lost_are_kept_and_the_rest_hang_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[action._Measured] = []
    made = action._Measured
    monkeypatch.setattr(action, "_Measured", lambda state: seen.append(made(state)) or seen[-1])
    with pytest.raises(Lost, match="the lease ended"):
        measured(monkeypatch, Launcher(lambda nodes: False, ends_after=2))
    (found,) = seen
    assert [row["busbw"] for row in found.rows] == [1.0, 1.0]
    assert judged(found) == []
