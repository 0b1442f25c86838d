# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles: the data is whole and settable, wishes win, buffers follow from rate and round trip, nonsense is refused."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._sysctl import settings_of
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.sysctl_profiles import (
    LARGEST_BUFFER,
    SMALLEST_BUFFER,
    buffer_for,
    load,
    names,
    resolve,
)

GUIDE = {
    "net.core.rmem_max": "134217728",
    "net.core.wmem_max": "134217728",
    "net.ipv4.tcp_rmem": "4096 87380 134217728",
    "net.ipv4.tcp_wmem": "4096 65536 134217728",
    "net.ipv4.tcp_congestion_control": "bbr",
    "net.core.somaxconn": "4096",
    "net.ipv4.tcp_max_syn_backlog": "4096",
    "net.ipv4.tcp_tw_reuse": "1",
    "net.ipv4.tcp_fin_timeout": "30",
}


def values(*args: t.Any, **kwargs: t.Any) -> dict[str, str]:
    return {setting["key"]: setting["value"] for setting in resolve(*args, **kwargs)}


def test_guide_is_the_guides_list() -> None:
    assert values("guide") == GUIDE


@pytest.mark.parametrize("profile", ["guide", "roce", "infiniband", "tcp_100g", "tcp_400g"])
def test_every_value_has_a_reason_a_known_source_and_the_kernels_own(profile: str) -> None:
    data = load()
    settings = data["profiles"][profile]["settings"]
    for setting in settings:
        assert setting["reason"] and setting["kernel_default"]
        assert setting["source"] in data["sources"]
    assert len({setting["key"] for setting in settings}) == len(settings)
    assert len(settings_of(resolve(profile), ["rail0"])) == len(settings)


def test_every_source_is_used() -> None:
    data = load()
    used = {setting["source"] for profile in data["profiles"].values() for setting in profile["settings"]}
    assert used == set(data["sources"])


def test_the_guides_lower_middle_value_is_said() -> None:
    (rmem,) = [s for s in load()["profiles"]["guide"]["settings"] if s["key"] == "net.ipv4.tcp_rmem"]
    assert "131072" in rmem["caution"] and "87380" in rmem["caution"]


def test_wishes_win_whatever_their_spelling() -> None:
    got = values(
        "guide", {"net/ipv4/tcp_fin_timeout": 15, "net.core.somaxconn": None, "net.ipv4.tcp_rmem": [4096, 131072, 99]}
    )
    assert got["net.ipv4.tcp_fin_timeout"] == "15"
    assert "net.core.somaxconn" not in got
    assert got["net.ipv4.tcp_rmem"] == "4096 131072 99"
    assert len(got) == len(GUIDE) - 1


def test_a_wish_for_each_rdma_interface_stays_one_setting() -> None:
    assert values("roce", {"net/ipv4/conf/<rdma>/arp_ignore": 2})["net.ipv4.conf.<rdma>.arp_ignore"] == "2"


def test_none_is_only_the_wishes_and_the_queueing_discipline() -> None:
    assert values("none", {"vm.swappiness": 1}, "fq") == {"vm.swappiness": "1", "net.core.default_qdisc": "fq"}


@pytest.mark.parametrize(
    ("gbps", "rtt_us", "size"),
    [
        (100, 2500, 2**26),  # 31.25 MB in flight, twice that is 62.5 MB
        (400, 2500, 2**28),
        (10, 100000, 2**28),
        (100, 50, SMALLEST_BUFFER),
        (400, 1_000_000, LARGEST_BUFFER),
    ],
)
def test_buffers_hold_twice_what_is_in_flight(gbps: float, rtt_us: float, size: int) -> None:
    assert buffer_for(gbps, rtt_us) == size


def test_computed_buffers_keep_the_profiles_first_values_and_lose_to_wishes() -> None:
    got = values("guide", {"net.core.wmem_max": 7}, link_gbps=400, rtt_us=2500)
    assert got["net.ipv4.tcp_rmem"] == f"4096 87380 {2**28}"
    assert got["net.core.rmem_max"] == str(2**28)
    assert got["net.core.wmem_max"] == "7"
    assert values("infiniband", link_gbps=400, rtt_us=2500)["net.ipv4.tcp_rmem"] == f"4096 131072 {2**28}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"profile": "roces"}, "did you mean roce"),
        ({"profile": ""}, "kernel_tuning_profile"),
        (
            {"profile": "guide", "overrides": {"net.ipv4.tcp_sack": True}},
            "kernel_tuning_sysctl: net.ipv4.tcp_sack: the value is the boolean true",
        ),
        ({"profile": "guide", "overrides": {"net.core.*": 1}}, "kernel_tuning_sysctl: 'net.core.*' is a pattern"),
        ({"profile": "guide", "overrides": {"rmem_max": 1}}, "kernel_tuning_sysctl: 'rmem_max' is no sysctl key"),
        ({"profile": "guide", "overrides": {"a.b": {}}}, "kernel_tuning_sysctl: a.b"),
        ({"profile": "guide", "link_gbps": 100}, "together"),
        ({"profile": "guide", "rtt_us": 100}, "together"),
        (
            {"profile": "guide", "link_gbps": -1, "rtt_us": 1},
            "kernel_tuning_link_gbps is -1; it must be a number of Gb/s,",
        ),
        (
            {"profile": "guide", "link_gbps": 1, "rtt_us": float("nan")},
            "kernel_tuning_rtt_us is nan; it must be a number of µs,",
        ),
        ({"profile": "guide", "qdisc": "f\nq"}, "kernel_tuning_qdisc"),
    ],
)
def test_nonsense_gets_one_sentence(arguments: dict[str, t.Any], says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("*", r"\*")) as refused:
        resolve(**arguments)
    assert "\n" not in str(refused.value)


def test_names_are_what_the_role_offers() -> None:
    assert names() == ["guide", "roce", "infiniband", "tcp_100g", "tcp_400g", "none"]
