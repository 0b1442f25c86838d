# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which nodes a launch takes, by which addresses, and which runs are made of them."""

from __future__ import annotations

import typing as t

import netaddr
import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import launch_nodes, nccl_tests_plan
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_tests_plan import NodeMeans
from hypothesis import given
from hypothesis import strategies as st

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExample"


def facts(addresses: dict[str, list[str]], **more: t.Any) -> dict[str, t.Any]:
    observed = {"addresses": addresses, "ssh_host_keys": [KEY], "busy": False, "hostname": "h", **more}
    return {"__node_facts_observed": {"observed": observed}}


def cluster(count: int, **more: t.Any) -> dict[str, dict[str, t.Any]]:
    """Nodes with a NAT address that is the same on all, a control network and two rails, as in the lab."""
    return {
        f"n{i}": {
            "ansible_host": "127.0.0.1",
            **facts(
                {
                    "lo": ["127.0.0.1/8"],
                    "eth0": ["198.51.100.15/24", "fe80::1/64"],
                    "ctl0": [f"192.0.2.{i}/24"],
                    "eth1": [f"203.0.113.{i}/25"],
                },
                boot_id=f"boot-{i}",
            ),
            **more,
        }
        for i in range(1, count + 1)
    }


def chosen(
    variables: dict[str, dict[str, t.Any]], alive: t.Collection[str] | None = None, **settings: t.Any
) -> launch_nodes.LaunchNodes:
    hosts = list(variables)
    return launch_nodes.plan(hosts, hosts if alive is None else alive, variables, settings, "run-1")


def test_addresses_of_a_network_that_all_share() -> None:
    plan = chosen(cluster(3))
    assert [node.address for node in plan.nodes] == ["192.0.2.1", "192.0.2.2", "192.0.2.3"], "not the NAT's one address"
    assert plan.control_networks == ("192.0.2.0/24",)
    assert plan.needed and plan.launcher == "n1"
    assert plan.as_dict()["peers"][1] == {"address": "192.0.2.2", "port": 22, "host_keys": [KEY]}


def test_the_inventory_s_word_counts_and_is_checked() -> None:
    variables = cluster(2)
    variables["n1"]["gpufabric_control_address"] = "203.0.113.1"
    variables["n2"]["launch_trust_address"] = "203.0.113.77"
    plan = chosen(variables)
    assert [node.address for node in plan.nodes] == ["203.0.113.1"]
    assert plan.left_out == (
        {"node": "n2", "why": "gpufabric_control_address is 203.0.113.77, which this node does not have"},
    )


@pytest.mark.parametrize("wanted", ["2001:db8::2", "control-2"])
def test_what_is_no_ipv4_address_is_said_to_be_none(wanted: str) -> None:
    variables = cluster(2)
    variables["n2"]["gpufabric_control_address"] = wanted
    (entry,) = chosen(variables).left_out
    assert entry["why"] == f"gpufabric_control_address is {wanted}, and an IPv4 address of this node is expected"


def test_a_node_with_nothing_but_ipv6_is_told_so() -> None:
    variables = cluster(3)
    variables["n2"] |= facts({"lo": ["127.0.0.1/8", "::1/128"], "eth0": ["2001:db8::2/64"]}, boot_id="boot-2")
    (entry,) = chosen(variables).left_out
    assert entry["node"] == "n2" and "no IPv4 address" in entry["why"]


def test_the_address_that_ansible_connects_to_if_the_node_has_it() -> None:
    variables = cluster(2)
    variables["n1"]["ansible_host"] = "203.0.113.1"
    assert chosen(variables).nodes[0].address == "203.0.113.1"


def test_nodes_that_cannot_take_part_are_named() -> None:
    variables = cluster(5)
    variables["n2"]["__node_facts_observed"]["observed"].update(busy=True, busy_why="Slurm job(s) 7")
    variables["n3"]["__node_facts_observed"] = {"msg": "Connection timed out\nmore", "unreachable": True}
    variables["n4"]["__node_facts_observed"]["observed"]["addresses"] = {"lo": ["127.0.0.1/8"]}
    plan = chosen(variables, ["n1", "n2", "n4"])
    why = {entry["node"]: entry["why"] for entry in plan.left_out}
    assert [node.name for node in plan.nodes] == ["n1"]
    assert why["n2"] == "it is busy: Slurm job(s) 7"
    assert why["n3"] == "it did not answer: Connection timed out"
    assert "no IPv4 address besides loopback" in why["n4"]
    assert why["n5"] == "it did not answer or left the run earlier"
    busy = chosen(variables, ["n1", "n2", "n4"], respect_busy=False)
    assert "n2" in [node.name for node in busy.nodes]


