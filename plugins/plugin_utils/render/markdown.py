# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""report.md: the run for a ticket, a chat or a pull request."""

from __future__ import annotations

import typing as t


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
    for run in record["benchmark"].get("runs", []):
        parts.append(f"## {run['collective']}, {run['stage']}, {run['backend']}, {run['ranks']} ranks")
        header = ["size (bytes)", "time (µs)", "algbw (GB/s)", "busbw (GB/s)", "#wrong"]
        parts.append(table(header, (_measured_row(row) for row in run["rows"])))
    return "\n\n".join(parts) + "\n"


def _finding_row(finding: t.Mapping[str, str]) -> list[str]:
    command = f"`{finding['fix']}`" if finding["fix"] else ""
    return [finding[k] for k in ("severity", "node", "subject", "evidence", "expected", "cause")] + [command]


def _measured_row(row: t.Mapping[str, t.Any]) -> list[str]:
    half = row["out_of_place"]
    return [str(row["size_bytes"]), *(str(half[key]) for key in ("time_us", "algbw_gbs", "busbw_gbs", "wrong"))]


def table(header: t.Sequence[str], rows: t.Iterable[t.Sequence[str]]) -> str:
    """A Markdown table; a cell may hold anything."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )
