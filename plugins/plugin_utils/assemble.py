# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The whole run record from what the roles registered: one pure function, so that a test can feed it any fleet."""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding, worst_first
from ansible_collections.gpufabric.cluster.plugins.module_utils._withheld import withheld
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.benchmark import benchmark_part
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.record import (
    SCHEMA_VERSION,
    cleaned,
    decide,
    judge_section,
    lost_in_the_middle,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.sections import (
    BENCHMARK,
    LOGS,
    NODE,
    SECTIONS,
    Observation,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.shared_findings import fold_shared
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.version import COLLECTION_VERSION

#: the part of a run that looks for differences between nodes
MESH = "mesh"
#: the part whose settings say which HCAs carry the benchmark
RDMA = "rdma"

#: what stands for a node that never came into the play
NO_ANSWER: Observation = {"unreachable": True, "msg": "the node left the play before its first answer"}


def assemble(
    inputs: t.Mapping[str, t.Any],
    results: t.Mapping[str, t.Mapping[str, Observation | None]],
    settings: t.Mapping[str, t.Mapping[str, t.Mapping[str, t.Any]]],
    about: t.Mapping[str, t.Any],
    logs: Observation | None = None,
) -> dict[str, t.Any]:
    """run.json as a mapping (data/run_record.schema.json), plus ``logs``: {file name: text}, which are files of their own.

    inputs: the result of check_inputs. results: {section: {node: registered result or None}}.
    settings: {section: {node: {public variable: value}}}. about: versions, end of the run, check_mode.
    logs: the registered result of diagnose_logs, None where none were read.
    """
    nodes = list(inputs["nodes"])
    asked = [node for node in nodes if node not in set(inputs["bad_nodes"])]
    part_of = {Finding.from_dict(entry): "inputs" for entry in inputs["findings"]}
    for section in SECTIONS:
        absent = NO_ANSWER if section is NODE else None
        registered = {node: results[section.name].get(node) or absent for node in asked}
        part_of.update(dict.fromkeys(judge_section(section, registered, settings[section.name]), section.name))
    observed = {
        node: {s.name: cleaned(r) for s in SECTIONS if (r := results[s.name].get(node)) and s.answered(r)}
        for node in nodes
    }
    ran = [s.name for s in SECTIONS if s is not NODE and any(s.name in have for have in observed.values())]
    have = {node: {s.name for s in SECTIONS if results[s.name].get(node)} for node in asked}
    lost = lost_in_the_middle([node for node in asked if NODE.name in observed[node]], have, ran)
    part_of.update({finding: finding.subject for finding in lost})
    said = next((r.get("said") or {} for r in results[BENCHMARK.name].values() if r and "runs" in r), {})
    if said:
        measured = {node: {**values, **said} for node, values in settings[BENCHMARK.name].items()}
        settings = {**settings, BENCHMARK.name: measured}
    of_both = {node: {**settings[RDMA][node], **values} for node, values in settings[BENCHMARK.name].items()}
    part = benchmark_part(results[BENCHMARK.name], of_both, observed)
    part_of.update(dict.fromkeys(part.findings, BENCHMARK.name))
    part_of.update(dict.fromkeys(judge_section(LOGS, {"": logs}, {"": {}}), LOGS.name))
    read = logs["logs"]["files"] if logs is not None and LOGS.answered(logs) else []
    part_of = fold_shared(part_of, asked, seeks_faults=MESH in ran)
    findings = worst_first(part_of)
    judged = bool(ran) or bool(part.verdicts) or any(file["lines"] for file in read)
    nothing = "no node gave a result" + ("" if logs is None else ", and no log holds a line that could be read")
    verdict = decide(findings, judged, nothing)
    return {
        "schema_version": SCHEMA_VERSION,
        "collection_version": COLLECTION_VERSION,
        "run_id": inputs["run_id"],
        "started": inputs["started"],
        **about,
        "inventory": nodes,
        "settings": {section: withheld(_distinct(by_node)) for section, by_node in settings.items()},
        "nodes": observed,
        "log_files": withheld(read),
        "benchmark": part.benchmark,
        "verdicts": part.verdicts,
        "findings": [withheld({**finding.as_dict(), "part": part_of[finding]}) for finding in findings],
        "notes": part.notes,
        "verdict": withheld(verdict.as_dict()),
        "logs": part.logs,
    }


def _distinct(by_node: t.Mapping[str, t.Mapping[str, t.Any]]) -> list[dict[str, t.Any]]:
    """[{nodes, values}]: nodes with equal settings stand together."""
    groups: dict[str, dict[str, t.Any]] = {}
    for node, values in by_node.items():
        group = groups.setdefault(
            json.dumps(values, sort_keys=True, default=str), {"nodes": [], "values": dict(values)}
        )
        group["nodes"].append(node)
    return list(groups.values())
