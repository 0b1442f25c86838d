# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The report's charts, drawn by Plotly from measured rows."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import size_text
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.run_groups import (
    Group,
    envelope,
    groups_of,
    name_of,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.requirements import need

#: {size in bytes: busbw in GB/s}
Line = t.Mapping[int, float]


#: one for each run of a chart, so that its out-of-place and its in-place line are seen to belong together
COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22", "#7f7f7f", "#393b79", "#d62728",
)  # fmt: skip
#: of lines that nothing measured
NEUTRAL = "#59636e"

#: where the line rates' names are, the highest's first: (beside the line's end, which of its points). Lines that are near to each other
#: have their names on different sides; small sizes are far below any line rate, so there is room at the left.
PLACES = (("top right", 0), ("bottom right", 0), ("top left", -1), ("bottom left", -1))


class Trace(t.NamedTuple):
    """One line of a chart; dash: Plotly's name of its pattern, markers where it was measured.

    label: what is written at the line itself; place: which of PLACES.
    """

    name: str
    line: Line
    dash: str = "solid"
    measured: bool = True
    colour: str = ""
    label: str = ""
    place: int = 0


def busbw_charts(record: t.Mapping[str, t.Any]) -> list[str]:
    """HTML of one chart a collective: busbw (GB/s) against size (bytes, logarithmic), with the line rate drawn in.

    busbw is linear, since half a line rate should look like it; a button makes it logarithmic, for small sizes.
    """
    groups = groups_of(record)
    collectives = list(dict.fromkeys(group.collective for group in groups if any(run["rows"] for run in group.runs)))
    charts = []
    for number, collective in enumerate(collectives):
        mine = [verdict for verdict in record["verdicts"] if verdict["collective"] == collective]
        traces = _coloured([_measured(group) for group in groups if group.collective == collective])
        charts.append(_chart(f"busbw-{number}", collective, [*traces, *_expected(mine), *_line_rates(mine)]))
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
        charts.append(_chart(f"overlay-{number}", series["what"], traces))
    return charts


#: a page with more charts than that is slow to open; the tables below hold every series
MOST_OVERLAYS = 40


def plotly_script() -> str:
    """Plotly's own JavaScript, so that the report needs no network."""
    return str(need("plotly.offline").get_plotlyjs())


def _measured(group: Group) -> list[list[Trace]]:
    """The lines of a group, those that are to have one colour together."""
    if group.many:
        return [[Trace(f"{group.name}, {which}", line)] for which, line in envelope(group).items()]
    together = []
    for run in group.runs:
        halves = []
        for half, label, dash in (("out_of_place", "out-of-place", "solid"), ("in_place", "in-place", "dash")):
            line = {row["size_bytes"]: row[half]["busbw_gbs"] for row in run["rows"] if row.get(half)}
            halves.append(Trace(f"{name_of(run)}, {label}", line, dash))
        together.append(halves)
    return together


def _coloured(groups: t.Sequence[t.Sequence[t.Sequence[Trace]]]) -> list[Trace]:
    together = [traces for group in groups for traces in group]
    return [
        trace._replace(colour=COLOURS[number % len(COLOURS)])
        for number, traces in enumerate(together)
        for trace in traces
    ]


def _expected(verdicts: t.Sequence[t.Mapping[str, t.Any]]) -> list[Trace]:
    """What was expected, once for all runs that are expected to reach the same."""
    lines: dict[str, dict[int, float]] = {}
    for verdict in verdicts:
        if verdict.get("expected_busbw_gbs"):
            kind = "baseline" if verdict.get("expected_from") == "baseline" else "expected at least"
            name = ", ".join(filter(None, [verdict["stage"], verdict.get("rail"), verdict.get("transport"), kind]))
            lines.setdefault(name, {})[verdict["size_bytes"]] = verdict["expected_busbw_gbs"]
    return [Trace(name, line, "dot", measured=False) for name, line in lines.items()]


def _line_rates(verdicts: t.Sequence[t.Mapping[str, t.Any]]) -> list[Trace]:
    """A level line for each line rate, over all sizes, with its name at one end."""
    sizes = [verdict["size_bytes"] for verdict in verdicts if verdict["size_bytes"]]
    stages: dict[float, dict[str, None]] = {}
    for verdict in verdicts:
        if verdict.get("line_rate_gbs"):
            stages.setdefault(verdict["line_rate_gbs"], {})[verdict["stage"]] = None
    traces = []
    for number, rate in enumerate(sorted(stages, reverse=True) if sizes else []):
        name = f"line rate {rate:.4g} GB/s ({', '.join(stages[rate])})"
        line = {min(sizes): rate, max(sizes): rate}
        traces.append(Trace(name, line, "dash", False, NEUTRAL, name, number % len(PLACES)))
    return traces


def _chart(div: str, title: str, traces: t.Sequence[Trace]) -> str:
    figure = need("plotly.graph_objects").Figure()
    sizes: set[int] = set()
    for trace in traces:
        points = sorted((size, busbw) for size, busbw in trace.line.items() if size and busbw)
        if points:
            sizes.update(size for size, _busbw in points)
            figure.add_scatter(
                x=[size for size, _busbw in points],
                y=[busbw for _size, busbw in points],
                line={"dash": trace.dash, **({"color": trace.colour} if trace.colour else {})},
                name=trace.name,
                **(_label(trace, len(points)) if trace.label else {"mode": f"lines{'+markers' * trace.measured}"}),
            )
    figure.update_layout(
        title=title,
        template="plotly_white",
        height=420,
        margin={"l": 60, "r": 20, "t": 70, "b": 50},
        xaxis={"type": "log", "title": "size", **_ticks(sizes)},
        yaxis={"type": "linear", "rangemode": "tozero", "title": "busbw (GB/s)"},
        updatemenus=[_SCALES],
    )
    return str(figure.to_html(full_html=False, include_plotlyjs=False, div_id=div, config={"displaylogo": False}))


_SCALES = {
    "type": "buttons", "direction": "right", "x": 1.0, "y": 1.02, "xanchor": "right", "yanchor": "bottom", "showactive": True,
    "pad": {"t": 0, "b": 0}, "font": {"size": 11},
    "buttons": [
        {"label": label, "method": "relayout", "args": [{"yaxis.type": kind}]} for label, kind in (("linear", "linear"), ("log", "log"))
    ],
}  # fmt: skip


def _label(trace: Trace, points: int) -> dict[str, t.Any]:
    """Text at one end of a line; it may stand out of the plot, whose range knows nothing of it. Markers that nobody sees keep it off
    the line."""
    position, end = PLACES[trace.place]
    text = [""] * points
    text[end] = trace.label
    return {
        "mode": "lines+markers+text",
        "marker": {"size": 9, "opacity": 0},
        "text": text,
        "textposition": position,
        "cliponaxis": False,
        "showlegend": False,
    }


def _ticks(sizes: t.Collection[int]) -> dict[str, t.Any]:
    """Powers of two where sizes are, as people say them."""
    if not sizes:
        return {}
    least, most = min(sizes).bit_length() - 1, max(sizes).bit_length() - 1
    step = max(1, -(-(most - least) // 10))
    powers = range(least, most + 1, step)
    return {
        "tickvals": [1 << power for power in powers],
        "ticktext": [size_text(1 << power) for power in powers],
    }
