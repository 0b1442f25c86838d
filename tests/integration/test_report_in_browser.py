# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""report.html and compare.html as a browser sees them: every series drawn, nothing asked of any network, no complaint.

Needs the Debian package chromium, which the default setup leaves out: apt-get install --no-install-recommends chromium
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import pathlib
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import sections
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.assemble import assemble
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_runs import compare_runs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render import matrix
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
    """How many lines each collective's chart must have: two a run, or three for many nodes alone, one an expectation, and one a
    line rate."""
    numbers = []
    for collective in dict.fromkeys(run["collective"] for run in record["benchmark"]["runs"]):
        kinds = collections.Counter(
            run["stage"] for run in record["benchmark"]["runs"] if run["collective"] == collective
        )
        rates = {verdict["line_rate_gbs"] for verdict in record["verdicts"] if verdict["collective"] == collective}
        numbers.append(sum((3 if count > 8 else 2 * count) + 1 for count in kinds.values()) + len(rates - {None}))
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


#: for each axis that a button makes: {chart: [[left, top, right, bottom] of what is written at a line]}
WRITTEN = """(async () => {
    const told = {};
    for (const axis of ['log', 'linear']) {
        told[axis] = {};
        for (const chart of document.querySelectorAll('.js-plotly-plot')) {
            const drawn = new Promise(done => chart.once('plotly_relayout', done));
            [...chart.querySelectorAll('.updatemenu-button')].find(button => button.textContent === axis)
                .dispatchEvent(new MouseEvent('click', {bubbles: true}));
            await drawn;
            const around = chart.getBoundingClientRect();
            told[axis][chart.id] = [...chart.querySelectorAll('.textpoint text')].filter(text => text.textContent).map(text => {
                const box = text.getBoundingClientRect();
                return [box.left - around.left, box.top - around.top, box.right - around.left, box.bottom - around.top];
            });
        }
    }
    return told;
})()"""

#: of a text's box, in pixels: empty space between lines
LEADING = 3
#: line rates of a chart, in GB/s
RATES = ((450.0, 445.0), (450.0, 350.0), (50.0, 450.0), (450.0, 447.0, 444.0, 441.0))


def test_names_of_line_rates_do_not_lie_on_one_another(chromium: browser.Browser, tmp_path: pathlib.Path) -> None:
    record = assemble(**fleet_run.registered(2))
    rates = dict(zip(dict.fromkeys(verdict["collective"] for verdict in record["verdicts"]), RATES, strict=True))
    for number, verdict in enumerate(record["verdicts"]):
        mine = rates[verdict["collective"]]
        verdict["line_rate_gbs"] = mine[number % len(mine)]
    page = chromium.open(written(tmp_path, run_files(record)["report.html"]), WRITTEN)
    assert set(page.value) == {"log", "linear"}
    for axis, chart in itertools.product(page.value, range(len(RATES))):
        boxes = page.value[axis][f"busbw-{chart}"]
        assert len(boxes) == len(RATES[chart])
        assert all(left >= 0 and top >= 0 for left, top, _right, _bottom in boxes), boxes
        for one, other in itertools.combinations(boxes, 2):
            across = one[2] <= other[0] or other[2] <= one[0]
            apart = across or one[3] - LEADING <= other[1] or other[3] - LEADING <= one[1]
            assert apart, (axis, RATES[chart], one, other)


#: what a person sees without scrolling, and whether anything is to be scrolled sideways
FIRST_SCREEN = """({
    text: [...document.querySelectorAll('h1, .finding h3, .finding p')].filter(
        element => element.getBoundingClientRect().bottom <= window.innerHeight).map(element => element.innerText).join('\\n'),
    sideways: document.documentElement.scrollWidth - window.innerWidth,
})"""


def test_one_finding_is_whole_on_the_first_screen(chromium: browser.Browser, tmp_path: pathlib.Path) -> None:
    record = assemble(**fleet_run.registered(8, slow=7))
    finding = next(finding for finding in record["findings"] if finding["severity"] == "error")
    record["findings"] = [finding]
    path = written(tmp_path, run_files(record)["report.html"])
    seen = chromium.open(path, FIRST_SCREEN, (1366, 768)).value
    assert seen["sideways"] <= 0
    for key in ("node", "subject", "evidence", "expected", "cause", "fix"):
        assert finding[key] and finding[key] in seen["text"], key


#: pixels: how far the table of nodes reaches beyond its room, the height of its highest row, and whether all heads stand up
MATRIX = """(() => {
    const table = document.querySelector('.matrix table'), rows = [...table.querySelectorAll('tr')].slice(1);
    return {
        beyond: table.getBoundingClientRect().right - document.body.getBoundingClientRect().right,
        sideways: document.documentElement.scrollWidth - window.innerWidth,
        rows: rows.length, columns: rows[0].children.length, first: rows[0].firstElementChild.innerText,
        highest: Math.max(...rows.map(row => row.getBoundingClientRect().height)),
        heads: [...table.querySelectorAll('th.up')].every(head => head.offsetHeight > head.offsetWidth),
    };
})()"""


def test_thirty_checks_of_64_nodes_need_no_scrolling_sideways(
    chromium: browser.Browser, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = assemble(**fleet_run.registered(64))
    node = dataclasses.replace(sections.NODE)
    checks = [dataclasses.replace(node, name=f"a_long_check_{number}") for number in range(29)]
    monkeypatch.setattr(matrix, "SECTIONS", (node, *checks))
    for number, seen in enumerate(record["nodes"].values()):
        seen.update({check.name: {} for check in checks[number % 3 :]})
    record["nodes"]["gpu0009"]["node"]["observed"]["kernel"] = "6.8.0-60-other"  # so that each row says its own
    bad = {"severity": "error", "evidence": "e", "expected": "", "cause": "", "fix": "", "id": "x", "subject": "s"}
    record["findings"] = [{**bad, "node": "gpu0040", "part": check.name} for check in checks[:6]]
    path = written(tmp_path, run_files(record)["report.html"])
    seen = chromium.open(path, MATRIX, (1400, 900)).value
    assert (seen["rows"], seen["columns"], seen["first"]) == (64, 3 + 31, "gpu0040")
    assert seen["heads"] and seen["sideways"] <= 0 and seen["beyond"] <= 0 and seen["highest"] < 32, seen


def test_a_page_that_asks_and_complains_would_be_seen(chromium: browser.Browser, tmp_path: pathlib.Path) -> None:
    text = "<!DOCTYPE html><img src='http://127.0.0.1:9/x.png'><script>console.error('planted'); nowhere();</script>"
    page = chromium.open(written(tmp_path, text), "7")
    assert page.value == 7 and "http://127.0.0.1:9/x.png" in page.requests
    assert any("planted" in error for error in page.errors) and len(page.errors) >= 2
