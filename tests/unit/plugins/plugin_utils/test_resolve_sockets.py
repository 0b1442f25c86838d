# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Interfaces by network, on nodes whose interfaces have other names."""

from __future__ import annotations

import netaddr
import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_sockets import (
    interfaces_in,
    ipv4_networks,
    make_exact,
    parse_network,
    unmatched,
)

ADDRESSES = {
    "lo": ["127.0.0.1/8", "::1/128"],
    "eno1": ["192.168.1.5/24", "fe80::1/64"],
    "eth1": ["10.1.0.5/16"],
    "eth10": ["10.1.0.6/16", "fd00:1::5/64"],
    "down0": [],
}


@pytest.mark.parametrize(
    ("network", "found"),
    [
        ("192.168.0.0/16", ["eno1"]),
        ("10.1.0.0/16", ["eth1", "eth10"]),
        ("fd00:1::/64", ["eth10"]),
        ("172.16.0.0/12", []),
        ("0.0.0.0/0", ["eno1", "eth1", "eth10", "lo"]),
    ],
)
def test_by_network(network: str, found: list[str]) -> None:
    assert interfaces_in(netaddr.IPNetwork(network), ADDRESSES) == found


@pytest.mark.parametrize("text", ["10.0.0.0", "", "ten/8", "10.0.0.0/33", "10.0.0.0/8/8"])
def test_no_network(text: str) -> None:
    with pytest.raises(ValueError, match="10.0.0.0/16"):
        parse_network(text)


def test_a_host_address_stands_for_its_network() -> None:
    assert str(parse_network("10.1.2.3/16")) == "10.1.0.0/16"


def test_networks() -> None:
    assert {name: str(network) for name, network in ipv4_networks(ADDRESSES).items()} == {
        "lo": "127.0.0.0/8",
        "eno1": "192.168.1.0/24",
        "eth1": "10.1.0.0/16",
        "eth10": "10.1.0.0/16",
    }


@pytest.mark.parametrize(
    ("text", "absent", "exact"),
    [
        ("eth1", [], "=eth1"),
        ("eth", [], "eth"),
        ("=eth1", [], "=eth1"),
        ("=eth", ["eth"], "=eth"),
        ("eth1,eno1", [], "=eth1,eno1"),
        ("eth1,bond0", ["bond0"], "eth1,bond0"),
        ("down0", ["down0"], "=down0"),
        ("^docker,lo", [], "^docker,lo"),
    ],
)
def test_a_users_list(text: str, absent: list[str], exact: str) -> None:
    assert unmatched(text, ADDRESSES) == absent
    assert make_exact(text, ADDRESSES) == exact
