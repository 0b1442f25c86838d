# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run is told in: complete, escaped, and without a network."""

from __future__ import annotations

import html.parser
import json
import pathlib
import sys
import xml.etree.ElementTree as ET

import jsonschema
import pytest
from ansible.errors import AnsibleError
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import requirements, run_directory
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.record import SCHEMA
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render import RENDERERS
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.matrix import node_matrix
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.terminal import SHOWN, summary_lines

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from example_record import HOSTILE, example_record  # noqa: E402


class Page(html.parser.HTMLParser):
    """Tags with their attributes, and the text outside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if not self._in_script:
            self.text += data


def test_the_example_is_a_valid_record() -> None:
    jsonschema.validate(json.loads(json.dumps(example_record())), json.loads(SCHEMA.read_text()))


def test_html_holds_everything_escaped_and_loads_nothing() -> None:
    page = Page(RENDERERS["report.html"](example_record()))
    assert HOSTILE.split("\x1b")[0] in page.text and "ip link set eth2 up" in page.text
    assert "GPUs were not measured" in page.text and "mpirun -np 2" in page.text
    assert not [attrs for _tag, attrs in page.tags if "src" in attrs or (attrs.get("href") or "").startswith("http")]
    assert page.text.index("FAIL: n2") < page.text.index("GPUs were not measured") < page.text.index("Benchmark")


def test_html_of_a_run_without_benchmark_has_no_chart() -> None:
    text = RENDERERS["report.html"](example_record(benchmark={}, verdicts=[], findings=[]))
    assert "plotly" not in text.lower() and len(text) < 20_000


def test_the_matrix_puts_a_finding_to_its_part() -> None:
    cells = node_matrix(example_record())
    assert cells["n2"]["rdma"] == ("error", 0) and cells["n1"]["rdma"] == ("ok", None)
    assert cells["n1"]["kernel"].state == "not observed"
    page = Page(RENDERERS["report.html"](example_record()))
    assert ("a", {"href": "#finding-0"}) in page.tags and any(a.get("id") == "finding-0" for _tag, a in page.tags)


def test_the_matrix_points_to_the_worst_finding() -> None:
    finding = {**example_record()["findings"][0], "severity": "warning"}
    worse = {**finding, "severity": "error"}
    assert node_matrix(example_record(findings=[finding, finding]))["n2"]["rdma"] == ("warning", 0)
    assert node_matrix(example_record(findings=[finding, worse, finding]))["n2"]["rdma"] == ("error", 1)


def test_junit_is_xml_with_one_failure_a_fault_and_a_bad_point() -> None:
    suites = ET.fromstring(RENDERERS["junit.xml"](example_record()).encode())
    assert {s.get("name"): (s.get("tests"), s.get("failures")) for s in suites} == {
        "nodes": ("3", "1"),
        "benchmark": ("1", "1"),
    }


def test_markdown_tables_survive_pipes_and_newlines() -> None:
    text = RENDERERS["report.md"](example_record())
    row = next(
        line for line in text.splitlines() if "hca" not in line and "mlx5_1 port 1" in line and line.startswith("|")
    )
    assert row.replace("\\|", "").count("|") == 8


def test_the_terminal_shows_what_to_type_and_counts_the_rest() -> None:
    finding = example_record()["findings"][0]
    lines = summary_lines(example_record(findings=[finding] * (SHOWN + 3)), "/r/report.html")
    assert lines[0].startswith("FAIL") and lines[-1] == "report: /r/report.html"
    assert sum("type: ip link set eth2 up" in line for line in lines) == SHOWN and any(
        "3 more" in line for line in lines
    )


def test_a_missing_package_is_one_sentence_with_a_command() -> None:
    with pytest.raises(AnsibleError, match="-m pip install no_such_package$"):
        requirements.need("no_such_package.inner")


def test_a_run_directory_appears_whole_and_latest_follows(tmp_path: pathlib.Path) -> None:
    run_directory.write_run(tmp_path, "20260101T000000Z-0001", {"run.json": "{}", "logs/a.txt": "é\udcff"})
    run_directory.write_run(tmp_path, "20260101T000000Z-0002", {"run.json": "{}"})
    assert (tmp_path / "latest").resolve().name == "20260101T000000Z-0002"
    assert (tmp_path / "20260101T000000Z-0001/logs/a.txt").exists()
    assert (tmp_path / "20260101T000000Z-0001/run.json").stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in tmp_path.iterdir()) == ["20260101T000000Z-0001", "20260101T000000Z-0002", "latest"]


def test_a_failed_write_leaves_nothing(tmp_path: pathlib.Path) -> None:
    with pytest.raises(OSError):
        run_directory.write_run(tmp_path, "run", {"ok.txt": "x", "n" * 300: "too long a name"})
    assert list(tmp_path.iterdir()) == []