def test_a_launcher_that_cannot_launch_is_one_sentence() -> None:
    with pytest.raises(
        ValueError, match="launch_trust_launcher is 'n9', which cannot launch: it is no node of this play"
    ):
        chosen(cluster(2), launcher="n9")
    variables = cluster(2)
    with pytest.raises(ValueError, match="'n2', which cannot launch: it did not answer"):
        chosen(variables, ["n1"], launcher="n2")
    assert chosen(variables, launcher="n2").launcher == "n2"


def test_no_node_at_all() -> None:
    plan = chosen(cluster(2), [])
    assert plan.nodes == () and plan.launcher == "" and not plan.needed


def test_one_machine_under_two_names_needs_no_trust() -> None:
    variables = cluster(1)
    variables["again"] = variables["n1"]
    plan = chosen(variables)
    assert [(node.name, node.address) for node in plan.nodes] == [("n1", "127.0.0.1"), ("again", "127.0.0.1")]
    assert not plan.needed and plan.control_networks == ()


@given(st.lists(st.integers(min_value=1, max_value=4000), min_size=1, max_size=300, unique=True))
def test_sources_are_exactly_the_cluster_s_addresses(hosts: list[int]) -> None:
    network = netaddr.IPNetwork("10.20.0.0/16")
    addresses = [str(network[host]) for host in hosts]
    merged = launch_nodes.sources(addresses, [addresses[0]])
    line = ",".join(merged)
    assert len(line) <= launch_nodes.SOURCES_LIMIT
    allowed = netaddr.IPSet(netaddr.IPNetwork(entry) for entry in merged)
    assert addresses[0] in allowed, "the launcher itself is always let in"
    assert allowed.issubset(netaddr.IPSet(addresses))


def test_run_names_sort_by_time_and_are_short() -> None:
    first, second = launch_nodes.new_run_id(), launch_nodes.new_run_id()
    assert first[:12] <= second[:12] and first != second and len(first) <= 20


# ---- runs

PORTS = [
    {"device": "mlx5_0", "driver": "rdma_rxe", "port": 1, "state": "ACTIVE", "netdev": "eth1", "link_layer": "Ethernet", "rate_gbps": 100.0},
    {"device": "mlx5_1", "driver": "rdma_rxe", "port": 1, "state": "ACTIVE", "netdev": "eth2", "link_layer": "Ethernet", "rate_gbps": 100.0},
]  # fmt: skip
RAILS = {"192.0.2.0/24": "ctl0", "203.0.113.0/25": "eth1", "203.0.113.128/25": "eth2"}


PROGRAM = {"path": "/opt/x_perf", "mpi": True, "version": "", "letters": "", "problem": ""}
PROGRAMS = {name: PROGRAM for name in ("all_reduce", "all_gather", "reduce_scatter", "alltoall")}


def means(name: str, gpus: int = 0, not_built: str = "", **tools: t.Any) -> NodeMeans:
    has = {
        "mpirun": {"path": "mpirun", "version": "4.1.4", "major": 4, "problem": ""},
        "python": "/usr/bin/python3",
        "directory": "/opt",
        "programs": PROGRAMS,
        "srun": False,
        "ports": PORTS,
        **tools,
    }
    return NodeMeans(name, has, gpus, RAILS, not_built)


def settings(**more: t.Any) -> dict[str, t.Any]:
    return {
        "backend": "auto",
        "launcher": "auto",
        "preset": "quick",
        "mpi_transports": [],
        "environment": {},
        "expected_network": "IB",
        **more,
    }


def planned(nodes: list[NodeMeans], machines: int | None = None, **more: t.Any) -> nccl_tests_plan.Plan:
    return nccl_tests_plan.plan(nodes, nodes[0].name, machines or len(nodes), settings(**more), ["192.0.2.0/24"])


