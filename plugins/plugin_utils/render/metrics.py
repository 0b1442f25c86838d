# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""metrics.prom: the run for Prometheus, by way of node_exporter's textfile collector.

The text is valid in both of the formats that readers have: OpenMetrics 1.0 (families whole, # EOF) and Prometheus 0.0.4, which is what
the textfile collector reads (gauges only, no time stamps, no unit lines).
"""

from __future__ import annotations

import collections
import datetime
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.matrix import node_matrix

Record = t.Mapping[str, t.Any]
Samples = t.Iterable[tuple[dict[str, t.Any], float]]

STATUSES = ("pass", "fail", "unjudged")
SEVERITIES = ("error", "warning", "notice")

#: labels by which a measured series is told from others
SERIES = ("stage", "collective", "rail", "transport")
#: GB/s in bytes a second, the base unit of metrics
GIGA = 1e9


def render_metrics(record: Record) -> str:
    """The exposition of one run record. Of each measured series the largest size is told: more would be a series a size."""
    families: list[tuple[str, str, Samples]] = [
        ("run_info", "The run that the other metrics are of.", [(_about(record), 1.0)]),
        ("run_finished_timestamp_seconds", "When the run was finished.", [({}, _seconds(record["finished"]))]),
        ("run_verdict", "The run as a whole: 1 for its status.", _verdict(record)),
        ("findings", "Findings of the run.", _findings(record)),
        ("node_findings", "Findings on a node, where there are any.", _node_findings(record)),
        (
            "check_ok",
            "A part of the run on a node: 0 with an error, else 1; absent where it was not observed.",
            _checks(record),
        ),
        ("points", "Measured sizes by verdict.", _points(record)),
        *_measured(record),
        ("node_cpu_busy_ratio", "Busy share of the processors in the busiest run.", _processors(record)),
    ]
    lines = [line for name, text, samples in families for line in _family(f"gpufabric_{name}", text, samples)]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _family(name: str, text: str, samples: Samples) -> list[str]:
    lines = [f"{name}{_labels(labels)} {value!r}" for labels, value in samples]
    return [f"# HELP {name} {text}", f"# TYPE {name} gauge", *lines] if lines else []


def _labels(labels: t.Mapping[str, t.Any]) -> str:
    pairs = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", " ")


def _about(record: Record) -> dict[str, str]:
    return {key: str(record[key]) for key in ("run_id", "collection_version", "ansible_core")}


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


def _verdict(record: Record) -> Samples:
    return [({"status": status}, float(record["verdict"]["status"] == status)) for status in STATUSES]


def _findings(record: Record) -> Samples:
    count = collections.Counter(finding["severity"] for finding in record["findings"])
    return [({"severity": severity}, float(count[severity])) for severity in SEVERITIES]


def _node_findings(record: Record) -> Samples:
    count = collections.Counter((f["node"], f["severity"]) for f in record["findings"] if f["node"])
    return [({"node": node, "severity": severity}, float(number)) for (node, severity), number in count.items()]


def _checks(record: Record) -> Samples:
    return [
        ({"node": node, "check": part}, float(cell.state != "error"))
        for node, cells in node_matrix(record).items()
        for part, cell in cells.items()
        if cell.state != "not observed"
    ]


def _points(record: Record) -> Samples:
    count = collections.Counter(verdict["status"] for verdict in record["verdicts"])
    return [({"status": status}, float(count[status])) for status in STATUSES] if record["verdicts"] else []


def _measured(record: Record) -> list[tuple[str, str, Samples]]:
    largest: dict[tuple[str, ...], Record] = {}
    for verdict in record["verdicts"]:
        alone = verdict["nodes"][0] if len(verdict["nodes"]) == 1 else ""
        key = (*(str(verdict[name]) for name in SERIES), alone)
        if verdict["busbw_gbs"] is not None and verdict["size_bytes"] >= largest.get(key, verdict)["size_bytes"]:
            largest[key] = verdict
    series = [
        ({**dict(zip((*SERIES, "node"), key, strict=True)), "size_bytes": verdict["size_bytes"]}, verdict)
        for key, verdict in largest.items()
    ]

    def samples(name: str, unit: float) -> Samples:
        return [(labels, verdict[name] * unit) for labels, verdict in series if verdict.get(name) is not None]

    return [
        ("busbw_bytes_per_second", "Bus bandwidth at the largest size.", samples("busbw_gbs", GIGA)),
        ("busbw_expected_bytes_per_second", "What was expected of it at least.", samples("expected_busbw_gbs", GIGA)),
        ("busbw_utilisation_ratio", "Its share of the line rate.", samples("utilisation", 1.0)),
    ]


def _processors(record: Record) -> Samples:
    busiest: dict[str, float] = {}
    for run in record["benchmark"].get("runs", []):
        for node, busy in run.get("cpu_utilisation", {}).items():
            if busy is not None:
                busiest[node] = max(busy, busiest.get(node, 0.0))
    return [({"node": node}, float(busy)) for node, busy in busiest.items()]
