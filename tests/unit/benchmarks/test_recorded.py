# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recorded results hold what their rows give, whichever benchmark wrote them."""

from __future__ import annotations

import json
import pathlib
import typing as t

import isolate_simulation
import pytest
import recompute
import recorded

RESULTS = sorted(recorded.RESULTS.glob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_figure_of_every_recorded_result_is_what_its_rows_give(path: pathlib.Path) -> None:
    assert recorded.differences(path.stem, json.loads(path.read_text())) == []


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_no_recorded_result_tells_of_the_machine_it_was_written_on(path: pathlib.Path) -> None:
    for word in ("/root/", "/home/", "/work/"):
        assert word not in path.read_text()


@pytest.fixture
def record(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, t.Any]:
    monkeypatch.setattr(recorded, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["isolate_simulation.py", "--fleets", "6"])
    small = {**isolate_simulation.SETTINGS, "scenes": {"main": isolate_simulation.SETTINGS["scenes"]["main"]}}
    rows = [isolate_simulation.simulate("main", seed) for seed in range(6)]
    path = recorded.write("isolate_simulation", "a test", small, rows, folder=tmp_path)
    return dict(json.loads(path.read_text()))


def test_a_written_record_has_its_keys_and_derives(record: dict[str, t.Any]) -> None:
    assert set(record) == set(recorded.KEYS)
    assert record["command"] == "python tests/benchmarks/isolate_simulation.py --fleets 6"
    assert record["figures"]["fleets"] == 6
    assert record["figures"]["detection_rate"] == 1.0
    assert record["figures"]["false_fleets_per_1000"] == 0.0
    assert record["figures"]["launches"] < 30 < record["figures"]["launches_of_the_full_circle"]
    assert recorded.differences("isolate_simulation", record) == []


def test_a_changed_figure_row_or_key_is_noticed(record: dict[str, t.Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert recompute.main([]) == 0
    wrong = json.loads(json.dumps(record))
    wrong["figures"]["launches"] += 0.5
    assert "launches is recorded as" in recorded.differences("isolate_simulation", wrong)[0]
    wrong = json.loads(json.dumps(record))
    wrong["rows"][0]["accused"] = ["n0000"]
    assert any("false_fleets_per_1000" in sentence for sentence in recorded.differences("isolate_simulation", wrong))
    wrong = {key: value for key, value in record.items() if key != "host"}
    assert recorded.differences("isolate_simulation", wrong) == ["isolate_simulation: the key host is missing"]
    wrong = json.loads(json.dumps(record))
    wrong["figures"]["invented"] = 1
    (recorded.RESULTS / "isolate_simulation.json").write_text(json.dumps(wrong))
    assert recompute.main(["isolate_simulation"]) == 1
    assert "invented is recorded and not derived" in capsys.readouterr().err


def test_a_result_without_a_benchmark_is_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "RESULTS", tmp_path)
    (tmp_path / "no_such_benchmark.json").write_text(json.dumps(dict.fromkeys(recorded.KEYS, {})))
    assert recompute.main([]) == 1


def test_a_fleet_is_the_same_whenever_it_is_simulated() -> None:
    assert isolate_simulation.simulate("racks_of_8", 5) == isolate_simulation.simulate("racks_of_8", 5)


@pytest.mark.parametrize(("slow", "launches"), [([], 1), ([0], 19), ([0, 1], 19), ([0, 256], 35)])
def test_bisection_is_counted_by_the_sets_it_must_run(slow: list[int], launches: int) -> None:
    assert isolate_simulation.bisection(512, slow) == launches


def test_recorded_fleets_are_judged_today_as_they_were() -> None:
    record = json.loads((recorded.HERE / "results" / "isolate_simulation.json").read_text())
    assert record["settings"] == isolate_simulation.SETTINGS
    first = {row["scene"]: row for row in reversed(record["rows"]) if row["slow"]}
    assert set(first) == set(isolate_simulation.SETTINGS["scenes"])
    for row in first.values():
        assert isolate_simulation.simulate(row["scene"], row["seed"]) == row