def test_repeats_are_the_whole_sequence_again() -> None:
    plan = planned([means("n1"), means("n2")], stages=["cluster"], collectives=["all_reduce", "alltoall"], repeats=3)
    assert [run["collective"] for run in plan.runs] == ["all_reduce", "alltoall"] * 3
    assert {run["per_iteration"] for run in plan.runs} == {False}, "the MPI program times single iterations by itself"


def test_without_gpus_the_network_is_measured_with_mpi() -> None:
    plan = planned([means("n1"), means("n2")], stages=["cluster", "rail"], mpi_transports=["tcp", "rdma"])
    assert (plan.backend, plan.launcher, plan.problem) == ("mpi", "mpirun", "")
    shown = [(run["stage"], run["claim"], run["collective"], run.get("rail", "")) for run in plan.runs]
    assert shown == [
        ("cluster", "tcp", "all_reduce", ""),
        ("cluster", "tcp", "all_gather", ""),
        ("cluster", "tcp", "reduce_scatter", ""),
        ("cluster", "tcp", "alltoall", ""),
        ("cluster", "rdma", "all_reduce", ""),
        ("rail", "tcp", "all_reduce", "mlx5_0"),
        ("rail", "tcp", "all_reduce", "mlx5_1"),
    ]
    assert plan.runs[0]["mca"]["btl_tcp_if_include"] == "203.0.113.0/25,203.0.113.128/25"
    assert plan.runs[0]["mca"]["btl"] == "self,tcp"
    assert plan.runs[4]["mca"]["mtl_ofi_provider_include"] == "verbs;ofi_rxm"
    assert plan.runs[4]["environment"]["FI_UNIVERSE_SIZE"] == "2"
    assert plan.runs[4]["environment"]["FI_VERBS_DEVICE_NAME"] == "mlx5_0"
    assert plan.runs[4]["networks"] == ["203.0.113.0/25"]
    assert plan.runs[5]["mca"]["btl_tcp_if_include"] == "203.0.113.0/25"


def test_hardware_hcas_are_used_through_ucx() -> None:
    ports = [{**port, "driver": "mlx5_core"} for port in PORTS]
    plan = planned([means("n1", ports=ports), means("n2", ports=ports)])
    assert {run["claim"] for run in plan.runs} == {"rdma"}
    assert plan.runs[0]["mca"]["pml"] == "ucx"
    assert plan.runs[0]["environment"]["UCX_NET_DEVICES"] == "mlx5_0:1,mlx5_1:1"


def test_without_rails_the_control_network_is_named() -> None:
    plan = planned([means("n1", ports=[]), means("n2", ports=[])])
    assert {run["claim"] for run in plan.runs} == {"tcp"}
    assert plan.runs[0]["mca"]["btl_tcp_if_include"] == "192.0.2.0/24"


def test_a_rail_that_one_node_lacks_is_not_used() -> None:
    plan = planned([means("n1"), means("n2", ports=PORTS[:1])], mpi_transports=["tcp"])
    assert plan.runs[0]["networks"] == ["203.0.113.0/25"]


def test_a_rail_that_is_down_on_one_node_is_not_used() -> None:
    down = [PORTS[0], {**PORTS[1], "state": "DOWN"}]
    plan = planned([means("n1"), means("n2", ports=down)], stages=["cluster", "rail"], mpi_transports=["tcp"])
    assert {network for run in plan.runs for network in run["networks"]} == {"203.0.113.0/25"}


def test_with_gpus_the_stages_and_their_ranks() -> None:
    plan = planned([means("n1", 8), means("n2", 8)], preset="standard", collectives=["all_reduce"])
    assert plan.backend == "nccl"
    shown = [
        (run["stage"], run.get("alone", False), run.get("ranks_per_node", 1), run.get("gpus_per_rank", 1))
        for run in plan.runs
    ]
    assert shown == [("node", True, 1, 8), ("cluster", False, 8, 1), ("rail", False, 1, 1), ("rail", False, 1, 1)]
    assert plan.runs[2]["environment"]["NCCL_IB_HCA"] == "=mlx5_0", "exactly this one: without = it is a prefix"
    assert plan.runs[0]["environment"]["NCCL_DEBUG"] == "INFO"


