# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""report.md: the run for a ticket, a chat or a pull request."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.points import on, points_of
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.run_groups import Bounds, bounds, groups_of
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.training import (
    DEAREST_COLUMNS,
    TRAINING_COLUMNS,
    dearest_rows,
    training_rows,
)


def render_markdown(record: t.Mapping[str, t.Any]) -> str:
    """Verdict, findings, benchmark rows and nodes of a run record as Markdown."""
    parts = [f"# {record['verdict']['text']}", *(f"> {note}" for note in record["notes"])]
    parts.append(
        f"Run {record['run_id']}, {len(record['inventory'])} nodes, gpufabric.cluster {record['collection_version']}."
    )
    if record["findings"]:
        parts.append("## Findings")
        parts.append(
            table(
                ["severity", "node", "subject", "seen", "expected", "why", "what to type"],
                map(_finding_row, record["findings"]),
            )
        )
    for group in groups_of(record):
        if group.many:
            parts.append(f"## {group.collective}, {group.name}: {len(group.runs)} runs, busbw (GB/s)")
            parts.append(
                table(["size (bytes)", "slowest", "", "median", "fastest", ""], map(_bounds_row, bounds(group)))
            )
            continue
        for run in group.runs:
            nodes = f" on {run['nodes'][0]}" if len(run["nodes"]) == 1 else ""
            parts.append(f"## {run['collective']}, {group.name}{nodes}, {run['backend']}, {run['ranks']} ranks")
            header = ["size (bytes)", "time (µs)", "algbw (GB/s)", "busbw (GB/s)", "#wrong"]
            parts.append(table(header, (_measured_row(row) for row in run["rows"])))
    trained = training_rows(record)
    if trained:
        parts += ["## Communication of a training", table(TRAINING_COLUMNS, trained)]
        parts += ["The messages that matter:", table(DEAREST_COLUMNS, dearest_rows(record))]
    points = points_of(record)
    missed = [point for point in points.shown if point["status"] != "pass"]
    if points.counts:
        said = ", ".join(f"{number} {status}" for status, number in points.counts.items())
        parts.append(f"## Verdict by collective and size: {said}")
    if missed:
        parts.append(table(["stage", "collective", "on", "size (bytes)", "verdict", "why"], map(_point_row, missed)))
    return "\n\n".join(parts) + "\n"


def _finding_row(finding: t.Mapping[str, str]) -> list[str]:
    command = f"`{finding['fix']}`" if finding["fix"] else ""
    return [finding[k] for k in ("severity", "node", "subject", "evidence", "expected", "cause")] + [command]


def _bounds_row(size: Bounds) -> list[str]:
    return [
        str(cell)
        for cell in (size.size_bytes, size.slowest_gbs, size.slowest, size.median_gbs, size.fastest_gbs, size.fastest)
    ]


def _point_row(point: t.Mapping[str, t.Any]) -> list[str]:
    return [point["stage"], point["collective"], on(point), str(point["size_bytes"]), point["status"], point["why"]]


def _measured_row(row: t.Mapping[str, t.Any]) -> list[str]:
    half = row["out_of_place"]
    return [str(row["size_bytes"]), *(str(half[key]) for key in ("time_us", "algbw_gbs", "busbw_gbs", "wrong"))]


def table(header: t.Sequence[str], rows: t.Iterable[t.Sequence[str]]) -> str:
    """A Markdown table; a cell may hold anything."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )
