# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""HCA lists and GIDs: exact names, and the right row of each node's table."""

from __future__ import annotations

import typing as t

import netaddr
import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_rdma import (
    Port,
    choose_gids,
    exact,
    make_exact,
    nccl_choice,
    ports_of,
    transport_of,
)
from ansible_collections.gpufabric.cluster.tests.fixtures.nccl_fleet import V1, V2, gid, hca, usual_gids

OLD, NEW = (2, 20, 5), (2, 28, 9)
NETWORKS = {f"eth{r}": netaddr.IPNetwork(f"10.{r}.0.0/16") for r in range(1, 9)}


def ports(*hcas: dict[str, t.Any]) -> list[Port]:
    return ports_of(hcas)


def vxlan_first(ipv4: str, netdev: str) -> list[dict[str, t.Any]]:
    """A VXLAN interface on top took the lower rows with an address of its own."""
    return [gid(0, V1, "", netdev), gid(1, V2, "", netdev), gid(2, V1, "172.16.0.1", "vxlan0"),
            gid(3, V2, "172.16.0.1", "vxlan0"), gid(4, V1, ipv4, netdev), gid(5, V2, ipv4, netdev)]  # fmt: skip


def test_ports_that_are_down_do_not_count() -> None:
    assert [str(p) for p in ports(hca("mlx5_0", ports=2), hca("mlx5_1", state="DOWN"))] == ["mlx5_0:1", "mlx5_0:2"]


def test_transport() -> None:
    assert transport_of([]) == {"socket"}
    assert transport_of(ports(hca("a"), hca("b", layer="InfiniBand"))) == {"roce", "ib"}


def test_exact_list() -> None:
    assert exact(ports(hca("mlx5_0"), hca("mlx5_10"))) == "=mlx5_0:1,mlx5_10:1"


def test_a_usual_table_needs_nothing_from_2_21_on() -> None:
    choice = choose_gids(ports(hca("mlx5_0", "eth1", usual_gids("10.1.0.1", "eth1"))), NEW, NETWORKS)
    assert choice.variables == {} and not choice.problem


def test_before_2_21_the_index_is_written() -> None:
    choice = choose_gids(ports(hca("mlx5_0", "eth1", usual_gids("10.1.0.1", "eth1"))), OLD, NETWORKS)
    assert choice.variables["NCCL_IB_GID_INDEX"][0] == "3"


def test_before_2_21_index_0_is_the_default() -> None:
    table = [gid(0, V2, "10.1.0.1", "eth1")]
    assert choose_gids(ports(hca("mlx5_0", "eth1", table)), OLD, NETWORKS).variables == {}


def test_hcas_of_a_node_that_disagree() -> None:
    both = ports(
        hca("mlx5_0", "eth1", usual_gids("10.1.0.1", "eth1")), hca("mlx5_1", "eth2", vxlan_first("10.2.0.1", "eth2"))
    )
    old = choose_gids(both, OLD, NETWORKS)
    assert old.variables == {} and "mlx5_0:1 3, mlx5_1:1 5" in old.problem and "2.21" in old.fix
    new = choose_gids(both, NEW, NETWORKS)
    assert set(new.variables) == {"NCCL_IB_ADDR_RANGE"} and not new.problem
    network = netaddr.IPNetwork(new.variables["NCCL_IB_ADDR_RANGE"][0])
    assert all(netaddr.IPAddress(a) in network for a in ("10.1.0.1", "10.2.0.1"))
    assert netaddr.IPAddress("172.16.0.1") not in network


def test_hcas_that_agree_on_an_unusual_index_get_the_range() -> None:
    table = vxlan_first("10.1.0.1", "eth1")
    assert set(choose_gids(ports(hca("mlx5_0", "eth1", table)), NEW, NETWORKS).variables) == {"NCCL_IB_ADDR_RANGE"}


def test_the_same_address_on_two_interfaces_needs_the_index() -> None:
    """No range can tell the VXLAN interface from the bond that it lies on if both have the address."""
    table = [gid(0, V1, "", "bond0"), gid(1, V2, "", "bond0"), gid(2, V1, "10.1.0.1", "vxlan0"),
             gid(3, V2, "10.1.0.1", "vxlan0"), gid(4, V1, "10.1.0.1", "bond0"), gid(5, V2, "10.1.0.1", "bond0")]  # fmt: skip
    choice = choose_gids(ports(hca("mlx5_0", "bond0", table)), NEW, {"bond0": netaddr.IPNetwork("10.1.0.0/16")})
    assert choice.variables["NCCL_IB_GID_INDEX"][0] == "5"


