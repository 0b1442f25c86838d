# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The report's charts, drawn by Plotly from measured rows."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.requirements import need


def busbw_charts(record: t.Mapping[str, t.Any]) -> list[str]:
    """HTML of one chart a collective: busbw (GB/s) against size (bytes), both logarithmic, with the line rate drawn in."""
    collectives = list(dict.fromkeys(run["collective"] for run in record["benchmark"].get("runs", []) if run["rows"]))
    return [_chart(collective, record) for collective in collectives]


def plotly_script() -> str:
    """Plotly's own JavaScript, so that the report needs no network."""
    return str(need("plotly.offline").get_plotlyjs())


def _chart(collective: str, record: t.Mapping[str, t.Any]) -> str:
    graph = need("plotly.graph_objects")
    figure = graph.Figure()
    for run in (run for run in record["benchmark"]["runs"] if run["collective"] == collective):
        for half, label in (("out_of_place", "out-of-place"), ("in_place", "in-place")):
            points = [(row["size_bytes"], row[half]["busbw_gbs"]) for row in run["rows"] if row.get(half)]
            points = [(size, busbw) for size, busbw in points if size and busbw]
            if points:
                figure.add_scatter(
                    x=[size for size, _busbw in points],
                    y=[busbw for _size, busbw in points],
                    mode="lines+markers",
                    name=f"{run['stage']}, {label}",
                )
    expected = [v for v in record["verdicts"] if v["collective"] == collective and v.get("expected_busbw_gbs")]
    for stage in dict.fromkeys(v["stage"] for v in expected):
        points = [(v["size_bytes"], v["expected_busbw_gbs"]) for v in expected if v["stage"] == stage]
        figure.add_scatter(
            x=[size for size, _busbw in points],
            y=[busbw for _size, busbw in points],
            mode="lines",
            line={"dash": "dot"},
            name=f"{stage}, expected at least",
        )
    for rate in {
        v["line_rate_gbs"] for v in record["verdicts"] if v["collective"] == collective and v.get("line_rate_gbs")
    }:
        figure.add_hline(y=rate, line_dash="dash", annotation_text=f"line rate {rate:.4g} GB/s")
    figure.update_layout(
        title=collective,
        template="plotly_white",
        height=420,
        margin={"l": 60, "r": 20, "t": 50, "b": 50},
        xaxis={"type": "log", "title": "size (bytes)"},
        yaxis={"type": "log", "title": "busbw (GB/s)"},
    )
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False}))
