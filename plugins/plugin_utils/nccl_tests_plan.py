# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a benchmark of these nodes consists of: which backend, which nodes, which runs in which order."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import typing as t

Settings = t.Mapping[str, t.Any]

PRESETS = pathlib.Path(__file__).parent / "data" / "nccl_tests_presets.json"

#: collectives that are repeated over each further transport of the mpi backend: one tells whether it works and how fast
FIRST = 1

#: libfabric's queues over Soft-RoCE: with its defaults each endpoint registers some 60 MB of buffers, more than a small machine likes
SMALL_QUEUES = {
    "FI_OFI_RXM_TX_SIZE": "128",
    "FI_OFI_RXM_RX_SIZE": "128",
    "FI_OFI_RXM_MSG_TX_SIZE": "64",
    "FI_OFI_RXM_MSG_RX_SIZE": "64",
}

#: what each rank of a run with GPUs is told, so that its log proves the transport
DEBUG_ENVIRONMENT = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,TUNING"}


@dataclasses.dataclass(frozen=True)
class NodeMeans:
    """What one node brings: tools as nccl_tests_info returns them, GPUs, and {network: interface}.

    not_built: why nccl-tests could not be built on it, "" where it was, or was not to be.
    """

    name: str
    tools: Settings
    gpus: int
    networks: t.Mapping[str, str]
    not_built: str = ""

    def without_program(self, collectives: t.Sequence[str]) -> str:
        """Why it cannot run one of *collectives*, "" where it can run all. An earlier build is not what was asked for."""
        if self.not_built:
            return f"nccl-tests could not be built on it: {self.not_built}"
        container = self.tools.get("container") or {}
        if container.get("problem"):
            return f"{' '.join(container['prefix'])} cannot be started on it: {container['problem']}"
        for collective in collectives:
            program = self.tools["programs"].get(collective)
            if program is None:
                where = " inside the container (nccl_tests_directory says where)" if container else ""
                return f"it has no {collective}_perf in {self.tools['directory']}{where}"
            if program["problem"]:
                return f"its {program['path']} cannot be used: {program['problem']}"
        return ""

    def without_mpi(self, collectives: t.Sequence[str]) -> str:
        """Why several nodes cannot run one of *collectives* together with it, "" where they can, or where nothing shows."""
        for collective in collectives:
            program = self.tools["programs"][collective]
            if program["mpi"] is False:
                return (
                    f"its {program['path']} was built without MPI, so that every node would run a copy by itself:"
                    " build it with MPI=1 (nccl_tests_build_mpi: true), or measure nodes alone (nccl_tests_stages: [node])"
                )
        return ""

    @property
    def rails(self) -> dict[str, str]:
        """{network: interface} of those networks that lie on the interface of an HCA whose port is up.

        A rail that is known to be down is no place for a run: it would only wait there until its time is up.
        """
        netdevs = {port["netdev"] for port in self.active_hcas if port["netdev"]}
        return {network: name for network, name in self.networks.items() if name in netdevs}

    def device_on(self, network: str) -> str:
        """The HCA whose interface lies in *network*."""
        netdev = self.networks.get(network)
        return next((str(port["device"]) for port in self.tools["ports"] if port["netdev"] == netdev), "")

    @property
    def active_hcas(self) -> list[Settings]:
        return [port for port in self.tools["ports"] if port["state"] == "ACTIVE"]


@dataclasses.dataclass
class Plan:
    """launcher: mpirun, srun or local; left_out: [{node, why}]; problem: why nothing can be run, "" if something can."""

    backend: str = ""
    launcher: str = ""
    nodes: list[str] = dataclasses.field(default_factory=list)
    runs: list[dict[str, t.Any]] = dataclasses.field(default_factory=list)
    left_out: list[dict[str, str]] = dataclasses.field(default_factory=list)
    problem: str = ""
    python: str = "/usr/bin/python3"
    mpirun: str = ""

    def leave_out(self, node: str, why: str) -> None:
        self.nodes.remove(node)
        self.left_out.append({"node": node, "why": why})


@functools.cache
def presets() -> dict[str, dict[str, t.Any]]:
    """{name: values} of data/nccl_tests_presets.json."""
    return t.cast("dict[str, dict[str, t.Any]]", json.loads(PRESETS.read_text()))


def in_force(settings: Settings) -> dict[str, t.Any]:
    """The preset with every setting over it that is neither empty nor 0."""
    preset = presets()[settings["preset"]]
    return {name: settings.get(name) or value for name, value in preset.items()}


def plan(
    nodes: t.Sequence[NodeMeans],
    here: str,
    machines: int,
    settings: Settings,
    control: t.Sequence[str] = (),
) -> Plan:
    """The runs for *nodes*. here: the launching node; machines: how many different ones they are; control: their networks.

    settings: the role's, without their prefix: backend, launcher, preset and what overrides it, mpi_transports, environment.
    """
    made = Plan(nodes=[node.name for node in nodes])
    by_name = {node.name: node for node in nodes}
    made.backend = settings["backend"]
    if made.backend == "auto":
        made.backend = "nccl" if any(node.gpus for node in nodes) else "mpi"
    made.launcher = _launcher(settings["launcher"], machines, by_name.get(here))
    values = in_force(settings)
    _leave_out_the_unfit(made, by_name, here, values)
    if here not in made.nodes:
        made.problem = made.problem or next(
            (e["why"] for e in made.left_out if e["node"] == here), "there is no launching node"
        )
        return made
    made.python = by_name[here].tools["python"] or made.python
    made.mpirun = by_name[here].tools["mpirun"]["path"]
    usable = [by_name[name] for name in made.nodes]
    if made.backend == "mpi":
        once = _mpi_runs(usable, values, settings, control)
    else:
        together = [node for node in usable if not node.without_mpi(values["collectives"])]
        once = _nccl_runs(usable, together, values, settings)
        if len(usable) > 1 and {"cluster", "rail"} & set(values["stages"]):
            apart = [node for node in usable if node not in together]
            made.left_out += [{"node": n.name, "why": n.without_mpi(values["collectives"])} for n in apart]
    # All of it again and again, rather than each run several times: what drifts slowly must not look like a difference.
    made.runs = once * int(values["repeats"])
    if not made.runs:
        made.problem = (
            f"a benchmark of the network needs two nodes, and only {made.nodes[0]} can take part"
            if len(made.nodes) < 2
            else next(
                (entry["why"] for entry in made.left_out if entry["node"] in made.nodes),
                "the stages and collectives that were chosen make no run on these nodes",
            )
        )
    return made


def _launcher(wanted: str, machines: int, here: NodeMeans | None) -> str:
    if wanted != "auto":
        return wanted
    return "mpirun" if machines > 1 or here is None or not here.tools["mpirun"]["problem"] else "local"


def _leave_out_the_unfit(made: Plan, by_name: t.Mapping[str, NodeMeans], here: str, values: Settings) -> None:
    """Nodes that cannot take part in a launch from *here*."""
    launching = by_name.get(here)
    for node in list(by_name.values()):
        why = _unfit(made, node, launching) or (_without_programs(node, values) if made.backend == "nccl" else "")
        if why:
            made.leave_out(node.name, why)


def _unfit(made: Plan, node: NodeMeans, launching: NodeMeans | None) -> str:
    mpirun = node.tools["mpirun"]
    if made.launcher == "mpirun" and mpirun["problem"]:
        return f"{mpirun['problem']}, which every node of the launch needs"
    if made.launcher == "mpirun" and launching and mpirun["major"] != launching.tools["mpirun"]["major"]:
        theirs = launching.tools["mpirun"]["version"]
        return f"its Open MPI is {mpirun['version']}, the launcher's {theirs}: the two do not work together"
    if made.backend == "mpi" and not node.tools["python"]:
        return "no Python on it can import mpi4py"
    if made.backend == "nccl" and not node.gpus:
        return "it has no GPU"
    return ""


def _without_programs(node: NodeMeans, values: Settings) -> str:
    """A program without MPI is good enough for a node alone, so it only counts where no stage is about nodes alone."""
    missing = node.without_program(values["collectives"])
    return missing or ("" if "node" in values["stages"] else node.without_mpi(values["collectives"]))


def _common_rails(nodes: t.Sequence[NodeMeans]) -> list[str]:
    """Networks on HCAs' interfaces that every node has, in the order of the first node's."""
    every = [node.rails for node in nodes]
    return [network for network in every[0] if all(network in rails for rails in every)] if every else []


def _base(collective: str, stage: str, backend: str, values: Settings) -> dict[str, t.Any]:
    names = ("min_bytes", "max_bytes", "step_factor", "iterations", "warmup", "timeout_s")
    told = {name: values[name] for name in names}
    return {"collective": collective, "stage": stage, "backend": backend, "per_iteration": backend == "nccl", **told}


def _mpi_runs(
    nodes: t.Sequence[NodeMeans], values: Settings, settings: Settings, control: t.Sequence[str]
) -> list[dict[str, t.Any]]:
    """Every collective over all rails with the first transport; the first collective with each further one and over each rail.

    Nodes without rails in common are measured over their control network.
    """
    if len(nodes) < 2:
        return []
    rails = _common_rails(nodes)
    transports = [name for name in _transports(nodes, settings) if name == "tcp" or rails]
    runs = []
    if "cluster" in values["stages"]:
        for transport in transports:
            collectives = values["collectives"] if transport == transports[0] else values["collectives"][:FIRST]
            for collective in collectives:
                base = _base(collective, "cluster", "mpi", values)
                runs.append({**base, **mpi_transport(transport, rails or control, nodes)})
    if "rail" in values["stages"]:
        for network in rails:
            base = _base(values["collectives"][0], "rail", "mpi", values)
            runs.append({**base, **mpi_transport("tcp", [network], nodes), "rail": _rail_name(network, nodes)})
    return runs


def _rail_name(network: str, nodes: t.Sequence[NodeMeans]) -> str:
    """The HCA's name where it is the same on every node, else the network."""
    devices = {node.device_on(network) for node in nodes}
    return devices.pop() if len(devices) == 1 else network


def _transports(nodes: t.Sequence[NodeMeans], settings: Settings) -> list[str]:
    wanted = list(settings["mpi_transports"])
    if wanted:
        return wanted
    return ["rdma"] if all(node.active_hcas for node in nodes) else ["tcp"]


def mpi_transport(transport: str, networks: t.Sequence[str], nodes: t.Sequence[NodeMeans]) -> dict[str, t.Any]:
    """What forces Open MPI onto *transport*: {claim, mca, environment, networks}.

    tcp: the TCP component alone, on the networks given. rdma: UCX on hardware; on Soft-RoCE, where UCX fails, libfabric's verbs
    provider over the first network, with receive queues small enough for it.
    """
    verbose = {"pml_base_verbose": "10"}
    if transport == "tcp":
        include = {"btl_tcp_if_include": ",".join(networks)} if networks else {}
        return {
            "claim": "tcp",
            "mca": {"pml": "ob1", "btl": "self,tcp", **include, **verbose},
            "environment": {},
            "networks": list(networks),
        }
    drivers = {port["driver"] for node in nodes for port in node.active_hcas}
    if drivers <= {"rdma_rxe"}:
        return {
            "claim": "rdma",
            "mca": {
                "pml": "cm",
                "mtl": "ofi",
                "mtl_ofi_provider_include": "verbs;ofi_rxm",
                "opal_common_ofi_verbose": "1",
                **verbose,
            },
            "environment": {"FI_UNIVERSE_SIZE": str(len(nodes)), **SMALL_QUEUES, **_same_rail(networks, nodes)},
            "networks": list(networks[:1]),
        }
    devices = sorted({f"{port['device']}:{port['port']}" for port in nodes[0].active_hcas})
    return {
        "claim": "rdma",
        "mca": {"pml": "ucx", "btl": "^openib,uct", **verbose},
        "environment": {"UCX_TLS": "rc,ud,self,sm", "UCX_NET_DEVICES": ",".join(devices)},
        "networks": list(networks),
    }


def _same_rail(networks: t.Sequence[str], nodes: t.Sequence[NodeMeans]) -> dict[str, str]:
    """What keeps libfabric (fi_verbs(7)) to one rail.

    It takes whichever device the kernel lists first, on each node for itself, and waits for ever for a connection
    from one rail to another.
    """
    devices = {node.device_on(networks[0]) for node in nodes} if networks else set()
    return {"FI_VERBS_DEVICE_NAME": devices.pop()} if len(devices) == 1 else {}


def _nccl_runs(
    nodes: t.Sequence[NodeMeans], together: t.Sequence[NodeMeans], values: Settings, settings: Settings
) -> list[dict[str, t.Any]]:
    """Every collective: on each node alone, then over the cluster, then over the cluster once per rail.

    together: those of *nodes* that can form a cluster.
    """
    gpus = min(node.gpus for node in nodes)
    per_node = min(int(values["gpus_per_node"]) or gpus, gpus)
    environment = {**DEBUG_ENVIRONMENT, **settings.get("environment", {})}
    cluster = {} if len(together) == len(nodes) else {"nodes": [node.name for node in together]}
    runs = []
    for stage in values["stages"]:
        if stage == "node" and per_node > 1:
            for collective in values["collectives"]:
                base = _base(collective, "node", "nccl", values)
                runs.append(
                    {**base, "alone": True, "gpus_per_rank": per_node, "environment": environment, "claim": "P2P"}
                )
        elif stage == "cluster" and len(together) > 1:
            for collective in values["collectives"]:
                base = {**_base(collective, "cluster", "nccl", values), **cluster}
                runs.append(
                    {
                        **base,
                        "ranks_per_node": per_node,
                        "environment": environment,
                        "claim": settings["expected_network"],
                    }
                )
        elif stage == "rail" and len(together) > 1:
            for device in _common_devices(together):
                base = {**_base(values["collectives"][0], "rail", "nccl", values), **cluster}
                one = {**environment, "NCCL_IB_HCA": f"={device}"}
                runs.append(
                    {
                        **base,
                        "ranks_per_node": 1,
                        "environment": one,
                        "rail": device,
                        "claim": settings["expected_network"],
                    }
                )
    return runs


def _common_devices(nodes: t.Sequence[NodeMeans]) -> list[str]:
    every = [[port["device"] for port in node.active_hcas] for node in nodes]
    return [device for device in every[0] if all(device in devices for devices in every)] if every else []
