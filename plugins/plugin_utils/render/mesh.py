# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The mesh as tables for the report: a path each, a row for who probed, a column for who was probed."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.mesh_cells import Path, Thresholds, read_paths

#: with more nodes than that only rows with something wrong are shown, and as many at most
MOST_ROWS = 64

#: test that failed: (word in the cell, what it means)
WORDS = {
    "reach": ("none", "no answer to ping or TCP"),
    "mtu": ("MTU", "packets of full length do not pass"),
    "tcp": ("TCP", "no TCP connection to a random high port"),
    "rdma": ("RDMA", "RDMA gets no answer"),
    "loss": ("loss", "packets are lost"),
    "latency": ("late", "the round trip is long"),
    "bandwidth": ("slow", "bandwidth is low"),
}

NUMBERS = (
    ("rtt_ms", "{:.3g} ms"),
    ("loss_percent", "{:.1f} % lost"),
    ("write_gbs", "RDMA {:.3g} GB/s"),
    ("stream_gbs", "TCP {:.3g} GB/s"),
)


class Cell(t.NamedTuple):
    """text: one word; state: a CSS class of the report (ok, error, warning, "" for not tested); title: the numbers."""

    text: str
    state: str
    title: str


class Matrix(t.NamedTuple):
    """path: its name; columns: nodes; rows: {node: cells in the columns' order}; left_out: rows that are not shown."""

    path: str
    columns: list[str]
    rows: dict[str, list[Cell]]
    left_out: int


def mesh_matrices(record: t.Mapping[str, t.Any]) -> list[Matrix]:
    """One matrix a path that was tested, from a run record; none where no mesh was measured."""
    meshes = {
        node: parts["mesh"]["mesh"]
        for node, parts in record["nodes"].items()
        if parts.get("mesh", {}).get("mesh", {}).get("peers")
    }
    if not meshes:
        return []
    values = [group["values"] for group in record["settings"].get("mesh", [])]
    paths = read_paths(meshes, Thresholds.of(values[0] if values else {}))
    return [_matrix(path, list(meshes)) for path in paths.values()]


def _matrix(path: Path, nodes: t.Sequence[str]) -> Matrix:
    rows = {node: [_cell(path, node, peer) for peer in nodes] for node in nodes}
    if len(nodes) <= MOST_ROWS:
        return Matrix(path.name, list(nodes), rows, 0)
    bad = {node for node, cells in rows.items() if any(cell.state == "error" for cell in cells)}
    bad |= {peer for cells in rows.values() for peer, cell in zip(nodes, cells, strict=True) if cell.state == "error"}
    shown = [node for node in nodes if node in bad][:MOST_ROWS]
    return Matrix(
        path.name, shown, {node: [_cell(path, node, peer) for peer in shown] for node in shown}, len(nodes) - len(shown)
    )


def _cell(path: Path, node: str, peer: str) -> Cell:
    at = (node, peer)
    if node == peer:
        return Cell("", "", "")
    if at in path.down:
        return Cell("down", "warning", "the link of one end is down")
    failed = path.first_failed(at)
    numbers = [form.format(path.numbers[key][at]) for key, form in NUMBERS if at in path.numbers[key]]
    if failed:
        word, meaning = WORDS[failed]
        return Cell(word, "error", "; ".join(filter(None, [meaning, path.said.get(at, ""), *numbers])))
    if any(at in cells for cells in path.tests.values()):
        return Cell("ok", "ok", "; ".join(numbers))
    return Cell("·", "", "not tested")