def test_the_guide_is_one_gpu_a_node() -> None:
    plan = planned([means("n1", 8), means("n2", 8)], preset="guide")
    (run,) = plan.runs
    assert (run["min_bytes"], run["max_bytes"], run["iterations"], run["ranks_per_node"]) == ("1G", "8G", 100, 1)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([means("n1")], "a benchmark of the network needs two nodes, and only n1 can take part"),
        ([means("n1", mpirun={"path": "mpirun", "version": "", "major": 0, "problem": "mpirun is not installed"}), means("n2")],
         "mpirun is not installed, which every node of the launch needs"),
        ([means("n1"), means("n2", python="")], "a benchmark of the network needs two nodes, and only n1 can take part"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_one_sentence(nodes: list[NodeMeans], why: str) -> None:
    plan = planned(nodes, machines=2)
    assert plan.problem == why


def test_two_versions_of_open_mpi_do_not_meet() -> None:
    five = {"path": "mpirun", "version": "5.0.7", "major": 5, "problem": ""}
    plan = planned([means("n1"), means("n2"), means("n3", mpirun=five)])
    assert plan.nodes == ["n1", "n2"]
    assert plan.left_out == [
        {"node": "n3", "why": "its Open MPI is 5.0.7, the launcher's 4.1.4: the two do not work together"}
    ]


def test_one_machine_without_mpirun_runs_by_itself() -> None:
    none = {"path": "mpirun", "version": "", "major": 0, "problem": "mpirun is not installed"}
    plan = planned([means("n1", 8, mpirun=none)], machines=1)
    assert plan.launcher == "local"
    assert [run["stage"] for run in plan.runs] == ["node"] * 4
    assert plan.problem == "", "a node alone is a whole measurement of what a node alone can show"


ALONE = {name: {**PROGRAM, "mpi": False} for name in PROGRAMS}
BROKEN = {**PROGRAMS, "alltoall": {**PROGRAM, "problem": "libnccl.so.2: cannot open shared object file"}}


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (means("n2", 8, programs={}), "it has no all_reduce_perf in /opt"),
        (means("n2", 8, not_built="make failed: no space"), "nccl-tests could not be built on it: make failed: no space"),
        (means("n2", 8, programs=BROKEN), "its /opt/x_perf cannot be used: libnccl.so.2: cannot open shared object file"),
    ],
)  # fmt: skip
def test_a_node_without_what_was_asked_for_is_named_with_the_reason(second: NodeMeans, why: str) -> None:
    plan = planned([means("n1", 8), second, means("n3", 8)])
    assert plan.nodes == ["n1", "n3"] and plan.left_out == [{"node": "n2", "why": why}]


def test_a_program_without_mpi_is_seen_before_several_nodes_run_it() -> None:
    plan = planned([means("n1", 8), means("n2", 8, programs=ALONE), means("n3", 8)], collectives=["all_reduce"])
    assert [(run["stage"], run.get("nodes")) for run in plan.runs] == [("node", None), ("cluster", ["n1", "n3"])]
    (entry,) = plan.left_out
    assert entry["node"] == "n2" and "built without MPI" in entry["why"] and "nccl_tests_build_mpi" in entry["why"]
    assert plan.nodes == ["n1", "n2", "n3"], "alone it can still be measured"
    plan = planned([means("n1", 8), means("n2", 8, programs=ALONE), means("n3", 8)], stages=["cluster"])
    assert plan.nodes == ["n1", "n3"] and [entry["node"] for entry in plan.left_out] == ["n2"]


def test_programs_without_mpi_alone_are_no_cluster() -> None:
    plan = planned([means("n1", 8, programs=ALONE), means("n2", 8, programs=ALONE)], stages=["cluster", "rail"])
    assert plan.runs == [] and "built without MPI" in plan.problem
    plan = planned([means("n1", 1, programs=ALONE), means("n2", 1, programs=ALONE)])
    assert plan.runs == [] and "built without MPI" in plan.problem, "one GPU a node leaves nothing to measure alone"
    plan = planned([means("n1", 8, programs=ALONE), means("n2", 8, programs=ALONE)], stages=["node"])
    assert not plan.left_out and plan.problem == "" and len(plan.runs) == 4
