# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What one call of autotune is about, from the benchmark's plan and what the nodes showed. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import FACTORS
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import tune_objective, tune_settings
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import load_catalogue
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_tests_plan import NodeMeans
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search_space import (
    Settings,
    Space,
    guide_for,
    space_for,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_objective import Objective, Part
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_study import CURRENT, Budget

#: the size at which further collectives are tried, in bytes: large enough for every protocol's pipeline
OTHERS_BYTES = 1 << 20

#: numbers among the role's settings
TYPES: dict[str, t.Callable[[t.Any], t.Any]] = {
    "trials": int, "minutes": float, "timeout_s": float, "hopeless": float, "iterations": int, "warmup": int,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Plan:
    """template: the benchmark's own run, into which sizes and settings are put; in_force: what nodes set of the space."""

    backend: str
    transport: str
    nodes: tuple[str, ...]
    versions: t.Mapping[str, str]
    space: Space
    objective: Objective
    starts: t.Mapping[str, Settings]
    in_force: Settings
    others: tuple[Part, ...]
    budget: Budget
    template: t.Mapping[str, t.Any]
    iterations: int
    warmup: int
    fabric: str
    study: str


def make_plan(
    planned: t.Mapping[str, t.Any],
    nodes: t.Mapping[str, NodeMeans],
    nccl: t.Mapping[str, t.Any],
    settings: t.Mapping[str, t.Any],
    ompi_info: str,
) -> Plan:
    """planned: the result of nccl_tests_plan; nccl: ``observed`` of nccl_env_info on the launching node, with ``asked_version``
    where the role was told it; settings: the role's variables without their prefix; ompi_info: what that program printed.

    ValueError says in one sentence what of the settings cannot be.
    """
    backend, here = planned["backend"], planned["here"]
    transport = settings["transport"]
    if transport == "auto":
        transport = tune_settings.transport_of(list(nodes.values()), backend)
    if (transport == tune_settings.MPI) != (backend == "mpi"):
        raise ValueError(f"autotune_transport is {transport!r}, which the backend {backend} does not use")
    version = _version(nccl)
    space = space_for(transport, version, settings["debug_variables"], settings["leave_out"])
    if backend == "mpi":
        in_force = tune_settings.mpi_in_force(ompi_info, space)
    else:
        in_force = tune_settings.nccl_in_force(nccl, space)
        names = {knob.name for knob in space.knobs}
        template_environment = planned["runs"][0]["environment"]
        in_force.update({name: str(value) for name, value in template_environment.items() if name in names})
    template = planned["runs"][0]
    ranks = len(nodes) * int(template.get("ranks_per_node", 1))
    if settings["workload"]:
        objective = tune_objective.for_workload(settings["workload"], ranks, int(template.get("ranks_per_node", 1)))
    else:
        objective = tune_objective.for_busbw(settings["collective"], settings["sizes"])
    programs = _programs(nodes[here], backend)
    _demand_programs(objective, programs, here)
    measured = {part.collective for part in objective.parts}
    others = [name for name in settings["check_collectives"] if name not in measured and name in programs]
    mpi = str(nodes[here].tools["mpirun"].get("version", ""))
    versions = {"mpi": mpi} if backend == "mpi" else {"nccl": version, "mpi": mpi}
    fabric = tune_settings.fingerprint([_about(node) for node in nodes.values()], {"transport": transport, **versions})
    starts = {"default": {}, CURRENT: in_force, **({"guide": guide_for(transport)} if guide_for(transport) else {})}
    return Plan(
        backend=backend,
        transport=transport,
        nodes=tuple(nodes),
        versions=versions,
        space=space,
        objective=objective,
        starts=starts,
        in_force=in_force,
        others=tuple(Part(name, OTHERS_BYTES, OTHERS_BYTES, probe=True) for name in others),
        budget=Budget(settings["trials"], settings["minutes"], settings["timeout_s"], settings["hopeless"]),
        template=template,
        iterations=settings["iterations"],
        warmup=settings["warmup"],
        fabric=fabric,
        study=tune_settings.study_name(fabric, objective.as_dict(), space),
    )


def typed(settings: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The role's settings in their types, whatever templates made of them. ValueError names one that cannot be read."""
    made = dict(settings)
    for name, kind in TYPES.items():
        try:
            made[name] = kind(settings[name])
        except (TypeError, ValueError):
            raise ValueError(f"autotune_{name} is {settings[name]!r}, and a number is expected") from None
    made["debug_variables"] = str(settings["debug_variables"]).lower() in ("true", "yes", "1")
    return made


def _version(nccl: t.Mapping[str, t.Any]) -> str:
    """Of the NCCL that ranks load; without one the newest that is known, as the role nccl_env has it."""
    library = nccl.get("library") or {}
    return str(nccl.get("asked_version") or library.get("version") or load_catalogue().newest)


def _programs(node: NodeMeans, backend: str) -> t.Collection[str]:
    return FACTORS if backend == "mpi" else node.tools["programs"]


def _demand_programs(objective: Objective, programs: t.Collection[str], here: str) -> None:
    missing = sorted({part.collective for part in objective.parts} - set(programs))
    if missing:
        raise ValueError(
            f"{here} has no program for {', '.join(missing)}; it has {', '.join(sorted(programs)) or 'none'}"
        )


def _about(node: NodeMeans) -> dict[str, t.Any]:
    """What of a node makes it another fabric when it changes."""
    hcas = [f"{port['device']} {port['link_layer']} {port['rate_gbps']}" for port in node.active_hcas]
    return {"name": node.name, "gpus": node.gpus, "hcas": hcas}
