# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Latency from repeats, where nothing better is known."""

from __future__ import annotations

import copy
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.repeat_latency import add_repeat_latency


def run(time_us: float, latency: dict[str, float] | None = None, **more: t.Any) -> dict[str, t.Any]:
    half: dict[str, t.Any] = {
        "time_us": time_us,
        "algbw_gbs": 1.0,
        "busbw_gbs": 1.0,
        "wrong": 0,
        **({"latency": latency} if latency else {}),
    }
    row = {
        "size_bytes": 8,
        "dtype": "float",
        "redop": "sum",
        "root": -1,
        "out_of_place": half,
        "in_place": copy.deepcopy(half),
    }
    same = {
        "collective": "all_reduce",
        "stage": "cluster",
        "rail": "",
        "transport": {"claimed": "IB"},
        "nodes": ["n1", "n2"],
    }
    return {**same, "rows": [row], **more}


def test_repeats_of_one_run_make_a_spread() -> None:
    runs = [run(time) for time in (30.0, 10.0, 20.0)]
    add_repeat_latency(runs)
    told = {"min_us": 10.0, "p50_us": 20.0, "p99_us": 30.0, "max_us": 30.0, "repeats": 3}
    assert [r["rows"][0][half]["latency"] for r in runs for half in ("out_of_place", "in_place")] == [told] * 6


def test_single_iterations_say_more_and_other_runs_are_no_repeats() -> None:
    known = {"min_us": 9.0}
    runs = [
        run(10.0, known),
        run(20.0, known),
        run(30.0, rail="mlx5_0"),
        run(40.0, rail="mlx5_1"),
        run(50.0, nodes=["n1", "n3"]),
    ]
    add_repeat_latency(runs)
    assert [r["rows"][0]["out_of_place"].get("latency") for r in runs] == [known, known, None, None, None]


def test_a_size_that_was_not_reached_every_time() -> None:
    runs = [run(10.0), run(20.0), run(0.0, rows=[])]
    runs[1]["rows"][0]["out_of_place"]["time_us"] = None
    add_repeat_latency(runs)
    assert "latency" not in runs[0]["rows"][0]["out_of_place"]
    assert runs[0]["rows"][0]["in_place"]["latency"]["repeats"] == 2
