# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who probes whom, by which rails."""

from __future__ import annotations

import collections
import pathlib
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_observe import observe_rdma
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.launch_nodes import LaunchNode, networks_of
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.mesh_plan import (
    Candidate,
    Limits,
    plan_again,
    plan_mesh,
)
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_node import FakeNode
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_rdma_tools import record_rdma_tools

SETTINGS = {"rdma_allowed_drivers": ["rdma_rxe"]}


def candidate(number: int, rdma: dict[str, t.Any] | None = None, **changes: t.Any) -> Candidate:
    addresses = {"eno1": [f"192.0.2.{number}/24"], "eth1": [f"10.20.0.{number}/24"], "docker0": ["172.17.0.1/16"]}
    facts = {"addresses": addresses}
    node = LaunchNode(
        name=f"n{number}", address=f"192.0.2.{number}", port=22, host_keys=(), machine=f"boot-{number}",
        hostname=f"host-{number}", networks=networks_of(facts),
    )  # fmt: skip
    given = {"rdma_settings": SETTINGS, "responder": {"port": 40000 + number}, **changes}
    return Candidate(node=node, facts=facts, rdma=rdma, **given)


def observed(directory: pathlib.Path, number: int, mtu: int = 9000, **changes: t.Any) -> dict[str, t.Any]:
    fake = FakeNode(directory / f"n{number}")
    hca = {
        "driver": "rdma_rxe",
        "netdev": "eth1",
        "ipv4": f"10.20.0.{number}/24",
        "guid": f"0200:0000:0000:000{number}",
    }
    fake.add_hca("mlx5_0", **{**hca, "mtu": mtu, **changes})
    record_rdma_tools(fake)
    fs = RootedFs(fake.root)
    return observe_rdma(fs, Tools(fs), ["ibv_devinfo"])


def test_everyone_probes_everyone_up_to_a_size() -> None:
    plans = plan_mesh([candidate(n) for n in range(1, 8)], {}, Limits(bandwidth_rounds=2))
    for name, plan in plans.items():
        assert {peer["node"] for peer in plan["peers"]} == set(plans) - {name}
        assert plan["port"] == 40000 + int(name[1:]) and plan["passes"] == 1
        assert 1 <= sum(peer["load"] for peer in plan["peers"]) <= 2


def test_a_sample_above_it_in_which_nobody_is_probed_more_than_others() -> None:
    plans = plan_mesh([candidate(n) for n in range(1, 201)], {}, Limits(full_mesh_nodes=32, sampled_rounds=5))
    probed = collections.Counter(peer["node"] for plan in plans.values() for peer in plan["peers"])
    assert set(probed.values()) == {5} and len(probed) == 200
    for name, plan in plans.items():
        assert all(name in {p["node"] for p in plans[peer["node"]]["peers"]} for peer in plan["peers"])


def test_rails_are_the_compute_ports(tmp_path: pathlib.Path) -> None:
    nodes = [candidate(n, observed(tmp_path, n, mtu=1500 if n == 2 else 9000)) for n in (1, 2, 3)]
    plans = plan_mesh(nodes, {}, Limits())
    rail = plans["n2"]["rails"]["mlx5_0"]
    assert (rail["device"], rail["port"], rail["netdev"], rail["address"]) == ("mlx5_0", 1, "eth1", "10.20.0.2")
    # what the rail should have is not what this node has
    assert (rail["own_mtu"], rail["mtu"]) == (1500, 9000)
    assert rail["gid_index"] is not None and rail["up"]
    peer = plans["n1"]["peers"][0]
    assert peer["hostname"].startswith("host-") and peer["rails"]["mlx5_0"]["address"].startswith("10.20.0.")
    assert plans["n1"]["control"] == {"address": "192.0.2.1", "netdev": "eno1"}


def test_a_port_that_is_down_stays_a_rail(tmp_path: pathlib.Path) -> None:
    states = {2: {"state": "Down", "phys_state": "Disabled"}}
    nodes = [candidate(n, observed(tmp_path, n, **states.get(n, {}))) for n in (1, 2, 3)]
    assert plan_mesh(nodes, {}, Limits())["n2"]["rails"]["mlx5_0"]["up"] is False


def test_without_hcas_networks_are_rails_and_bridges_are_none() -> None:
    plans = plan_mesh([candidate(n) for n in (1, 2, 3)], {}, Limits())
    assert list(plans["n1"]["rails"]) == ["10.20.0.0/24"]
    assert plans["n1"]["rails"]["10.20.0.0/24"]["netdev"] == "eth1"
    assert plans["n1"]["rdma"] is False


def test_no_load_on_or_from_a_busy_node() -> None:
    plans = plan_mesh([candidate(1), candidate(2, busy="4 GPU processes"), candidate(3)], {}, Limits())
    loads = {(name, peer["node"]) for name, plan in plans.items() for peer in plan["peers"] if peer["load"]}
    assert loads == {("n1", "n3"), ("n3", "n1")}
    assert len(plans["n2"]["peers"]) == 2


@pytest.mark.parametrize("responder", [{}, {"msg": "The responder does not start: no"}])
def test_who_takes_no_part_is_said(responder: dict[str, str]) -> None:
    nodes = [candidate(1), candidate(2), candidate(3, responder=responder)]
    plans = plan_mesh(nodes, {"n9": "it did not answer"}, Limits())
    assert plans["n9"] == {"left_out": "it did not answer"}
    assert "responder" in plans["n3"]["left_out"].lower()
    assert [peer["node"] for peer in plans["n1"]["peers"]] == ["n2"]


def test_a_lone_node() -> None:
    plans = plan_mesh([candidate(1)], {}, Limits())
    assert plans["n1"]["peers"] == [] and plans["n1"]["left_out"] == "it is the only node"


def test_a_second_look_is_at_what_is_suspect_and_nothing_else() -> None:
    plans = plan_mesh([candidate(n) for n in range(1, 5)], {}, Limits())
    again = plan_again(plans, {"n1": {"n3": ["10.20.0.0/24"]}})
    assert list(again) == ["n1"] and again["n1"]["port"] == 40001
    assert [(peer["node"], peer["only"], peer["load"]) for peer in again["n1"]["peers"]] == [
        ("n3", ["10.20.0.0/24"], True)
    ]
