# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A study of autotune as a page and as Markdown, from autotune.json alone."""

from __future__ import annotations

import itertools
import statistics
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.charts import plotly_script
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.html import page
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.markdown import table
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.requirements import need

Told = t.Mapping[str, t.Any]


class Section(t.NamedTuple):
    """A heading with a table below it."""

    title: str
    header: list[str]
    rows: list[list[str]]


def render_markdown(record: Told) -> str:
    parts = [f"# {headline(record)}", about(record)]
    for section in sections(record):
        parts += [f"## {section.title}", table(section.header, section.rows)]
    if record["profile"]["file"]:
        parts += [f"## Profile `{record['profile']['file']}`", f"```\n{record['profile']['text']}```"]
    return "\n\n".join(parts) + "\n"


def render_html(record: Told) -> str:
    """One file that opens offline."""
    chart = _chart(record)
    return page(
        "tuning.html.j2",
        record=record,
        headline=headline(record),
        about=about(record),
        sections=sections(record),
        chart=chart,
        plotly_script=plotly_script() if chart else "",
    )


def headline(record: Told) -> str:
    if record["problem"]:
        return f"Not finished: {record['problem']}"
    return str(record["result"]["text"])


def about(record: Told) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items() if version)
    return (
        f"Study {record['study']}, {record['finished']}: {record['transport']} on {len(record['nodes'])} nodes, {versions}; "
        f"{len(record['trials'])} of {record['budget']['trials']} trials, in {record['objective']['unit']}."
    )


def sections(record: Told) -> list[Section]:
    """What has rows: the comparison at the end, what broke other collectives, importances, trials."""
    made = [
        Section(
            "Measured in turn", ["settings", "", "median", "smallest to largest", "the best against it"], _turns(record)
        ),
        Section("Not chosen, because other collectives fail", ["settings", "collectives"], _rejected(record)),
        Section("What matters", ["variable", "share of the differences"], _importances(record)),
        Section("Trials", ["trial", "settings", record["objective"]["unit"], "seconds", "failure"], _trials(record)),
    ]
    return [section for section in made if section.rows]


def words(settings: Told) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(settings.items())) or "nothing set"


def _turns(record: Told) -> list[list[str]]:
    result = record["result"]
    rows = []
    for who, samples in result.get("samples", {}).items():
        middle = f"{statistics.median(samples):.4g}" if samples else "failed"
        reach = f"{min(samples):.4g} to {max(samples):.4g}" if samples else ""
        against = result["comparisons"].get(who, {}).get("text", "")
        rows.append([who, words(result["contestants"][who]), middle, reach, against])
    return rows


def _rejected(record: Told) -> list[list[str]]:
    return [
        [words(one["settings"]), ", ".join(f"{name}: {why}" for name, why in one["collectives"].items())]
        for one in record["result"].get("rejected", [])
    ]


def _importances(record: Told) -> list[list[str]]:
    return [[name, f"{100 * share:.0f}%"] for name, share in record["importances"].items()]


def _trials(record: Told) -> list[list[str]]:
    return [
        [
            str(number),
            words(trial["settings"]),
            "" if trial["score"] is None else f"{trial['score']:.4g}",
            f"{trial['seconds']:.1f}",
            trial["failure"],
        ]
        for number, trial in enumerate(record["trials"], start=1)
    ]


def _chart(record: Told) -> str:
    """Every trial's score, and the best so far; "" without any."""
    points = [(n, one["score"], words(one["settings"])) for n, one in enumerate(record["trials"], 1) if one["score"]]
    if not points:
        return ""
    numbers, scores, texts = (list(column) for column in zip(*points))
    figure = need("plotly.graph_objects").Figure()
    figure.add_scatter(x=numbers, y=scores, text=texts, mode="markers", name="trial")
    figure.add_scatter(x=numbers, y=list(itertools.accumulate(scores, max)), mode="lines", name="best so far")
    figure.update_layout(
        template="plotly_white",
        height=380,
        xaxis={"title": "trial"},
        yaxis={"title": record["objective"]["unit"], "rangemode": "tozero"},
    )
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False}))
