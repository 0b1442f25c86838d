# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The last lines of a run, as they stand on a terminal."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.training import training_lines

#: findings shown on the terminal; the report holds all
SHOWN = 10


def summary_lines(record: t.Mapping[str, t.Any], report: str) -> list[str]:
    """Verdict, then each finding with what was seen and what to type, then where the report lies."""
    findings = [f for f in record["findings"] if f["severity"] != "notice"]
    lines = [record["verdict"]["text"]]
    for finding in findings[:SHOWN]:
        lines += _finding_lines(finding)
    if len(findings) > SHOWN:
        lines.append(f"... and {len(findings) - SHOWN} more findings in the report")
    lines += training_lines(record)
    lines += [f"note: {note}" for note in record["notes"]]
    lines.append(f"report: {report}")
    return lines


def _finding_lines(finding: t.Mapping[str, str]) -> list[str]:
    where = " ".join(filter(None, [finding["node"], finding["subject"]]))
    lines = [f"{finding['severity']}: {where}: {finding['evidence']} [{finding['id']}]"]
    lines += [
        f"    {label}: {finding[key]}"
        for label, key in (("expected", "expected"), ("why", "cause"), ("type", "fix"))
        if finding[key]
    ]
    return lines
