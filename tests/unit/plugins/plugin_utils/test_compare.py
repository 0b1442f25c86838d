# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two runs side by side: what changed, what is noise, and what cannot be compared."""

from __future__ import annotations

import copy
import json
import pathlib
import random
import sys
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_runs import compare_runs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_settings import settings_changes
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.compare import (
    comparison_files,
    comparison_lines,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.run_reader import (
    RunUnreadable,
    find_run,
    read_run,
    read_whole_run,
)

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from example_record import HOSTILE, example_record  # noqa: E402

SIZES = [1 << power for power in range(10, 31, 2)]


def row(size: int, busbw: float, cv_pct: float | None = None) -> dict[str, t.Any]:
    half: dict[str, t.Any] = {"time_us": 30.0 + size / busbw / 1e3, "algbw_gbs": busbw, "busbw_gbs": busbw, "wrong": 0}
    if cv_pct is not None:
        half["latency"] = {"cv_pct": cv_pct}
    return {
        "size_bytes": size,
        "count": size // 4,
        "dtype": "float",
        "redop": "sum",
        "root": -1,
        "out_of_place": half,
        "in_place": None,
    }


def run(busbw: float = 40.0, **changes: t.Any) -> dict[str, t.Any]:
    made = copy.deepcopy(example_record()["benchmark"]["runs"][0])
    made.update(
        backend="nccl", rail="", environment={}, nccl_version="2.28.9", transport={"claimed": "IB", "proven": "IB"}
    )
    made["rows"] = [row(size, busbw) for size in SIZES]
    return {**made, **changes}


def record(run_id: str, *runs: dict[str, t.Any], **changes: t.Any) -> dict[str, t.Any]:
    whole = example_record(run_id=run_id, schema_version=2, benchmark={"runs": list(runs)}, verdicts=[], findings=[])
    return {**whole, **changes}


OLD, NEW = "20260101T000000Z-0001", "20260102T000000Z-0002"


def told(before: t.Sequence[dict[str, t.Any]], after: t.Sequence[dict[str, t.Any]]) -> dict[str, t.Any]:
    return compare_runs(record(OLD, *before), record(NEW, *after))


# ---- speed


@pytest.mark.parametrize(
    ("factor", "status"), [(1.0, "same"), (1.07, "same"), (0.93, "same"), (0.8, "worse"), (1.3, "better")]
)
def test_a_difference_counts_where_it_is_outside_the_noise(factor: float, status: str) -> None:
    result = told([run()], [run(40.0 * factor)])
    assert result["verdict"]["status"] == status
    assert result["speed"][0]["median_ratio"] == pytest.approx(factor)
    assert [p["size_bytes"] for p in result["speed"][0]["points"]] == SIZES


def test_iterations_that_differ_widen_the_noise() -> None:
    calm, wild = (run(rows=[row(1 << 30, 40.0, cv)]) for cv in (1.0, 30.0))
    slower = run(rows=[row(1 << 30, 32.0, 1.0)])
    assert told([calm], [slower])["verdict"]["status"] == "worse"
    result = told([wild], [slower])
    assert result["verdict"]["status"] == "same" and "iterations differed" in result["speed"][0]["points"][0]["why"]


def test_repeats_tell_a_small_difference_and_one_measurement_does_not() -> None:
    shake = random.Random(7)

    def repeats(busbw: float) -> list[dict[str, t.Any]]:
        return [run(busbw * shake.uniform(0.995, 1.005)) for _ in range(5)]

    assert told([run(40.0)], [run(37.5)])["verdict"]["status"] == "same"
    assert told(repeats(40.0), repeats(37.5))["verdict"]["status"] == "worse"
    assert told(repeats(40.0), repeats(40.0))["verdict"]["status"] == "same"
    assert told(repeats(40.0), repeats(39.5))["verdict"]["status"] == "same", "1 % is not worth a word"


def test_sizes_that_are_mostly_latency_may_differ_more() -> None:
    def rising(share: float) -> dict[str, t.Any]:
        return run(rows=[row(size, 40.0 * (share * 0.01 if size <= 4096 else 1.0)) for size in SIZES])

    points = told([rising(1.0)], [rising(0.84)])["speed"][0]["points"]
    assert {p["status"] for p in points} == {"noise"} and points[0]["latency"] and not points[-1]["latency"]
    assert told([rising(1.0)], [rising(0.7)])["verdict"]["status"] == "worse"


def test_every_measurement_is_held_against_its_own_kind() -> None:
    ring = run()
    alone = [
        run(300.0, stage="node", nodes=[node], transport={"claimed": "P2P", "proven": "P2P"}) for node in ("n1", "n2")
    ]
    slow = {**alone[1], "rows": [row(size, 200.0) for size in SIZES]}
    result = told([ring, *alone], [ring, alone[0], slow])
    assert [(s["node"], s["status"]) for s in result["speed"]] == [("", "noise"), ("n1", "noise"), ("n2", "worse")]
    assert "n2" in result["verdict"]["text"]


def test_another_transport_is_told_and_still_compared() -> None:
    result = told([run(4.0, transport={"claimed": "Socket", "proven": "Socket"})], [run(40.0)])
    (series,) = result["speed"]
    assert (series["before"]["transport"], series["after"]["transport"], series["status"]) == ("Socket", "IB", "better")
    two = [run(4.0, transport={"claimed": name, "proven": name}) for name in ("Socket", "gIB")]
    assert [s["status"] for s in told(two, [run()])["speed"]] == ["only before", "only before", "only after"]


def test_a_run_that_fails_now_is_worse_with_whatever_was_measured() -> None:
    result = told([run()], [run(failure="timeout", rows=[row(SIZES[0], 40.0)])])
    assert result["verdict"]["status"] == "worse" and "failed (timeout)" in result["verdict"]["text"]
    assert [p["status"] for p in result["speed"][0]["points"]] == ["noise"] + ["only before"] * (len(SIZES) - 1)


def test_nothing_in_common_is_one_sentence() -> None:
    result = told([run()], [run(collective="alltoall")])
    assert result["verdict"]["status"] == "incomparable"
    assert result["verdict"]["text"].startswith(
        "NOT COMPARABLE: the run before measured all_reduce (nccl, cluster, IB), the run after"
    )


def test_runs_without_a_benchmark_are_compared_by_the_rest() -> None:
    result = told([], [])
    assert result["verdict"]["status"] == "same" and "neither run measured" in result["verdict"]["text"]


# ---- settings and findings


def observed(
    kernel: str = "6.1", rmem: str = "134217728", hca: str = "mlx5_0", mtu: int = 4096, nccl: str = "22"
) -> dict[str, t.Any]:
    port = {
        "port": 1,
        "state": "ACTIVE",
        "rate_gbps": 400.0,
        "active_mtu": mtu,
        "link_layer": "InfiniBand",
        "netdev": "ib0",
    }
    return {
        "node": {"observed": {"kernel": kernel, "distribution": "debian", "distribution_version": "12", "gpus": []}},
        "kernel": {"keys": [{"key": "net.ipv4.tcp_rmem", "value": f"4096\t87380\t{rmem}", "effective": None}]},
        "rdma": {"observed": {"hcas": [{"name": hca, "fw_ver": "28.39", "driver": "mlx5_core", "ports": [port]}]}},
        "nccl_env": {
            "observed": {"library": {"version": "2.28.9"}, "ways": {
                "login": {"effective": {"NCCL_IB_TIMEOUT": {"value": "1"}}},
                "mpirun": {"effective": {"NCCL_IB_TIMEOUT": {"value": nccl}}},
            }},
        },
    }  # fmt: skip


def changed(before: dict[str, t.Any], after: dict[str, t.Any], **more: t.Any) -> list[tuple[t.Any, ...]]:
    changes = settings_changes(record(OLD, nodes=before), record(NEW, nodes=after, **more))
    return [(c["kind"], c["name"], c["before"], c["after"], c["nodes"]) for c in changes]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"kernel": "6.8"}, [("version", "kernel", "6.1", "6.8", ["n2"])]),
        ({"rmem": "6291456"}, [("sysctl", "net.ipv4.tcp_rmem", "4096 87380 134217728", "4096 87380 6291456", ["n2"])]),
        ({"mtu": 1024}, [("HCA", "mlx5_0 port 1 MTU", "4096", "1024", ["n2"])]),
        ({"nccl": "18"}, [("NCCL environment", "NCCL_IB_TIMEOUT", "22", "18", ["n2"])]),
    ],
)
def test_a_setting_that_changed_is_named_with_its_nodes(change: dict[str, t.Any], expected: list[t.Any]) -> None:
    assert changed({"n1": observed(), "n2": observed()}, {"n1": observed(), "n2": observed(**change)}) == expected


def test_the_same_change_on_all_nodes_is_told_once() -> None:
    nodes = [f"n{i}" for i in range(40)]
    result = changed({n: observed() for n in nodes}, {n: observed(kernel="6.8") for n in nodes})
    assert result == [("version", "kernel", "6.1", "6.8", nodes)]


def test_an_hca_that_is_gone_is_told_and_a_part_that_did_not_run_is_no_change() -> None:
    assert ("HCA", "mlx5_0", "there", None, ["n1"]) in changed({"n1": observed()}, {"n1": observed(hca="mlx5_1")})
    without = {key: part for key, part in observed().items() if key != "rdma"}
    assert changed({"n1": observed()}, {"n1": without}) == []
    assert changed({"n1": observed(), "n2": observed()}, {"n1": observed()}) == [], (
        "a node that is gone has no settings"
    )


def test_role_variables_and_versions_count_and_places_do_not() -> None:
    settings = {"rdma": [{"nodes": ["n1", "n2"], "values": {"rdma_expected_hcas": 8, "gpufabric_root": "/elsewhere"}}]}
    assert changed({}, {}, settings=settings, collection_version="0.2.0") == [
        ("version", "gpufabric.cluster", "0.1.0", "0.2.0", []),
        ("role variable", "rdma_expected_hcas", "2", "8", ["n1", "n2"]),
    ]


