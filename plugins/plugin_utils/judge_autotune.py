# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges what the role autotune registered: what was gained, or why the study is not finished. Pure."""

from __future__ import annotations

import shlex
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding

#: how settings found are put into force, by the name of the profile's file
APPLY = {
    "nccl_env.yml": "ansible-playbook gpufabric.cluster.nccl_env -e {at_path}",
    "openmpi-mca-params.conf": "put its lines into Open MPI's openmpi-mca-params.conf on every node: {path}",
}


def judge_autotune(nodes: t.Mapping[str, t.Mapping[str, t.Any]], settings: t.Mapping[str, t.Any]) -> list[Finding]:
    """Findings over the registered results of autotune; one node, the launcher, has one."""
    findings: list[Finding] = []
    for result in nodes.values():
        if result["problem"]:
            findings.append(_unfinished(result))
        elif result["result"]:
            findings.append(_found(result))
        findings += [
            Finding(
                id="node_left_out",
                severity="warning",
                node=entry["node"],
                subject="autotune",
                evidence=f"it took no part: {entry['why']}",
                expected="settings that were measured on all nodes which they are for",
                cause="what is best without this node need not be with it",
                fix="correct that, and run autotune again",
            )
            for entry in result["left_out"]
        ]
    return findings


def _unfinished(result: t.Mapping[str, t.Any]) -> Finding:
    return Finding(
        id="autotune_unfinished",
        severity="error",
        node="",
        subject="autotune",
        evidence=result["problem"],
        expected="a study that is carried out to its comparison",
        cause=f"what was measured until then is kept in {result['directory']}" if result["directory"] else "",
        fix="correct that, and give the same command again",
    )


def _found(result: t.Mapping[str, t.Any]) -> Finding:
    said = result["result"]
    settings = " ".join(f"{name}={value}" for name, value in sorted(said["best"].items())) or "nothing set"
    path = f"{result['directory']}/{result['profile']}"
    return Finding(
        id="autotune_gain" if said["better"] else "autotune_no_gain",
        severity="notice",
        node="",
        subject="autotune",
        evidence=f"{said['text']}; with {settings}" if said["better"] else said["text"],
        expected="the fastest settings of those that were searched",
        cause=f"{len(said['rejected'])} faster settings break other collectives" if said["rejected"] else "",
        fix=APPLY[result["profile"]].format(path=path, at_path=shlex.quote(f"@{path}"))
        if result["profile"]
        else "nothing: nothing was changed",
    )
