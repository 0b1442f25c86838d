# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges what the role rollback hands on: what could not be given back, and what was left as it is."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding

#: what the answer of each part's module always holds, and a failure never
ANSWERS = {
    "nccl_tests": "released",
    "nccl_env": "outcomes",
    "roce_qos": "settings",
    "rdma": "outcomes",
    "kernel_tuning": "keys_given_back",
}

#: states of a kernel parameter or an interface's setting that is as it was
GIVEN_BACK = ("restored", "already", "unsupported")


def judge_rollback(nodes: t.Mapping[str, t.Mapping[str, t.Any]], settings: t.Mapping[str, t.Any]) -> list[Finding]:
    """Findings over {node: {given_back: {part: registered result of the part's entry point rollback}}}."""
    findings: list[Finding] = []
    for node, observation in nodes.items():
        for part in settings["rollback_parts"]:
            findings += _judge_part(node, part, observation["given_back"][part])
    return findings


def _judge_part(node: str, part: str, result: t.Mapping[str, t.Any]) -> list[Finding]:
    if result.get("skipped") or result.get("held"):
        return [_held(node, part, str(result.get("held", "")))]
    if ANSWERS[part] not in result:
        said = " ".join(str(result.get("msg") or "the task gave no result").split())
        return [_failed(node, part, part, said)]
    found = [_kept(node, part, file["path"]) for file in _files(result) if file["status"] == "changed_since"]
    for key in result.get("keys_given_back", []):
        if key["status"] not in GIVEN_BACK:
            found.append(_failed(node, part, key["key"], f"{key['status']}: {key['evidence'] or key['value']}"))
    for entry in result.get("settings", []):
        if entry["status"] not in GIVEN_BACK:
            found.append(
                _failed(node, part, f"{entry['interface']} {entry['setting']}", f"{entry['status']}: {entry['why']}")
            )
    for run_id, released in (result.get("released") or {}).items():
        found += [_failed(node, part, f"run {run_id}", left) for left in released["left"]]
    return found


def _files(result: t.Mapping[str, t.Any]) -> list[t.Mapping[str, str]]:
    return [*result.get("outcomes", []), *result.get("files", [])]


def _held(node: str, part: str, why: str) -> Finding:
    return Finding(
        id="rollback_held",
        severity="warning",
        node=node,
        subject=part,
        evidence=f"nothing was given back{': ' + why if why else ', since the node is at work'}",
        expected="an idle node",
        cause="a change now would disturb that work",
        fix="wait or drain it, or say -e gpufabric_busy=ignore",
    )


def _failed(node: str, part: str, subject: str, evidence: str) -> Finding:
    return Finding(
        id="rollback_failed",
        severity="error",
        node=node,
        subject=subject,
        evidence=evidence,
        expected="what was there before the first run",
        cause="it stays on record, so that the next rollback tries again",
        fix=f'ansible-playbook gpufabric.cluster.rollback --limit {node},localhost -e \'{{"rollback_parts": ["{part}"]}}\'',
    )


def _kept(node: str, part: str, path: str) -> Finding:
    return Finding(
        id="rollback_file_changed",
        severity="warning",
        node=node,
        subject=path,
        evidence=f"it was edited after the role {part} wrote it, and was left as it is",
        expected="the text that the role wrote",
        cause="what somebody wrote since would be lost",
        fix=f"look at {path}, and remove it by hand if it is not wanted",
    )
