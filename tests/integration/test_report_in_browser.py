# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""report.html and compare.html as a browser sees them: every series drawn, nothing asked of any network, no complaint.

Needs the Debian package chromium, which the default setup leaves out: apt-get install --no-install-recommends chromium
"""

from __future__ import annotations

import collections
import json
import pathlib
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.assemble import assemble
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_runs import compare_runs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.compare import comparison_files
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.run_files import run_files
from ansible_collections.gpufabric.cluster.tests.fixtures import fleet_run
from ansible_collections.gpufabric.cluster.tests.integration import browser

pytestmark = pytest.mark.skipif(browser.PROGRAM is None, reason="needs the package chromium")

#: {chart: number of lines in its picture}
DRAWN = """Object.fromEntries([...document.querySelectorAll('.js-plotly-plot')].map(
    chart => [chart.id, chart.querySelectorAll('.scatterlayer .trace .js-line').length]))"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[browser.Browser]:
    with browser.Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def files(nodes: int, seed: int = 1) -> dict[str, str]:
    return run_files(assemble(**fleet_run.registered(nodes, seed)))


def written(directory: pathlib.Path, text: str) -> pathlib.Path:
    path = directory / "page.html"
    path.write_text(text)
    return path


def lines_of(record: dict[str, t.Any]) -> list[int]:
    """How many lines each collective's chart must have: two a run, or three for many nodes alone, and one an expectation."""
    numbers = []
    for collective in dict.fromkeys(run["collective"] for run in record["benchmark"]["runs"]):
        kinds = collections.Counter(
            run["stage"] for run in record["benchmark"]["runs"] if run["collective"] == collective
        )
        numbers.append(sum((3 if count > 8 else 2 * count) + 1 for count in kinds.values()))
    return numbers


@pytest.mark.parametrize("nodes", [2, 10])
def test_every_series_of_a_run_is_drawn(chromium: browser.Browser, tmp_path: pathlib.Path, nodes: int) -> None:
    told = files(nodes)
    path = written(tmp_path, told["report.html"])
    page = chromium.open(path, DRAWN)
    assert page.errors == [] and page.requests == [path.as_uri()]
    expected = lines_of(json.loads(told["run.json"]))
    assert page.value == {f"busbw-{number}": count for number, count in enumerate(expected)}


def test_a_comparison_is_drawn_with_both_runs_in_each_chart(chromium: browser.Browser, tmp_path: pathlib.Path) -> None:
    before, after = (json.loads(files(2, seed)["run.json"]) for seed in (1, 2))
    told = compare_runs(before, {**after, "run_id": "20260102T000000Z-0a1c"})
    path = written(tmp_path, comparison_files(told)["compare.html"])
    page = chromium.open(path, DRAWN)
    assert page.errors == [] and page.requests == [path.as_uri()]
    assert page.value == {f"overlay-{number}": 2 for number in range(len(told["speed"]))}


def test_a_page_that_asks_and_complains_would_be_seen(chromium: browser.Browser, tmp_path: pathlib.Path) -> None:
    text = "<!DOCTYPE html><img src='http://127.0.0.1:9/x.png'><script>console.error('planted'); nowhere();</script>"
    page = chromium.open(written(tmp_path, text), "7")
    assert page.value == 7 and "http://127.0.0.1:9/x.png" in page.requests
    assert any("planted" in error for error in page.errors) and len(page.errors) >= 2
