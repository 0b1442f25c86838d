# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import workload, workload_cost
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.model_parameters import Lora
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload_state import Message, Strategy
from hypothesis import given
from hypothesis import strategies as st
from test_model_parameters import LLAMA_3_8B

R8 = Lora(rank=8)


def run(collective: str, latency_us: float, gbs: float, ranks: int = 8, largest: int = 32) -> dict[str, t.Any]:
    """A measured run: a fixed latency and a bandwidth in GB/s, sizes 1 KiB to 2**largest."""
    rows = [
        {
            "size_bytes": 1 << k,
            "out_of_place": {"time_us": latency_us + (1 << k) / gbs / 1e3},
            "in_place": {"time_us": None},
        }
        for k in range(10, largest + 1)
    ]
    return {"collective": collective, "ranks": ranks, "rows": rows}


def fabric(latency_us: float = 20.0, gbs: float = 40.0, ranks: int = 8) -> dict[tuple[str, int], workload_cost.Curve]:
    names = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
    return workload_cost.curves_of([run(name, latency_us, gbs, ranks) for name in names])


def test_a_measured_size_costs_what_was_measured_and_the_ends_go_on_as_latency_and_bandwidth() -> None:
    curve = workload_cost.Curve({1024: 20.0, 4096: 20.0, 1 << 20: 100.0})
    assert curve.time_us(4096) == pytest.approx(20.0)
    assert curve.time_us(1 << 20) == pytest.approx(100.0)
    assert curve.time_us(1) == 20.0
    assert curve.time_us(1 << 22) == pytest.approx(400.0)
    assert 20.0 < curve.time_us(1 << 16) < 100.0


@given(st.integers(min_value=1, max_value=1 << 36))
def test_prices_between_points_follow_the_fabric(size: int) -> None:
    curve = fabric()["all_reduce", 8]
    true = 20.0 + size / 40.0 / 1e3
    assert curve.time_us(size) == pytest.approx(true, rel=0.03)
    assert curve.bandwidth_us(size) <= curve.time_us(size)


@given(st.integers(1, 1 << 34), st.integers(1, 1 << 34))
def test_a_longer_message_is_never_cheaper(one: int, two: int) -> None:
    curve = fabric()["all_reduce", 8]
    assert curve.time_us(min(one, two)) <= curve.time_us(max(one, two)) * (1 + 1e-12)


def test_the_better_half_and_the_fastest_run_count_and_broken_rows_do_not() -> None:
    rows = [
        {"size_bytes": 8, "out_of_place": {"time_us": 9.0}, "in_place": {"time_us": 7.0}},
        {"size_bytes": 16, "out_of_place": {"time_us": float("nan")}, "in_place": None},
        {"size_bytes": 0, "out_of_place": {"time_us": 1.0}, "in_place": None},
    ]
    again = [{"size_bytes": 8, "out_of_place": {"time_us": 8.0}, "in_place": {"time_us": 6.5}}]
    runs = [{"collective": "all_reduce", "ranks": 2, "rows": one} for one in (rows, again)]
    curve = workload_cost.curves_of(runs)["all_reduce", 2]
    assert (curve.sizes, curve.times) == ([8], [6.5])


def test_latency_rules_small_adapters_and_bandwidth_rules_gathered_weights() -> None:
    small = workload.step_messages(LLAMA_3_8B, Strategy("ddp", ranks=8, bucket_mb=0.1), R8)
    assert workload_cost.price(small, fabric())["rules"] == "latency"
    large = workload.step_messages(LLAMA_3_8B, Strategy("fsdp2", ranks=8), R8)
    priced = workload_cost.price(large, fabric())
    assert priced["rules"] == "bandwidth"
    volume = sum(message.size for message in large)
    assert priced["seconds"] == pytest.approx(volume / 40e9 + len(large) * 20e-6, rel=0.01)
    assert sum(entry["share"] for entry in priced["entries"]) == pytest.approx(1.0)
    assert priced["entries"][0]["collective"] == "all_gather"
    assert priced["missing"] == []


def test_what_was_not_measured_is_said_and_not_guessed() -> None:
    sent = workload.step_messages(LLAMA_3_8B, Strategy("fsdp2", ranks=8), R8)
    only = workload_cost.curves_of([run("all_gather", 20, 40, largest=24)])
    priced = workload_cost.price(sent, only)
    assert priced["missing"] == [{"collective": "reduce_scatter", "ranks": 8}]
    assert not any(entry["measured"] for entry in priced["entries"]), "beyond 16 MiB it is extrapolated"
    assert workload_cost.price(sent, fabric(ranks=4))["seconds"] == 0.0
    assert workload_cost.price([], fabric()) == {
        "seconds": 0.0,
        "bandwidth_share": 0.0,
        "rules": "latency",
        "entries": [],
        "missing": [],
    }


def test_tuning_is_priced_before_and_after() -> None:
    sent = workload.step_messages(LLAMA_3_8B, Strategy("fsdp2", ranks=8), R8)
    both = workload_cost.compare(sent, fabric(gbs=20.0), fabric(gbs=40.0))
    assert both["saved"] == pytest.approx(0.5, abs=0.01)
    assert both["before"]["seconds"] > both["after"]["seconds"]
    partly = workload_cost.compare(sent, fabric(gbs=20.0), workload_cost.curves_of([run("all_gather", 20, 40)]))
    assert partly["saved"] == pytest.approx(0.5, abs=0.01)
    assert partly["after"]["missing"]


def test_the_size_plan_covers_what_matters_and_leaves_out_the_rest() -> None:
    sent = [Message("all_gather", 400_000_000, 8, False, "forward")] * 60
    sent += [Message("all_reduce", 4, 8, False, "step")]
    (plan,) = workload_cost.size_plan(sent, fabric())
    assert plan["collective"] == "all_gather"
    assert (plan["min_bytes"], plan["max_bytes"]) == (1 << 28, 1 << 29)
    assert plan["share"] > 0.99
    blind = {entry["collective"]: entry for entry in workload_cost.size_plan(sent * 3)}
    assert blind["all_gather"]["max_bytes"] == 1 << 29
    few = [Message("all_reduce", size, 2, False, "backward") for size in (4, 100, 5000)]
    (plan,) = workload_cost.size_plan(few)
    assert (plan["min_bytes"], plan["max_bytes"]) == (8, 8192)
    assert workload_cost.size_plan([]) == []


def test_every_planned_range_holds_its_messages() -> None:
    sent = workload.step_messages(LLAMA_3_8B, Strategy("zero3", ranks=8), R8)
    ranges = {(p["collective"], p["ranks"]): (p["min_bytes"], p["max_bytes"]) for p in workload_cost.size_plan(sent)}
    bounds = [(m, ranges.get((m.collective, m.ranks), (1, 0))) for m in sent]
    covered = sum(m.size for m, (low, high) in bounds if low <= m.size <= high)
    assert covered > 0.98 * sum(m.size for m in sent)
