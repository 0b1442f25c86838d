# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges what run_lock answered: one finding a run that was in the way, however many nodes it holds."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.module_utils._run_lock import TTL_S


def judge_run_lock(nodes: t.Mapping[str, t.Mapping[str, t.Any]], settings: t.Mapping[str, t.Any]) -> list[Finding]:
    """Findings over {node: registered result of run_lock}."""
    held: dict[str, list[str]] = {}
    findings = []
    for node, result in nodes.items():
        lock = result["lock"]
        if lock["status"] == "held":
            held.setdefault(lock["holder"]["run_id"], []).append(node)
        elif lock["status"] == "failed":
            findings.append(_not_taken(node, lock["evidence"]))
    return findings + [_held(names, nodes[names[0]]["lock"]) for names in held.values()]


def _held(names: t.Sequence[str], lock: t.Mapping[str, t.Any]) -> Finding:
    holder = lock["holder"]
    others = f" and {len(names) - 1} more of these nodes" if len(names) > 1 else ""
    return Finding(
        id="run_locked",
        severity="error",
        node=names[0],
        subject="run lock",
        evidence=(
            f"run {holder['run_id']} of {holder['user'] or 'somebody'} on {holder['host'] or 'an unknown host'} holds {names[0]}{others}"
            f" since {holder['since'] or 'an unknown time'}; it last showed life {lock['seconds_ago']:.0f} s ago"
        ),
        expected="one run at a time that changes or loads a node",
        cause=f"two runs would undo each other's changes and slow each other down, so this one did nothing; a dead run's lock ends {TTL_S:.0f} s"
        " after its last sign of life",
        fix="wait for that run to end; where it is known to be dead: -e gpufabric_lock=break",
    )


def _not_taken(node: str, why: str) -> Finding:
    return Finding(
        id="run_lock_not_taken",
        severity="warning",
        node=node,
        subject="run lock",
        evidence=f"the node could not be locked: {why}",
        expected="a lock that keeps other runs away",
        cause="the run went on without it; another one may start meanwhile",
        fix="run as a user that may write /run/gpufabric on the node, or let Ansible become root",
    )
