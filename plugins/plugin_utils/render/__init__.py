# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The files that a run is told in, each from the record alone."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.html import render_html
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.junit import render_junit
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.markdown import render_markdown
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.metrics import render_metrics

RENDERERS: dict[str, t.Callable[[t.Mapping[str, t.Any]], str]] = {
    "report.html": render_html,
    "report.md": render_markdown,
    "junit.xml": render_junit,
    "metrics.prom": render_metrics,
}
