# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Puts a run together: what each node showed, what the benchmarks measured, what is judged of it."""

from __future__ import annotations

import dataclasses
import pathlib
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding, worst_first
from ansible_collections.gpufabric.cluster.plugins.module_utils._withheld import withheld
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.sections import NODE, Observation, Section
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.settings import group_key

#: version of run.json; a reader accepts this and all earlier ones
SCHEMA_VERSION = 2

#: under which the role rollback hands on what others registered
HANDED_ON = "given_back"

SCHEMA = pathlib.Path(__file__).parent / "data" / "run_record.schema.json"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """status: pass, fail, or unjudged where something that should have been judged was not (which fails the gate too)."""

    status: str
    text: str

    def as_dict(self) -> dict[str, str]:
        return dataclasses.asdict(self)


def judge_section(
    section: Section,
    results: t.Mapping[str, Observation | None],
    settings_of: t.Mapping[str, t.Mapping[str, t.Any]],
) -> list[Finding]:
    """Findings of one part over all nodes in O(N).

    results: {node: registered result, or None where the task never ran}. Nodes with the same settings are judged
    together, since what is expected of them is the same. A result that is no answer is itself a finding.
    """
    findings = []
    groups: dict[str, dict[str, Observation]] = {}
    for node, result in results.items():
        if result is None or result.get("skipped"):
            continue
        if section.answered(result) or section is NODE:
            groups.setdefault(group_key(settings_of[node]), {})[node] = result
        else:
            findings.append(_not_observed(section, node, result))
    if groups:
        judge = section.load_judge()
        for members in groups.values():
            findings += judge(members, settings_of[next(iter(members))])
    return findings


def _not_observed(section: Section, node: str, result: Observation) -> Finding:
    said = " ".join(str(result.get("msg") or "the task gave no result").split())
    details = " ".join(str(result.get("module_stderr", "")).split())[-300:]
    gone = bool(result.get("unreachable"))
    return Finding(
        id="node_lost" if gone else f"{section.name}_not_observed",
        severity="error",
        node=node,
        subject="SSH" if gone else section.role,
        evidence=" ".join(filter(None, [said, details])),
        expected=f"an answer to the role {section.role}",
        cause="the node answered earlier in this run and then no more" if gone else "",
        fix=f"ansible {node} -m ansible.builtin.ping -vvv"
        if gone
        else f"run the playbook with -vvv{f' --limit {node}' if node else ''}",
    )


def lost_in_the_middle(
    nodes: t.Iterable[str], registered: t.Mapping[str, t.Collection[str]], ran: t.Sequence[str]
) -> list[Finding]:
    """Nodes that answered at first and have no result at all of a part that ran on others: they dropped out on the way.

    registered: {node: names of the parts with any result, a failure too}; ran: parts that some node answered, in order.
    """
    findings = []
    for node in nodes:
        missing = [name for name in ran if name not in registered[node]]
        if missing:
            findings.append(
                Finding(
                    id="node_lost",
                    severity="error",
                    node=node,
                    subject=missing[0],
                    evidence=f"no result of {', '.join(missing)}, while other nodes have one",
                    expected="a result of every part from every node",
                    cause="the node left the run: a task on it failed or the connection broke",
                    fix=f"read this run's output for {node}, then run again with --limit {node}",
                )
            )
    return findings


def cleaned(result: Observation) -> dict[str, t.Any]:
    """A registered result without what Ansible adds to it: arguments, diffs, warnings and internal keys."""
    dropped = (
        "invocation",
        "diff",
        "failed",
        "failed_when_result",
        "ansible_facts",
        "warnings",
        "deprecations",
        "exception",
    )
    kept = {key: value for key, value in result.items() if key not in dropped and not key.startswith("_ansible")}
    seen = kept.get("observed")
    if isinstance(seen, dict) and seen.get("problems"):  # words of programs that failed
        kept["observed"] = {**seen, "problems": withheld(seen["problems"])}
    return {key: _cleaned_deep(value) for key, value in kept.items()} if HANDED_ON in kept else kept


def _cleaned_deep(value: t.Any) -> t.Any:
    """A part that only hands on what other roles registered holds whole results."""
    return {name: cleaned(result) for name, result in value.items()} if isinstance(value, dict) else value


def decide(findings: t.Sequence[Finding], judged: bool, what_was_not: str = "") -> Verdict:
    """The run's verdict: any error fails it; nothing wrong, but nothing judged either, is no pass."""
    errors = worst_first(f for f in findings if f.severity == "error")
    if errors:
        first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        where = " ".join(filter(None, [first.node, first.subject]))
        return Verdict("fail", f"FAIL: {where}: {first.evidence}{more}")
    if not judged:
        return Verdict("unjudged", f"NOT JUDGED: {what_was_not}")
    warnings = sum(f.severity == "warning" for f in findings)
    return Verdict("pass", "PASS" + (f", with {warnings} warning{'s' * (warnings > 1)}" if warnings else ""))
