# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scale benchmark's figures are what its rows give, and its replayed nodes differ in all that must differ."""

from __future__ import annotations

import itertools
import typing as t

import pytest
import scale
from ansible_collections.gpufabric.cluster.tests.fixtures import simulated_nodes

SETTINGS = {"first_answer_s": 180.0, "tool_s": 20.0}


def row(nodes: int, cpu_s: float, **more: t.Any) -> dict[str, t.Any]:
    return {
        "nodes": nodes,
        "ill": {},
        "cpu_s": cpu_s,
        "node_cpu_s": 1.0,
        "node_calls": 6 * nodes,
        "wall_s": cpu_s,
        "controller_memory_mib": 64 + nodes / 8,
        "record_bytes": 10240 * nodes,
        "report_bytes": 2048 * nodes,
        "errors": [],
        "named": [],
        **more,
    }


@pytest.mark.parametrize("exponent", [1.0, 1.5, 2.0])
def test_the_slope_is_the_exponent(exponent: float) -> None:
    rows = [row(n, 1.0 + 0.3 * n**exponent) for n in (8, 32, 128, 512)]
    figures = scale.figures({"rows": rows, "settings": SETTINGS})
    assert figures["slope"]["controller_cpu"] == pytest.approx(exponent, abs=0.01)
    assert figures["slope"]["record_bytes"] == pytest.approx(1.0)
    assert figures["slope"]["controller_memory"] < 1.0
    assert figures["calls_a_node"] == {"8": 6.0, "32": 6.0, "128": 6.0, "512": 6.0}


def test_ill_nodes_that_are_named_and_one_that_is_not() -> None:
    ill = {"sim0051": "dead", "sim0205": "garbage", "sim0307": "hanging"}
    named = [["sim0051", "node_unreachable"], ["sim0205", "node_unusable"], ["sim0307", "node_unusable"]]
    rows = [row(8, 4.0), row(64, 20.0), row(512, 100.0)]
    rows.append(row(512, 250.0, ill=ill, named=named, errors=[*named, ["sim0001", "sysctl_differs"]]))
    figures = scale.figures({"rows": rows, "settings": SETTINGS})
    assert figures["ill_named"] == {"dead": True, "garbage": True, "hanging": False}
    assert (figures["held_up_s"], figures["allowed_s"], figures["others_with_errors"]) == (150.0, 200.0, 1)


@pytest.mark.parametrize(("line", "seconds"), [("0m0.120000s 0m0.060000s", 0.18), ("1m2.5s 0m0.5s", 63.0), ("", 0.0)])
def test_the_shells_times(line: str, seconds: float) -> None:
    assert scale._seconds(line) == pytest.approx(seconds)


def test_no_two_nodes_share_what_tells_them_apart() -> None:
    identities = [simulated_nodes.identity_of(number, 2) for number in (1, 2, 11, 250, 251, 512)]
    for one, two in itertools.combinations(identities, 2):
        assert len(one) == len(two) and not set(one) & set(two)
