# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The report's charts, drawn by Plotly from measured rows."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.run_groups import (
    Group,
    envelope,
    groups_of,
    name_of,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.requirements import need

#: {size in bytes: busbw in GB/s}
Line = t.Mapping[int, float]


class Trace(t.NamedTuple):
    """One line of a chart; dash: Plotly's name of its pattern, markers where it was measured."""

    name: str
    line: Line
    dash: str = "solid"
    measured: bool = True


def busbw_charts(record: t.Mapping[str, t.Any]) -> list[str]:
    """HTML of one chart a collective: busbw (GB/s) against size (bytes), both logarithmic, with the line rate drawn in."""
    groups = groups_of(record)
    collectives = list(dict.fromkeys(group.collective for group in groups if any(run["rows"] for run in group.runs)))
    charts = []
    for number, collective in enumerate(collectives):
        mine = [verdict for verdict in record["verdicts"] if verdict["collective"] == collective]
        traces = [trace for group in groups if group.collective == collective for trace in _measured(group)]
        rates = sorted({verdict["line_rate_gbs"] for verdict in mine if verdict.get("line_rate_gbs")})
        charts.append(_chart(f"busbw-{number}", collective, [*traces, *_expected(mine)], rates))
    return charts


def overlay_charts(speed: t.Sequence[t.Mapping[str, t.Any]]) -> list[str]:
    """HTML of one chart for each series of a comparison that both runs have: before and after in one picture."""
    both = [series for series in speed if series["before"] and series["after"] and series["points"]]
    charts = []
    for number, series in enumerate(both[:MOST_OVERLAYS]):
        traces = [
            Trace(side, {p["size_bytes"]: p[f"{side}_gbs"] for p in series["points"] if p[f"{side}_gbs"]}, dash)
            for side, dash in (("before", "dot"), ("after", "solid"))
        ]
        charts.append(_chart(f"overlay-{number}", series["what"], traces, []))
    return charts


#: a page with more charts than that is slow to open; the tables below hold every series
MOST_OVERLAYS = 40


def plotly_script() -> str:
    """Plotly's own JavaScript, so that the report needs no network."""
    return str(need("plotly.offline").get_plotlyjs())


def _measured(group: Group) -> list[Trace]:
    if group.many:
        return [Trace(f"{group.name}, {which}", line) for which, line in envelope(group).items()]
    traces = []
    for run in group.runs:
        for half, label in (("out_of_place", "out-of-place"), ("in_place", "in-place")):
            line = {row["size_bytes"]: row[half]["busbw_gbs"] for row in run["rows"] if row.get(half)}
            traces.append(Trace(f"{name_of(run)}, {label}", line))
    return traces


def _expected(verdicts: t.Sequence[t.Mapping[str, t.Any]]) -> list[Trace]:
    """What was expected, once for all runs that are expected to reach the same."""
    lines: dict[str, dict[int, float]] = {}
    for verdict in verdicts:
        if verdict.get("expected_busbw_gbs"):
            kind = "baseline" if verdict.get("expected_from") == "baseline" else "expected at least"
            name = ", ".join(filter(None, [verdict["stage"], verdict.get("rail"), verdict.get("transport"), kind]))
            lines.setdefault(name, {})[verdict["size_bytes"]] = verdict["expected_busbw_gbs"]
    return [Trace(name, line, "dot", measured=False) for name, line in lines.items()]


def _chart(div: str, title: str, traces: t.Sequence[Trace], line_rates: t.Sequence[float]) -> str:
    figure = need("plotly.graph_objects").Figure()
    for trace in traces:
        points = sorted((size, busbw) for size, busbw in trace.line.items() if size and busbw)
        if points:
            figure.add_scatter(
                x=[size for size, _busbw in points],
                y=[busbw for _size, busbw in points],
                mode="lines+markers" if trace.measured else "lines",
                line={"dash": trace.dash},
                name=trace.name,
            )
    for rate in line_rates:
        figure.add_hline(y=rate, line_dash="dash", annotation_text=f"line rate {rate:.4g} GB/s")
    figure.update_layout(
        title=title,
        template="plotly_white",
        height=420,
        margin={"l": 60, "r": 20, "t": 50, "b": 50},
        xaxis={"type": "log", "title": "size (bytes)"},
        yaxis={"type": "log", "title": "busbw (GB/s)"},
    )
    return str(figure.to_html(full_html=False, include_plotlyjs=False, div_id=div, config={"displaylogo": False}))
