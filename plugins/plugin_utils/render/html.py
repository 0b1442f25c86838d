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
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.matrix import matrix_of
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
        matrix=matrix_of(record),
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
