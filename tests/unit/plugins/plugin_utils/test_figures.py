# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""No figure of a report can be typed in: each is computed here again, from the rows in run.json and nothing else."""

from __future__ import annotations

import html.parser
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys
import typing as t

import jsonschema
import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import FACTORS
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.assemble import assemble
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_busbw import judge_busbw
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.record import SCHEMA
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.run_files import run_files
from ansible_collections.gpufabric.cluster.tests.fixtures import fleet_run
from prometheus_client import parser as plain_parser
from prometheus_client.openmetrics import parser as strict_parser

ROOT = pathlib.Path(__file__).parents[4]
GPU_GBS = 450.0
HCA_GBPS = 400.0


class Tables(html.parser.HTMLParser):
    """All tables of a page, as rows of cells' texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[list[list[str]]] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.found.append([])
        elif tag == "tr":
            self.found[-1].append([])
        elif tag in ("td", "th"):
            self.found[-1][-1].append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.found[-1][-1][-1] += data


class Told(t.NamedTuple):
    """A run directory: run.json as read from its text, the other files, and what it was made from."""

    given: dict[str, t.Any]
    record: dict[str, t.Any]
    files: dict[str, str]

    @property
    def runs(self) -> list[dict[str, t.Any]]:
        return list(self.record["benchmark"]["runs"])

    def rows(self) -> list[tuple[dict[str, t.Any], dict[str, t.Any]]]:
        return [(run, row) for run in self.runs for row in run["rows"]]

    def table(self, *header: str) -> list[list[str]]:
        """The rows of all tables of report.html with these columns."""
        tables = [rows for rows in Tables(self.files["report.html"]).found if rows[:1] == [list(header)]]
        return [row for rows in tables for row in rows[1:]]


def told(nodes: int, seed: int) -> Told:
    given = fleet_run.registered(nodes, seed)
    files = run_files(assemble(**given))
    return Told(given, json.loads(files["run.json"]), files)


@pytest.fixture(scope="module", params=[(2, 11), (2, 12), (10, 13)], ids=["two", "two others", "ten"])
def run(request: pytest.FixtureRequest) -> Told:
    return told(*request.param)


def text(value: t.Any) -> str:
    return "None" if value is None else str(value)


def many(run: Told) -> bool:
    return len(run.record["inventory"]) > 8


def test_run_json_is_whole_and_valid(run: Told) -> None:
    jsonschema.validate(run.record, json.loads(SCHEMA.read_text()))
    assembled = assemble(**run.given)
    assembled.pop("logs")
    assert run.record == json.loads(json.dumps(assembled))


def test_verdicts_and_findings_follow_from_run_json_alone(run: Told) -> None:
    verdicts, findings = judge_busbw(run.runs, {}, run.record["nodes"])
    assert json.loads(json.dumps(verdicts)) == run.record["verdicts"]
    kept = [{k: v for k, v in f.items() if k != "part"} for f in run.record["findings"] if f["part"] == "benchmark"]
    assert all(f.as_dict() in kept for f in findings) and len(findings) == len(kept)


def test_each_number_of_a_verdict(run: Told) -> None:
    """The model of docs/judging.md, written out once more."""
    constants = json.loads((SCHEMA.parent / "expectation.json").read_text())
    for (measured, row), verdict in zip(run.rows(), run.record["verdicts"], strict=True):
        nodes, ranks, claim = len(measured["nodes"]), measured["ranks"], measured["transport"]["claimed"]
        rate = GPU_GBS if measured["stage"] == "node" else 8 * HCA_GBPS / 8
        if measured["collective"] == "alltoall" and measured["stage"] != "node":
            rate = HCA_GBPS / 8 * (ranks - 1) / (ranks - ranks // nodes)
        peak = rate * constants["efficiency"]["nccl"][claim]
        steps = 2 * math.ceil(math.log2(ranks))
        latency = constants["latency_us"]["nccl"][claim] + steps * constants["hop_us"]["nccl"][claim]
        moved = row["size_bytes"] * FACTORS[measured["collective"]](ranks)
        expected = moved / (latency / 1e6 + moved / (peak * 1e9)) / 1e9
        busbw, time_us = row["out_of_place"]["busbw_gbs"], row["out_of_place"]["time_us"]
        assert verdict["busbw_gbs"] == busbw and verdict["nodes"] == measured["nodes"]
        assert verdict["line_rate_gbs"] == pytest.approx(rate)
        assert verdict["expected_busbw_gbs"] == pytest.approx(expected)
        assert verdict["utilisation"] == pytest.approx(busbw / rate)
        assert verdict["margin"] == pytest.approx(busbw / expected - 1)
        ok = time_us <= 3 * moved / expected / 1e3 if expected < peak / 2 else busbw >= 0.9 * expected
        assert verdict["status"] == ("pass" if ok else "fail")


def test_tables_of_runs(run: Told) -> None:
    columns = [
        "size",
        "type",
        "redop",
        "time",
        "algbw",
        "busbw",
        "#wrong",
        "in-place time",
        "algbw",
        "busbw",
        "#wrong",
        "least",
        "median",
        "99 %",
    ]
    shown = [(r, row) for r, row in run.rows() if not (many(run) and r["stage"] == "node")]
    expected = []
    for _run, row in sorted_by_group(run, shown):
        first, second = row["out_of_place"], row["in_place"]
        halves = [half[key] for half in (first, second) for key in ("time_us", "algbw_gbs", "busbw_gbs", "wrong")]
        spread = [first["latency"][key] for key in ("min_us", "p50_us", "p99_us")]
        expected.append([text(value) for value in (row["size_bytes"], row["dtype"], row["redop"], *halves, *spread)])
    assert run.table(*columns) == expected


def sorted_by_group(run: Told, rows: t.Sequence[t.Any]) -> list[t.Any]:
    kinds = list(dict.fromkeys((r["collective"], r["stage"]) for r, _row in run.rows()))
    return sorted(rows, key=lambda pair: kinds.index((pair[0]["collective"], pair[0]["stage"])))


def test_bounds_of_many_nodes(run: Told) -> None:
    expected = []
    for collective in dict.fromkeys(r["collective"] for r in run.runs) if many(run) else ():
        alone = [r for r in run.runs if r["collective"] == collective and r["stage"] == "node"]
        for number, size in enumerate(fleet_run.SIZES):
            speeds = {r["nodes"][0]: r["rows"][number]["out_of_place"]["busbw_gbs"] for r in alone}
            slowest, fastest = min(speeds, key=speeds.__getitem__), max(speeds, key=speeds.__getitem__)
            middle = statistics.median(speeds.values())
            values = (size, len(speeds), speeds[slowest], slowest, middle, speeds[fastest], fastest)
            expected.append([text(value) for value in values])
    assert run.table("size", "runs", "slowest", "", "median", "fastest", "") == expected
    markdown = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in run.files["report.md"].splitlines()
        if line.startswith("|")
    ]
    rows = [[e[0], *e[2:]] for e in expected]
    assert [row for row in markdown if row in rows] == rows


def test_tables_of_verdicts_and_loads(run: Told) -> None:
    columns = ("stage", "collective", "on", "size", "busbw", "of line rate", "expected at least", "verdict", "why")
    assert [[row[k] for k in (0, 1, 3, 4, 5, 6, 7, 8)] for row in run.table(*columns)] == [
        [
            text(v[k])
            for k in (
                "stage",
                "collective",
                "size_bytes",
                "busbw_gbs",
                "utilisation",
                "expected_busbw_gbs",
                "status",
                "why",
            )
        ]
        for v in run.record["verdicts"]
    ]
    expected = []
    for shown, _row in sorted_by_group(run, [(r, None) for r in run.runs if not (many(run) and r["stage"] == "node")]):
        for node, delta in shown["deltas"].items():
            ports = [
                f"{port}: " + ", ".join(f"{n} {v}" for n, v in moved.items()) for port, moved in delta["hcas"].items()
            ]
            expected.append([node, text(delta["cpu_busy"]), "; ".join(ports)])
    assert run.table("node", "processors busy", "HCA counters that moved") == expected


def test_charts(run: Told) -> None:
    """Every point of every line: measured rows, expectations, and the bounds of many nodes."""
    drawn = {}
    for match in re.finditer(
        r'Plotly\.newPlot\(\s*"busbw-(\d+)",\s*(\[.*?\]),\s*\{"template"', run.files["report.html"], re.DOTALL
    ):
        for trace in json.loads(match.group(2)):
            drawn[int(match.group(1)), trace["name"]] = dict(zip(trace["x"], trace["y"], strict=True))
    expected: dict[tuple[int, str], dict[int, float]] = {}
    for number, collective in enumerate(dict.fromkeys(r["collective"] for r in run.runs)):
        for measured in (r for r in run.runs if r["collective"] == collective):
            name = f"{measured['stage']}, {measured['transport']['claimed']}"
            if many(run) and measured["stage"] == "node":
                continue
            name += f", {measured['nodes'][0]}" if len(measured["nodes"]) == 1 else ""
            for half, label in (("out_of_place", "out-of-place"), ("in_place", "in-place")):
                expected[number, f"{name}, {label}"] = {
                    row["size_bytes"]: row[half]["busbw_gbs"] for row in measured["rows"]
                }
        for verdict in (v for v in run.record["verdicts"] if v["collective"] == collective):
            line = expected.setdefault((number, f"{verdict['stage']}, {verdict['transport']}, expected at least"), {})
            line[verdict["size_bytes"]] = verdict["expected_busbw_gbs"]
            rate = (number, f"line rate {verdict['line_rate_gbs']:.4g} GB/s ({verdict['stage']})")
            expected[rate] = {size: verdict["line_rate_gbs"] for size in (min(fleet_run.SIZES), max(fleet_run.SIZES))}
        alone = [r for r in run.runs if r["collective"] == collective and r["stage"] == "node"] if many(run) else []
        for which, choose in (("slowest", min), ("median", statistics.median), ("fastest", max)) if alone else ():
            expected[number, f"node, P2P, {which} of {len(alone)}"] = {
                size: choose(r["rows"][k]["out_of_place"]["busbw_gbs"] for r in alone)
                for k, size in enumerate(fleet_run.SIZES)
            }
    assert drawn == expected


def test_metrics_are_valid_and_true(run: Told) -> None:
    """Both readers there are take the text; OpenMetrics' is the strict one."""
    exposition = run.files["metrics.prom"]
    strict = list(strict_parser.text_string_to_metric_families(exposition))
    samples = [
        (s.name, s.labels, s.value)
        for family in plain_parser.text_string_to_metric_families(exposition)
        for s in family.samples
    ]
    assert samples == [(s.name, s.labels, s.value) for family in strict for s in family.samples]
    assert all(s.timestamp is None for family in strict for s in family.samples), (
        "the textfile collector refuses time stamps"
    )
    values = {(name, *sorted(labels.items())): value for name, labels, value in samples}
    assert len(values) == len(samples), "no sample twice"
    largest = fleet_run.SIZES[-1]
    seen = [(labels, value) for name, labels, value in samples if name == "gpufabric_busbw_bytes_per_second"]
    rows = [(r, row) for r, row in run.rows() if row["size_bytes"] == largest]
    assert len(seen) == len(rows)
    for (labels, value), (measured, row) in zip(seen, rows, strict=True):
        assert value == pytest.approx(row["out_of_place"]["busbw_gbs"] * 1e9)
        assert labels["node"] == (measured["nodes"][0] if measured["stage"] == "node" else "")
    for severity in ("error", "warning", "notice"):
        number = sum(f["severity"] == severity for f in run.record["findings"])
        assert values["gpufabric_findings", ("severity", severity)] == number
    assert values["gpufabric_run_verdict", ("status", run.record["verdict"]["status"])] == 1.0
    for node in run.record["inventory"]:
        busiest = max(r["cpu_utilisation"][node] for r in run.runs if node in r["cpu_utilisation"])
        assert values["gpufabric_node_cpu_busy_ratio", ("node", node)] == busiest


def test_other_rows_give_other_figures() -> None:
    """The one way in which all tests above could pass with typed-in numbers."""
    first, second = (told(2, seed).files["report.html"] for seed in (11, 12))
    numbers = [set(re.findall(r'<td class="n">(\d+\.\d+)</td>', page)) for page in (first, second)]
    common = numbers[0] & numbers[1]
    assert len(numbers[0]) > 300 and len(common) < 0.1 * len(numbers[0]), "only expectations are the same"


def test_a_thousand_nodes_are_judged_and_reported() -> None:
    """8,192 ranks, each node alone and all together: in under 10 s of processor time and 1 GiB, and the slow one is named."""
    done = subprocess.run(
        [sys.executable, fleet_run.__file__, "1024"], capture_output=True, text=True, timeout=600, check=True,
        env={"PYTHONPATH": str(ROOT / "collections"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    cost = json.loads(done.stdout)
    assert cost["ranks"] == 8192
    assert cost["judge_s"] + cost["report_s"] < 10.0 and cost["most_mib"] < 1024, cost
    assert cost["verdict"]["text"].startswith("FAIL: gpu0007") and cost["ids"] == ["busbw_below_expected gpu0007"]
    assert cost["bytes"]["report.html"] < 8e6, "a page that a browser opens"
