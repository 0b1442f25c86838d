# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A comparison of two runs as a page with overlays, as Markdown, and as lines for a terminal."""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_runs import GOOD
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_speed import (
    BETTER,
    NOISY,
    ONLY_AFTER,
    ONLY_BEFORE,
    WORSE,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import listed
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.charts import overlay_charts, plotly_script
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.html import page
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.markdown import table

Told = t.Mapping[str, t.Any]

#: of each kind, on the terminal; the page holds all
SHOWN = 10

CLASSES = {BETTER: "pass", WORSE: "fail", NOISY: "", ONLY_BEFORE: "warning", ONLY_AFTER: "warning"}


def comparison_files(told: Told) -> dict[str, str]:
    """{name: text} of the comparison's directory. told: the result of compare_runs()."""
    return {
        "compare.html": _html(told),
        "compare.md": _markdown(told),
        "compare.json": json.dumps(told, indent=1, sort_keys=True) + "\n",
    }


def comparison_lines(told: Told, where: str) -> list[str]:
    """What stands on the terminal: the verdict, what changed of settings, speed and findings, where the page lies."""
    changed = [series for series in told["speed"] if series["status"] != NOISY]
    blocks = [
        [f"setting: {_change_text(change)}" for change in told["settings"]],
        [f"speed: {_series_text(series)}" for series in changed],
        [
            f"{word}: {_finding_text(f)}"
            for word in ("came", "went")
            for f in told["findings"][word]
            if f["severity"] != "notice"
        ],
    ]
    lines = [told["verdict"]["text"], f"before: {told['before']['run_id']}, after: {told['after']['run_id']}"]
    for block in blocks:
        lines += block[:SHOWN] + ([f"... and {len(block) - SHOWN} more of these"] if len(block) > SHOWN else [])
    return [*lines, f"report: {where}"]


def _change_text(change: Told) -> str:
    before, after = (change[side] if change[side] is not None else "none" for side in ("before", "after"))
    where = f" on {listed(change['nodes'])}" if change["nodes"] else ""
    return f"{change['kind']} {change['name']}: {before} -> {after}{where}"


def _series_text(series: Told) -> str:
    if series["median_ratio"] is None:
        return f"{series['what']}: {series['status']}"
    counts = [f"{sum(p['status'] == status for p in series['points'])} {status}" for status in (BETTER, WORSE, NOISY)]
    return f"{series['what']}: {series['median_ratio']:.3g} times in the middle; sizes: {', '.join(counts)}"


def _finding_text(finding: Told) -> str:
    where = " ".join(filter(None, [finding["node"], finding["subject"]]))
    return f"{finding['severity']} {where}: {finding['evidence']} [{finding['id']}]"


def number(value: float | None) -> str:
    """A measured value for a table: what is none stays empty."""
    return "" if value is None else f"{value:.4g}"


def _html(told: Told) -> str:
    charts = overlay_charts(told["speed"])
    return page(
        "compare.html.j2",
        told=told,
        good=told["verdict"]["status"] in GOOD,
        charts=charts,
        plotly_script=plotly_script() if charts else "",
        classes=CLASSES,
        number=number,
    )


def _markdown(told: Told) -> str:
    parts = [f"# {told['verdict']['text']}"]
    parts.append(f"Before: {told['before']['run_id']}. After: {told['after']['run_id']}. busbw in GB/s, out-of-place.")
    parts += [f"Nodes that {word}: {', '.join(names)}." for word, names in told["nodes"].items() if names]
    if told["settings"]:
        parts.append("## Settings")
        parts.append(table(["kind", "name", "before", "after", "nodes"], map(_change_row, told["settings"])))
    for series in told["speed"]:
        parts.append(f"## {series['what']}: {series['status']}")
        parts.append(table(["size (bytes)", "before", "after", "times", "", "why"], map(_point_row, series["points"])))
    for word in ("came", "went"):
        if told["findings"][word]:
            parts.append(f"## Findings that {word}")
            parts.append(
                "\n".join(f"- {_finding_text(finding)}".replace("\n", " ") for finding in told["findings"][word])
            )
    return "\n\n".join(parts) + "\n"


def _change_row(change: Told) -> list[str]:
    sides = ["none" if change[side] is None else f"`{change[side]}`" for side in ("before", "after")]
    return [change["kind"], f"`{change['name']}`", *sides, ", ".join(change["nodes"])]


def _point_row(point: Told) -> list[str]:
    numbers = [number(point[key]) for key in ("before_gbs", "after_gbs", "ratio")]
    return [str(point["size_bytes"]), *numbers, point["status"], point["why"]]
