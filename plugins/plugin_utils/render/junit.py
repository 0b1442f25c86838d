# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""junit.xml: a test case for each node and part, each measured point, so that a CI system shows what failed."""

from __future__ import annotations

import re
import typing as t
import xml.etree.ElementTree as ET

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.points import on

#: what XML 1.0 cannot hold at all (https://www.w3.org/TR/xml/#charsets)
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(record: t.Mapping[str, t.Any]) -> str:
    """One suite with a case per node, one for the run as a whole, one per verdict of the benchmark."""
    suites = ET.Element("testsuites", name=f"gpufabric.cluster {record['run_id']}")
    by_node: dict[str, list[t.Mapping[str, str]]] = {"": [], **{node: [] for node in record["inventory"]}}
    for finding in record["findings"]:
        by_node.setdefault(finding["node"], []).append(finding)
    _suite(suites, "nodes", [(node or "the run as a whole", _texts(found)) for node, found in by_node.items()])
    points = [(_point(v), [v["why"]] if v["status"] != "pass" else []) for v in record["verdicts"]]
    if points:
        _suite(suites, "benchmark", points)
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _texts(findings: t.Iterable[t.Mapping[str, str]]) -> list[str]:
    return [f"{f['subject']}: {f['evidence']}. Type: {f['fix']}" for f in findings if f["severity"] == "error"]


def _point(verdict: t.Mapping[str, t.Any]) -> str:
    return f"{verdict['stage']} {verdict['collective']} on {on(verdict)}, {verdict['size_bytes']} bytes"


def _suite(parent: ET.Element, name: str, cases: t.Sequence[tuple[str, list[str]]]) -> None:
    failures = sum(bool(failed) for _name, failed in cases)
    suite = ET.SubElement(parent, "testsuite", name=name, tests=str(len(cases)), failures=str(failures))
    for case_name, failed in cases:
        case = ET.SubElement(suite, "testcase", classname=name, name=NOT_XML.sub("?", case_name))
        if failed:
            text = NOT_XML.sub("?", "\n".join(failed))
            ET.SubElement(case, "failure", message=text.splitlines()[0]).text = text
