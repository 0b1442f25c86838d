# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Between isolate's launches and the runs of nccl_tests: what is started for a launch, and what its results say. Pure."""

from __future__ import annotations

import dataclasses
import statistics
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._lease import DIRECTORY
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_tests_plan import (
    DEBUG_ENVIRONMENT,
    NodeMeans,
    mpi_transport,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.pairing import Launch

#: counters that say something is wrong when they move during a measurement
TELLING = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards", "local_ack_timeout_err",
    "packet_seq_err", "out_of_sequence", "rnr_nak_retry_err", "roce_adp_retrans", "rcvd_seq_err", "retry_exceeded_err",
    "completer_retry_err", "rx_dropped", "rx_errors", "tx_dropped", "tx_errors", "rx_crc_errors",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Means:
    """With what isolate measures. nodes: as nccl_tests_plan has them; rails: the network of each rail, for the mpi backend;
    control: networks of the control addresses, for nodes without rails. at_once: whether groups without a common node may be
    measured at the same time."""

    backend: str
    here: str
    run_id: str
    nodes: t.Mapping[str, NodeMeans]
    rails: tuple[str, ...]
    control: tuple[str, ...]
    iterations: int
    warmup: int
    collective: str = "all_reduce"
    environment: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    at_once: bool = True


@dataclasses.dataclass(frozen=True)
class Planned:
    """One run and whom it measures: one group, or in a split run several, in the order of their ranks."""

    launch: Launch
    groups: tuple[tuple[str, ...], ...]
    run: t.Mapping[str, t.Any]


def rails_of(nodes: t.Mapping[str, NodeMeans]) -> tuple[str, ...]:
    """Networks on HCAs' interfaces that every node has, in the order of the first node's."""
    every = [node.rails for node in nodes.values()]
    return tuple(network for network in every[0] if all(network in rails for rails in every)) if every else ()


def runs_of(launches: t.Sequence[Launch], means: Means) -> list[Planned]:
    """A run for every launch that is split between its groups by NCCL_TESTS_SPLIT, else one for every group."""
    planned = []
    for launch in launches:
        if "NCCL_TESTS_SPLIT" in dict(launch.env) and len(launch.groups) > 1:
            groups = _launcher_first(launch.groups, means.here)
            planned.append(Planned(launch, groups, _split_run(launch, groups, means)))
        else:
            planned += [Planned(launch, (group,), _run(launch, group, means)) for group in launch.groups]
    return planned


def can_split(means: Means, launcher: str) -> bool:
    """Whether one launch can measure several groups: nccl-tests with MPI that tells each process's times (-I and -J), on nodes
    alike, started by mpirun with the ranks in the order of its host file."""
    program = means.nodes[means.here].tools.get("programs", {}).get(means.collective, {})
    letters = set(program.get("letters", ""))
    alike = len({node.gpus for node in means.nodes.values()}) == 1
    return (
        means.backend == "nccl"
        and launcher == "mpirun"
        and bool(program.get("mpi"))
        and {"I", "J"} <= letters
        and alike
    )


def _launcher_first(groups: t.Sequence[tuple[str, ...]], here: str) -> tuple[tuple[str, ...], ...]:
    """The launcher's group first: a launch begins with the launcher in any case, and groups are counted by rank."""
    return tuple(sorted(groups, key=lambda group: here not in group))


def _split_run(launch: Launch, groups: t.Sequence[tuple[str, ...]], means: Means) -> dict[str, t.Any]:
    nodes = [name for group in groups for name in sorted(group, key=lambda name: name != means.here)]
    run = _run(launch, nodes, means)
    # Each node's group may be one node alone; still it is one launch over all of them.
    return {**run, "stage": "cluster", "alone": False, "per_iteration": True}


def _run(launch: Launch, group: t.Sequence[str], means: Means) -> dict[str, t.Any]:
    alone = len(group) == 1
    base: dict[str, t.Any] = {
        "collective": means.collective,
        "stage": "node" if alone else "cluster",
        "backend": means.backend,
        "nodes": list(group),
        "min_bytes": str(launch.size),
        "max_bytes": str(launch.size),
        "iterations": means.iterations,
        "warmup": means.warmup,
        "check": False,
        "timeout_s": launch.timeout_s,
        "alone": alone and means.backend == "nccl",
        "beside": means.at_once,
        "rail": "" if launch.rail is None else str(launch.rail),
    }
    if means.backend == "mpi":
        networks = means.rails or means.control
        chosen = [networks[launch.rail]] if launch.rail is not None else list(networks)
        return {**base, **mpi_transport("tcp", chosen, [means.nodes[name] for name in group])}
    gpus = min(means.nodes[name].gpus for name in group)
    log = {"NCCL_DEBUG_FILE": f"{DIRECTORY}/{means.run_id}/work/nccl-%h-%p.log"}
    environment = {**DEBUG_ENVIRONMENT, **log, **means.environment, **dict(launch.env)}
    ranks = {"gpus_per_rank": gpus} if alone else {"ranks_per_node": gpus}
    return {**base, **ranks, "environment": environment, "claim": "P2P" if alone else ""}


def measurements_of(
    planned: t.Sequence[Planned],
    shaped: t.Sequence[t.Mapping[str, t.Any]],
    reports: t.Sequence[t.Mapping[str, t.Any] | None] = (),
) -> list[dict[str, t.Any]]:
    """What isolate.observe() takes. shaped: the runs of the record (benchmark_result.shape_run), one for each planned one;
    reports: nccl-tests' own JSON of each, which a split run is read from."""
    measured = []
    for number, (one, run) in enumerate(zip(planned, shaped, strict=False)):
        split = len(one.groups) > 1
        speeds = _split_busbw(one, run, reports[number] if number < len(reports) else None) if split else [_busbw(run)]
        for group, speed in zip(one.groups, speeds, strict=True):
            measured.append(
                {
                    "launch": one.launch.id,
                    "group": list(group),
                    "busbw": speed,
                    "seconds": run["seconds"],
                    "notes": [note for note in _notes(run) if not split or _concerns(note, group)],
                }
            )
    return measured


def _concerns(note: str, group: t.Sequence[str]) -> bool:
    return note.split(" ")[0] in group or note.startswith("transport ")


def _split_busbw(one: Planned, run: t.Mapping[str, t.Any], report: t.Mapping[str, t.Any] | None) -> list[float | None]:
    """GB/s of each group of an all_reduce, from the times that each process took for each iteration: the median over the
    iterations of the group's slowest process. What the program prints is over all groups together, and says nothing of one."""
    nothing: list[float | None] = [None] * len(one.groups)
    if run["failure"] or not report:
        return nothing
    try:
        row = report["results"][-1]
        times = row["out_of_place_per_iter"]["per_process_max_times_us"]
        size = int(row["size"])
    except (KeyError, IndexError, TypeError, ValueError):
        return nothing
    each, rest = divmod(len(times), len(one.groups))
    if rest or not each or not all(times):
        return nothing
    speeds: list[float | None] = []
    for number in range(len(one.groups)):
        slowest = [max(values) for values in zip(*times[number * each : (number + 1) * each], strict=True)]
        middle = statistics.median(slowest)
        speeds.append(size / middle / 1e3 * 2 * (each - 1) / each if middle > 0 and each > 1 else None)
    return speeds


def _busbw(run: t.Mapping[str, t.Any]) -> float | None:
    """GB/s of the one size; None where the run failed or is not whole."""
    if run["failure"] or not run["completed"] or not run["rows"]:
        return None
    value = run["rows"][-1]["out_of_place"]["busbw_gbs"]
    return float(value) if value else None


def _notes(run: t.Mapping[str, t.Any]) -> list[str]:
    """What stood beside the measurement: why it failed, the transport that was proven, error counters that moved."""
    notes = [f"{'+'.join(run['nodes'])}: {run['failure']} {run['problem']}".strip()] if run["failure"] else []
    proven = run["transport"].get("proven")
    if proven:
        notes.append(f"transport {proven}")
    for node, delta in run["deltas"].items():
        for place, counters in {**delta.get("hcas", {}), **delta.get("netdevs", {})}.items():
            notes += [f"{node} {place} {name} +{counters[name]}" for name in TELLING if counters.get(name)]
    return notes
