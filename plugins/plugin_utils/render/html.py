# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""report.html: one self-contained file that opens offline."""

from __future__ import annotations

import pathlib
import typing as t

import jinja2
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import listed
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.charts import busbw_charts, plotly_script
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.mesh import mesh_matrices
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.points import on, points_of
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.run_groups import (
    COLUMNS,
    bounds,
    cells_of,
    groups_of,
    loads_of,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.training import (
    DEAREST_COLUMNS,
    TRAINING_COLUMNS,
    dearest_rows,
    training_rows,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.sections import SECTIONS

HERE = pathlib.Path(__file__).parent


def page(template: str, **values: t.Any) -> str:
    """A page from one of the templates beside this file; every value is escaped unless the template says that it is HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


def render_html(record: t.Mapping[str, t.Any]) -> str:
    """The whole report of a run record. Everything from the record is escaped; charts are Plotly's own HTML."""
    charts = busbw_charts(record)
    return page(
        "report.html.j2",
        record=record,
        charts=charts,
        plotly_script=plotly_script() if charts else "",
        parts=[section.name for section in SECTIONS],
        cells=node_matrix(record),
        meshes=mesh_matrices(record),
        groups=groups_of(record),
        trainings=[
            (TRAINING_COLUMNS, training_rows(record)),
            (DEAREST_COLUMNS, dearest_rows(record)),
        ],
        bounds=bounds,
        columns=COLUMNS,
        cells_of=cells_of,
        loads_of=loads_of,
        points=points_of(record),
        on=on,
        listed=listed,
    )


class Cell(t.NamedTuple):
    """state: error, warning, ok or "not observed"; finding: number of the worst one in the record, None where there is none."""

    state: str
    finding: int | None = None


def node_matrix(record: t.Mapping[str, t.Any]) -> dict[str, dict[str, Cell]]:
    """{node: {part: cell}}: a finding counts for the part whose judge made it."""
    matrix = {
        node: {s.name: Cell("ok" if s.name in record["nodes"].get(node, {}) else "not observed") for s in SECTIONS}
        for node in record["inventory"]
    }
    for number, finding in enumerate(record["findings"]):
        cells, part = matrix.get(finding["node"], {}), finding["part"]
        if part in cells and finding["severity"] != "notice" and cells[part].state != "error":
            worse = cells[part].finding is None or finding["severity"] == "error"
            cells[part] = Cell(finding["severity"], number) if worse else cells[part]
    return matrix
