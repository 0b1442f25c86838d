# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of networks, NICs and addresses."""

from __future__ import annotations

import itertools

import netaddr
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.errors import LabError
from lab.plan import MAXIMUM_HCAS, MAXIMUM_NODES, RELEASES, make_plan


@given(st.integers(1, MAXIMUM_NODES), st.integers(0, MAXIMUM_HCAS))
def test_every_nic_has_its_own_address_in_its_networks_subnet(nodes: int, hcas: int) -> None:
    plan = make_plan(nodes, hcas)
    links = [link for node in plan.nodes for link in node.switched_links]
    assert len(links) == nodes * (hcas + 1)
    assert len({link.address for link in links}) == len(links)
    assert all(link.address in link.network.subnet for link in links)
    hosts = {(link.network.subnet.network, link.network.subnet.broadcast) for link in links}
    assert not {link.address for link in links} & set(itertools.chain(*hosts))


@given(st.integers(1, MAXIMUM_NODES), st.integers(0, MAXIMUM_HCAS))
def test_mac_addresses_are_distinct_local_and_unicast(nodes: int, hcas: int) -> None:
    macs = [netaddr.EUI(link.mac) for node in make_plan(nodes, hcas).nodes for link in node.links]
    assert len(set(macs)) == len(macs)
    assert {mac.words[0] & 0b11 for mac in macs} == {0b10}


def test_rails_and_the_control_network_are_apart() -> None:
    plan = make_plan(2, 4)
    for one, other in itertools.combinations([network.subnet for network in plan.networks], 2):
        assert one not in other
        assert other not in one


def test_names_follow_the_field() -> None:
    node = make_plan(3, 2).node("n3")
    assert [(link.interface, link.rdma_device) for link in node.links] == [
        ("eth0", None),
        ("eth1", "mlx5_0"),
        ("eth2", "mlx5_1"),
        ("ctl0", None),
    ]
    assert node.control.cidr == "10.76.0.3/24"
    assert [link.network.name for link in node.switched_links] == ["rail0", "rail1", "control"]


def test_releases_are_dealt_out_in_turn() -> None:
    assert [node.release for node in make_plan(3, 1, RELEASES).nodes] == ["bookworm", "trixie", "bookworm"]


@pytest.mark.parametrize(
    ("nodes", "hcas", "releases", "words"),
    [
        (0, 2, RELEASES, "--nodes is 0"),
        (MAXIMUM_NODES + 1, 2, RELEASES, "--nodes is 65"),
        (2, -1, RELEASES, "--hcas is -1"),
        (2, MAXIMUM_HCAS + 1, RELEASES, "--hcas is 9"),
        (2, 2, ("sid",), "--release is 'sid'"),
        (2, 2, (), "--release is ''"),
    ],
)
def test_what_cannot_be_planned_is_refused(nodes: int, hcas: int, releases: tuple[str, ...], words: str) -> None:
    with pytest.raises(LabError, match=words):
        make_plan(nodes, hcas, releases)


def test_an_unknown_node_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(LabError, match="no node 'n9' in this lab: it has n1, n2"):
        make_plan(2, 2).node("n9")
