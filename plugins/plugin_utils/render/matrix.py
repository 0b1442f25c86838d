# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which check of which node came out how, and what of it is worth a place on a screen."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.sections import BENCHMARK, SECTIONS

Record = t.Mapping[str, t.Any]

NOT_OBSERVED = "not observed"
#: what stands in a cell, as short as it can be read
SHORT = {"error": "error", "warning": "warn", "ok": "ok", NOT_OBSERVED: ""}
WORST_FIRST = ("error", "warning")


class Cell(t.NamedTuple):
    """state: error, warning, ok or "not observed"; finding: number of the worst one in the record, None where there is none."""

    state: str
    finding: int | None = None

    @property
    def short(self) -> str:
        return SHORT[self.state]


def node_matrix(record: Record) -> dict[str, dict[str, Cell]]:
    """{node: {part: cell}}: a finding counts for the part whose judge made it."""
    measured = {node for run in record["benchmark"].get("runs", []) for node in run["nodes"]}
    matrix = {}
    for node in record["inventory"]:
        seen = {*record["nodes"].get(node, {}), *([BENCHMARK.name] if node in measured else [])}
        matrix[node] = {s.name: Cell("ok" if s.name in seen else NOT_OBSERVED) for s in (*SECTIONS, BENCHMARK)}
    for number, finding in enumerate(record["findings"]):
        cells, part = matrix.get(finding["node"], {}), finding["part"]
        if part in cells and finding["severity"] != "notice" and cells[part].state != "error":
            worse = cells[part].finding is None or finding["severity"] == "error"
            cells[part] = Cell(finding["severity"], number) if worse else cells[part]
    return matrix


class Row(t.NamedTuple):
    """One node: system and kernel as it says them, GPUs by number, and a cell for each shown part."""

    node: str
    system: str
    gpus: int
    cells: list[Cell]


@dataclasses.dataclass(frozen=True)
class Matrix:
    """parts: that this run looked at; left_out: those that it did not; rows: of nodes, those with errors first.

    same: what all nodes have in common (system, GPUs), "" where they differ and each row says its own.
    """

    parts: list[str]
    left_out: list[str]
    rows: list[Row]
    same: str


def matrix_of(record: Record) -> Matrix:
    """The matrix of a page: without columns that are empty on every node, worst nodes first, in the inventory's order else."""
    cells = node_matrix(record)
    names = [part.name for part in (*SECTIONS, BENCHMARK)]
    parts = [name for name in names if any(row[name].state != NOT_OBSERVED for row in cells.values())]
    rows = [_row(record, node, [checks[part] for part in parts]) for node, checks in cells.items()]
    rows.sort(key=lambda row: min(map(_rank, row.cells), default=len(WORST_FIRST)))
    alike = {(row.system, row.gpus) for row in rows}
    system, gpus = next(iter(alike)) if len(alike) == 1 else ("", 0)
    same = f"{'All nodes' if len(rows) > 1 else 'The node'}: {system}, {gpus} GPU{'s' * (gpus != 1)}." if system else ""
    return Matrix(parts, [name for name in names if name not in parts], rows, same)


def _rank(cell: Cell) -> int:
    return WORST_FIRST.index(cell.state) if cell.state in WORST_FIRST else len(WORST_FIRST)


def _row(record: Record, node: str, cells: list[Cell]) -> Row:
    seen = record["nodes"].get(node, {}).get("node", {}).get("observed", {})
    distribution = " ".join(str(seen[key]) for key in ("distribution", "distribution_version") if seen.get(key))
    system = ", ".join(filter(None, [distribution, str(seen.get("kernel") or "")]))
    return Row(node, system, len(seen.get("gpus", [])), cells)
