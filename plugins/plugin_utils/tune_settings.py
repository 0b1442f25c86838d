# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Between autotune's settings and what nodes have and ranks are given: what is in force, the fabric, a run, a profile. Pure."""

from __future__ import annotations

import hashlib
import json
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_tests_plan import NodeMeans
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search_space import Settings, Space
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.version import COLLECTION_VERSION

MPI = "mpi_tcp"

#: a line of `ompi_info --parsable` for one parameter
_PARAMETER = re.compile(r"^mca:btl:tcp:param:(\w+):(value|source):(.*)$", re.MULTILINE)

#: what every rank says for the proof of its transport; only the first trial needs it, and the rest would fill logs
_TALK = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")


def transport_of(nodes: t.Sequence[NodeMeans], backend: str) -> str:
    """mpi_tcp, nvlink (one node), infiniband, roce or socket: what the nodes' HCAs say; the first trial proves it."""
    if backend == "mpi":
        return MPI
    if len(nodes) < 2:
        return "nvlink"
    if not all(node.active_hcas for node in nodes):
        return "socket"
    layers = {str(port["link_layer"]) for node in nodes for port in node.active_hcas}
    return "infiniband" if layers == {"InfiniBand"} else "roce"


def contradiction(transport: str, proven: str) -> str:
    """Why settings for *transport* are not worth a search where a run was proven to use another, "" where it fits."""
    wanted = {"socket": "Socket", "infiniband": "IB", "roce": "IB", "nvlink": "P2P", MPI: "tcp"}[transport]
    if not proven or wanted in proven.split("+"):
        return ""
    return (
        f"the benchmark used {proven} where {wanted} was expected: repair that first (playbook diagnose), "
        "or say with autotune_transport what is meant"
    )


def mpi_in_force(ompi_info: str, space: Space) -> dict[str, str]:
    """Open MPI's parameters that files or the environment set, of those that are searched, from `ompi_info --parsable`."""
    said: dict[str, dict[str, str]] = {}
    for name, key, value in _PARAMETER.findall(ompi_info):
        said.setdefault(name, {})[key] = value
    knobs = {knob.name for knob in space.knobs}
    return {n: s["value"] for n, s in said.items() if n in knobs and s.get("source", "default") != "default"}


def nccl_in_force(observed: t.Mapping[str, t.Any], space: Space) -> dict[str, str]:
    """NCCL's variables that nodes' files or environments set, of those that are searched; observed: nccl_env_info's."""
    knobs = {knob.name for knob in space.knobs}
    found: dict[str, str] = {}
    for way in observed.get("ways", {}).values():
        found.update({name: str(entry["value"]) for name, entry in way["effective"].items() if name in knobs})
    return found


def explicit(settings: Settings, in_force: Settings, space: Space) -> dict[str, str]:
    """What a rank must be told so that just *settings* hold: what files of the nodes set is unset by its default's value."""
    unset = {knob.name: knob.unset for knob in space.knobs if knob.name in in_force and knob.name not in settings}
    return {**unset, **settings}


def as_run(
    template: t.Mapping[str, t.Any], changes: t.Mapping[str, t.Any], told: Settings, talk: bool
) -> dict[str, t.Any]:
    """A run of the module nccl_tests: the plan's own one with other sizes and with settings. talk: prove the transport."""
    run = {**template, **changes, "check": True}
    if template["backend"] == "mpi":
        return {**run, "mca": {**template["mca"], **told}}
    environment = {k: v for k, v in template["environment"].items() if talk or k not in _TALK}
    return {**run, "environment": {**environment, **told}}


def fingerprint(nodes: t.Sequence[t.Mapping[str, t.Any]], about: t.Mapping[str, t.Any]) -> str:
    """A short name of a fabric. nodes: {name, gpus: [name], hcas: [{device, rate_gbps}]}; about: versions and transport."""
    text = json.dumps({"nodes": sorted(nodes, key=lambda node: str(node["name"])), **about}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def study_name(fabric: str, objective: t.Mapping[str, t.Any], space: Space) -> str:
    """One study for each fabric and question: scores of different ones are not comparable."""
    asked = [objective, [[knob.name, knob.values] for knob in space.knobs]]
    return f"{fabric}-{hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]}"


def profile(best: Settings, in_force: Settings, variables: Settings, transport: str, gain: str) -> tuple[str, str]:
    """(file name, text) of what makes the best settings permanent: variables for the role nccl_env, or Open MPI's parameters.

    variables: nccl_env_variables as they are now, which stay. What is in force and not among the best is unset by null.
    """
    head = f"# Written by autotune of gpufabric.cluster {COLLECTION_VERSION}: {gain}.\n"
    if transport == MPI:
        lines = "".join(f"{name} = {value}\n" for name, value in sorted(best.items()))
        gone = "".join(f"# without {name}\n" for name in sorted(set(in_force) - set(best)))
        return "openmpi-mca-params.conf", head + lines + gone
    merged: dict[str, str | None] = {**variables, **dict.fromkeys(sorted(set(in_force) - set(best))), **best}
    lines = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in sorted(merged.items()))
    return "nccl_env.yml", f"{head}---\nnccl_env_variables:\n{lines}"