def test_a_fabric_network_picks_among_several_addresses() -> None:
    table = [*usual_gids("192.168.0.1", "eth1"), gid(4, V1, "10.1.0.1", "eth1"), gid(5, V2, "10.1.0.1", "eth1")]
    network = netaddr.IPNetwork("10.1.0.0/16")
    choice = choose_gids(ports(hca("mlx5_0", "eth1", table)), NEW, NETWORKS, network)
    assert choice.variables["NCCL_IB_ADDR_RANGE"][0] == "10.1.0.0/16"
    assert (
        choose_gids(ports(hca("mlx5_0", "eth1", table)), OLD, NETWORKS, network).variables["NCCL_IB_GID_INDEX"][0]
        == "5"
    )


@pytest.mark.parametrize(
    "table", [[], [gid(0, V1, "", "eth1")], [gid(0, V2, "", "eth1"), gid(1, V1, "10.1.0.1", "eth1")]]
)
@pytest.mark.parametrize("version", [OLD, NEW])
def test_no_routable_gid(table: list[dict[str, t.Any]], version: tuple[int, ...]) -> None:
    choice = choose_gids(ports(hca("mlx5_0", "eth1", table)), version, NETWORKS)
    assert choice.variables == {} and "mlx5_0:1" in choice.problem and choice.fix


def test_infiniband_needs_no_gid() -> None:
    choice = choose_gids(ports(hca("mlx5_0", layer="InfiniBand")), OLD, NETWORKS)
    assert choice.variables == {} and not choice.problem


@pytest.mark.parametrize(
    ("table", "index"),
    [
        (usual_gids("10.1.0.1", "eth1"), 3),
        (vxlan_first("10.1.0.1", "eth1"), 3),
        ([gid(0, V1, "", "e"), gid(1, V2, "10.1.0.1", "e"), gid(2, V1, "10.1.0.1", "e")], 1),
        ([gid(0, V1, "", "e"), gid(1, V2, "", "e")], 0),
        ([gid(0, V2, "10.1.0.1", "e"), gid(1, V2, "10.1.0.2", "e")], 0),
    ],
)
def test_what_nccl_picks_by_itself(table: list[dict[str, t.Any]], index: int) -> None:
    (port,) = ports(hca("a", "e", table))
    choice = nccl_choice(port.gids)
    assert choice is not None and choice.index == index


EIGHT_AND_MORE = [hca(f"mlx5_{n}") for n in (0, 1, 2, 10, 11)]


@pytest.mark.parametrize(
    ("text", "value", "absent", "widened"),
    [
        ("mlx5_0,mlx5_1", "=mlx5_0:1,mlx5_1:1", (), ("mlx5_10", "mlx5_11")),
        ("mlx5_0", "=mlx5_0:1", (), ()),
        ("mlx5_1:1", "=mlx5_1:1", (), ("mlx5_10", "mlx5_11")),
        ("mlx5", "=mlx5_0:1,mlx5_1:1,mlx5_10:1,mlx5_11:1,mlx5_2:1", (), ()),
        ("=mlx5_1:1", "=mlx5_1:1", (), ()),
        ("=mlx5_1", "=mlx5_1", (), ()),
        ("=mlx5", "", ("mlx5",), ()),
        ("mlx5_0,mlx5_7", "=mlx5_0:1", ("mlx5_7",), ()),
        ("ibp3s0", "", ("ibp3s0",), ()),
        ("^mlx5_1", "^=mlx5_1", (), ("mlx5_10", "mlx5_11")),
        ("^=mlx5_9", "^=mlx5_9", (), ()),
    ],
)
def test_a_users_list_made_exact(text: str, value: str, absent: tuple[str, ...], widened: tuple[str, ...]) -> None:
    made = make_exact(text, ports_of(EIGHT_AND_MORE))
    assert (made.value, made.absent, made.widened) == (value, absent, widened)


def test_a_list_for_unknown_hardware_is_made_exact_all_the_same() -> None:
    assert make_exact("mlx5_0,mlx5_1", None).value == "=mlx5_0,mlx5_1"
    assert make_exact("^mlx5_0", None).value == "^=mlx5_0"
