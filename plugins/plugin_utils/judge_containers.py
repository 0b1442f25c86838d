# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges what ranks find inside their container: one NCCL on all nodes, and the nodes' settings in force there."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import listed
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.merged_findings import NAMED_NODES, merged

#: by node, as _nccl_container.Container tells it
Containers = t.Mapping[str, t.Mapping[str, t.Any]]

CONF = "/etc/nccl.conf"
#: what to add to a prefix by its program, so that a container sees the node's file, and gets the launcher's variables
MOUNTS = {
    "apptainer": f"--bind {CONF}:{CONF}:ro",
    "singularity": f"--bind {CONF}:{CONF}:ro",
    "docker": f"-v {CONF}:{CONF}:ro",
    "podman": f"-v {CONF}:{CONF}:ro",
    "nerdctl": f"-v {CONF}:{CONF}:ro",
    "srun": f"--container-mounts={CONF}:{CONF}:ro",
    "enroot": f"--mount {CONF}:{CONF}",
}
ENVIRONMENTS = {
    "apptainer": "take --cleanenv and --containall out of it",
    "singularity": "take --cleanenv and --containall out of it",
    "docker": "docker hands on what is named only: -e NAME for each variable, those of the MPI or PMIx among them",
    "podman": "add --env-host to it",
    "srun": "take --export out of it",
}


def judge_containers(containers: Containers) -> list[Finding]:
    """Findings over what is behind the command prefix on each node, those that differ in nothing but the node told once."""
    inside = {node: container for node, container in containers.items() if not container["problem"]}
    return _versions(inside) + merged({node: _of_one(node, c) for node, c in inside.items()}, of_all=True)


def notes_of(containers: Containers) -> list[str]:
    """Sentences for the head of a report: that it is the container's NCCL that was read, and which one that is."""
    groups: dict[str, list[str]] = {}
    for node, container in containers.items():
        if not container["problem"]:
            groups.setdefault(_said(container), []).append(node)
    return [
        f"NCCL was read inside the container{f' of {listed(nodes, NAMED_NODES)}' if len(groups) > 1 else ''}: {said}"
        for said, nodes in groups.items()
    ]


def _said(container: t.Mapping[str, t.Any]) -> str:
    version = (
        f"{container['nccl_version']} for CUDA {container['cuda']}"
        if container["nccl_version"]
        else "of unknown version"
    )
    files = f"configured by {' and '.join(container['files'])}" if container["files"] else f"without a {CONF}"
    return f"NCCL {version}, {files} ({' '.join(container['prefix'])})"


def _versions(inside: Containers) -> list[Finding]:
    nodes: dict[str, list[str]] = {}
    for node, container in inside.items():
        if container["nccl_version"]:
            nodes.setdefault(container["nccl_version"], []).append(node)
    if len(nodes) < 2:
        return []
    said = "; ".join(f"{version} on {listed(names, NAMED_NODES)}" for version, names in sorted(nodes.items()))
    return [
        Finding(
            id="container_versions_differ",
            severity="error",
            node="",
            subject="NCCL inside the container",
            evidence=said,
            expected="one version on all nodes",
            cause="the nodes have different images under one name",
            fix="fetch the image anew on all nodes, and name it by its digest in nccl_tests_command_prefix",
        )
    ]


def _of_one(node: str, container: t.Mapping[str, t.Any]) -> list[Finding]:
    program = container["prefix"][0].rpartition("/")[2]
    findings = []
    if not container["nccl_version"]:
        findings.append(
            Finding(
                id="container_nccl_unknown",
                severity="warning",
                node=node,
                subject="NCCL inside the container",
                evidence="the version of the NCCL that the programs load there could not be read"
                + (f" from {container['library']}" if container["library"] else ": ldd names no libnccl.so.2"),
                expected="an image with sh, grep and ldd, whose programs load libnccl.so.2",
                fix="run one of the programs in the image with NCCL_DEBUG=VERSION",
            )
        )
    if not container["passes_environment"]:
        findings.append(
            Finding(
                id="container_hides_environment",
                severity="warning",
                node=node,
                subject="nccl_tests_command_prefix",
                evidence="a variable that the launcher sets is not seen inside the container",
                expected="NCCL_* variables of nccl_tests_environment, NCCL_DEBUG among them, in force for the ranks",
                cause=f"{program} begins with an environment of its own",
                fix=ENVIRONMENTS.get(program, "let it hand on the environment"),
            )
        )
    seen = container["effective"]
    lost = [name for name, value in container["host_conf"].items() if seen.get(name, {}).get("value") != value]
    if lost:
        there = f"its {CONF} is another one" if CONF in container["files"] else f"there is no {CONF}"
        findings.append(
            Finding(
                id="container_misses_conf",
                severity="warning",
                node=node,
                subject=CONF,
                evidence=f"inside the container {there}: {', '.join(lost)} of the node's file {'are' if len(lost) > 1 else 'is'} not in force",
                expected=f"the node's {CONF}",
                cause="a container has a root of its own",
                fix=f"add to nccl_tests_command_prefix: {MOUNTS.get(program, f'a mount of {CONF}')}",
            )
        )
    return findings