def test_findings_that_came_and_went() -> None:
    finding = example_record()["findings"][0]
    rose = {**finding, "evidence": "other words"}
    same = compare_runs(record(OLD, findings=[finding]), record(NEW, findings=[rose]))
    assert (same["findings"], same["verdict"]["status"]) == ({"came": [], "went": [], "stayed": 1}, "same")
    worse = compare_runs(record(OLD), record(NEW, findings=[finding]))
    assert worse["verdict"]["status"] == "worse" and "n2 mlx5_1 port 1" in worse["verdict"]["text"]
    better = compare_runs(record(OLD, findings=[finding]), record(NEW))
    assert better["verdict"]["status"] == "better"
    mixed = compare_runs(record(OLD, run(), findings=[finding]), record(NEW, run(20.0)))
    assert mixed["verdict"]["status"] == "mixed"


# ---- what it is told in


def test_files_hold_every_point_escaped_and_overlay_both_runs() -> None:
    finding = example_record()["findings"][0]
    result = compare_runs(record(OLD, run()), record(NEW, run(20.0), findings=[finding]))
    files = comparison_files(result)
    assert json.loads(files["compare.json"]) == json.loads(json.dumps(result))
    page = files["compare.html"]
    assert HOSTILE not in page and "&lt;script&gt;" in page
    assert 'id="overlay-0"' in page and '"name":"before"' in page and '"name":"after"' in page
    for size in SIZES:
        assert f'<td class="n">{size}</td><td class="n">40</td><td class="n">20</td><td class="n">0.5</td>' in page
        assert f"| {size} | 40 | 20 | 0.5 | worse |" in files["compare.md"]
    lines = comparison_lines(result, "/r/compare.html")
    assert lines[0].startswith("WORSE: 1 of the measurements slower") and lines[-1] == "report: /r/compare.html"


# ---- reading


def written(directory: pathlib.Path, whole: dict[str, t.Any]) -> pathlib.Path:
    path = directory / str(whole["run_id"]) / "run.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(whole))
    return path


def test_a_run_is_found_by_many_names(tmp_path: pathlib.Path) -> None:
    old, new = written(tmp_path, record(OLD)), written(tmp_path, record(NEW))
    (tmp_path / "latest").symlink_to(NEW)
    for name in (str(new), str(new.parent), NEW, "20260102", "latest"):
        assert find_run(name, tmp_path).resolve() == new
    assert find_run("previous", tmp_path, find_run("latest", tmp_path)) == old


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "is neither a file nor a run of .*the last ones there: 20260101T000000Z-0001"),
        ("{", "is not JSON"),
        ("[]", "is not a run of this collection"),
        ('{"run_id": "x", "findings": [], "schema_version": 99}', "has schema_version 99; 1 to 2 can be read here"),
        ('{"run_id": "x", "findings": []}', "has schema_version None"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: pathlib.Path, content: str | None, sentence: str) -> None:
    written(tmp_path, record(OLD))
    path = tmp_path / "given.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RunUnreadable, match=sentence) as error:
        read_run(find_run(str(path), tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("missing", ["inventory", "benchmark", "nodes"])
def test_a_run_that_was_cut_down_is_no_whole_one(tmp_path: pathlib.Path, missing: str) -> None:
    cut = record(NEW, run())
    assert read_whole_run(written(tmp_path / "whole", cut))["run_id"] == NEW
    del cut[missing]
    with pytest.raises(RunUnreadable, match=f"run.json is no whole run: .*'{missing}' is a required property"):
        read_whole_run(written(tmp_path / "cut", cut))


def test_a_name_that_fits_two_runs_and_no_run_before_the_first(tmp_path: pathlib.Path) -> None:
    first = written(tmp_path, record(OLD))
    written(tmp_path, record(NEW))
    with pytest.raises(RunUnreadable, match="stands for 2 runs"):
        find_run("2026", tmp_path)
    with pytest.raises(RunUnreadable, match="holds no run before 20260101T000000Z-0001"):
        find_run("previous", tmp_path, first)


def test_version_1_is_read_with_the_nodes_of_each_verdict(tmp_path: pathlib.Path) -> None:
    whole = example_record()
    assert whole["schema_version"] == 1
    whole["verdicts"] = [{**whole["verdicts"][0], "size_bytes": size} for size in (1 << 10, 1 << 20)]
    read = read_whole_run(written(tmp_path, whole))
    assert (read["schema_version"], [v["nodes"] for v in read["verdicts"]]) == (2, [["n1", "n2"]] * 2)
    assert compare_runs(read, record(NEW, run()))["verdict"]["status"] in ("incomparable", "better")
