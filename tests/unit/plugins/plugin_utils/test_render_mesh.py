# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mesh in the report."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.html import render_html
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.mesh import mesh_matrices
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_mesh import FakeMesh
from ansible_collections.gpufabric.cluster.tests.unit.plugins.plugin_utils.example_record import example_record


def record_of(mesh: FakeMesh) -> dict[str, t.Any]:
    return example_record(
        inventory=mesh.names,
        nodes={node: {"mesh": result} for node, result in mesh.results().items()},
        settings={"mesh": [{"nodes": mesh.names, "values": {"diagnose_slow_ratio": 0.5}}]},
    )


def test_the_words_name_the_lowest_test_that_fails() -> None:
    mesh = FakeMesh(["n1", "n2", "n3"]).add("mlx5_0", "n2", mtu=1500).add("mlx5_1", "n3", rate_gbs=1.0)
    control, first, second = mesh_matrices(record_of(mesh))
    assert [[cell.text for cell in row] for row in first.rows.values()] == [
        ["", "MTU", "ok"],
        ["MTU", "", "MTU"],
        ["ok", "MTU", ""],
    ]
    assert [cell.text for cell in second.rows["n1"]] == ["", "ok", "slow"]
    assert "GB/s" in second.rows["n1"][2].title
    assert {cell.text for row in control.rows.values() for cell in row} == {"", "ok"}


def test_no_mesh_no_table() -> None:
    assert mesh_matrices(example_record()) == []
    assert "<h2>Mesh</h2>" not in render_html(example_record())


def test_a_large_fleet_shows_who_is_in_trouble() -> None:
    names = [f"n{number}" for number in range(100)]
    mesh = FakeMesh(names, rails=["mlx5_0"], partners={n: [names[i - 1], names[i - 2]] for i, n in enumerate(names)})
    matrix = mesh_matrices(record_of(mesh.add("mlx5_0", "n50", dead=True)))[1]
    assert matrix.columns == ["n48", "n49", "n50", "n51", "n52"] and matrix.left_out == 95


def test_the_report_holds_it() -> None:
    text = render_html(record_of(FakeMesh(["<n1>", "n2"]).add("mlx5_0", "n2", no_rdma=True)))
    assert "<h2>Mesh</h2>" in text and "<th>&lt;n1&gt;</th>" in text and ">RDMA</td>" in text
