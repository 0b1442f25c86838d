# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values: what NCCL would read, and which of them are refused."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import load_catalogue, parse_version
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_flaw import Flaw
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_value import (
    LONGEST,
    as_text,
    check,
    nccl_integer,
    unsafe,
)
from hypothesis import given
from hypothesis import strategies as st


def flaw(name: str, text: str, version: str = "2.28.9") -> Flaw | None:
    return check(load_catalogue().variables[f"NCCL_{name}"], text, parse_version(version))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("22", 22),
        ("010", 8),
        ("0x10", 16),
        ("0X1f", 31),
        ("-1", -1),
        ("+3", 3),
        ("8M", 8),
        ("1 # c", 1),
        ("08", 0),
        ("0", 0),
        ("  7", 7),
        ("true", None),
        ("yes", None),
        ('"1"', None),
        ("", None),
    ],
)
def test_strtoll(text: str, value: int | None) -> None:
    assert nccl_integer(text) == value


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_plain_number_is_read_as_itself(number: int) -> None:
    assert nccl_integer(str(number)) == nccl_integer(hex(number)) == number


@pytest.mark.parametrize(
    ("name", "text", "kind", "fix"),
    [
        ("IB_DISABLE", "true", "type", "1"),
        ("IB_DISABLE", "no", "type", "0"),
        ("IB_DISABLE", "2", "range", ""),
        ("BUFFSIZE", "1M", "type", "1048576"),
        ("BUFFSIZE", "8MiB", "type", "8388608"),
        ("BUFFSIZE", "4k", "type", "4096"),
        ("BUFFSIZE", "true", "type", ""),
        ("BUFFSIZE", "0", "range", ""),
        ("BUFFSIZE", "1e6", "type", ""),
        ("BUFFSIZE", "1.5", "type", ""),
        ("IB_TIMEOUT", "010", "type", "10"),
        ("IB_TIMEOUT", "40", "range", ""),
        ("IB_TIMEOUT", "-1", "range", ""),
        ("IB_RETRY_CNT", "8", "range", ""),
        ("SOCKET_NTHREADS", "17", "range", ""),
        ("IB_TC", "256", "range", ""),
        ("IB_QPS_PER_CONNECTION", "129", "range", ""),
        ("LL128_NTHREADS", "33", "range", ""),
        ("CROSS_NIC", "3", "range", ""),
        ("CROSS_NIC", "true", "type", "1"),
        ("NTHREADS", "192", "range", ""),
        ("DEBUG", "LOUD", "choice", ""),
        ("DEBUG", "ATTN", "choice", ""),
        ("NET_GDR_LEVEL", "sys", "choice", "SYS"),
        ("P2P_LEVEL", "NODE", "choice", ""),
        ("SOCKET_FAMILY", "af_inet", "choice", "AF_INET"),
        ("NETDEVS_POLICY", "MAX:0", "choice", ""),
        ("CTA_POLICY", "ZERO", "choice", ""),
        ("DEBUG_FILE", "~/nccl.log", "form", ""),
        ("DEBUG_SUBSYS", "INIT, NET", "form", "INIT,NET"),
        ("DEBUG_SUBSYS", "INIT,NETWORK", "choice", ""),
        ("DEBUG_SUBSYS", "", "choice", ""),
        ("IB_HCA", "mlx5_0, mlx5_1", "form", "mlx5_0,mlx5_1"),
        ("IB_HCA", "=^mlx5_0", "form", "^=mlx5_0"),
        ("IB_HCA", "mlx5_0,,mlx5_1", "form", ""),
        ("IB_HCA", "=mlx5_0:1:0", "form", ""),
        ("IB_HCA", ",".join(f"mlx5_{i}" for i in range(33)), "range", ""),
        ("SOCKET_IFNAME", "e", "form", ""),
        ("SOCKET_IFNAME", "eth0, eth1", "form", "eth0,eth1"),
        ("SOCKET_IFNAME", "an-interface-that-is-too-long", "form", ""),
        ("IB_ADDR_RANGE", "10.0.0.0", "form", ""),
        ("IB_ADDR_RANGE", "10.0.0.0/33", "form", ""),
        ("COMM_ID", "node1", "form", ""),
        ("COMM_ID", "node1:99999", "form", ""),
        ("PROXY_CPUSET", "0-3;8", "form", ""),
        ("THREAD_THRESHOLDS", "1 2 3", "form", ""),
        ("ALGO", "Trea", "form", ""),
        ("ALGO", "allreduc:tree", "form", ""),
        ("PROTO", "LL, Simple", "form", ""),
    ],
)
def test_wrong_values(name: str, text: str, kind: str, fix: str) -> None:
    found = flaw(name, text)
    assert found is not None
    assert (found.kind, found.fix) == (kind, fix), found
    assert found.evidence and found.expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("IB_DISABLE", "1"),
        ("BUFFSIZE", "8388608"),
        ("MIN_CTAS", "0x20"),
        ("IB_TIMEOUT", "22"),
        ("DEBUG", "warn"),
        ("DEBUG_SUBSYS", "^init,NET"),
        ("IB_HCA", "=mlx5_0:1,mlx5_1:1"),
        ("IB_HCA", "^=mlx5_bond_0"),
        ("IB_HCA", "ibp12s0,rocep1s0f0"),
        ("SOCKET_IFNAME", "=eth0"),
        ("SOCKET_IFNAME", "^docker,lo"),
        ("SOCKET_IFNAME", "bond0.100"),
        ("IB_ADDR_RANGE", "fd00::/64"),
        ("COMM_ID", "[fd00::1]:7000"),
        ("RAS_ADDR", "localhost:28028"),
        ("PROXY_CPUSET", "0-3,8"),
        ("THREAD_THRESHOLDS", "8 8 64 8 8 64"),
        ("NETDEVS_POLICY", "MAX:2"),
        ("ALGO", "allreduce:tree;broadcast:ring"),
        ("PROTO", "^LL128"),
        ("TOPO_FILE", "/etc/topo.xml"),
        ("CUMEM_ENABLE", "-2"),
        ("DEBUG_TIMESTAMP_FORMAT", "[%F %T]"),
    ],
)
def test_right_values(name: str, text: str) -> None:
    assert flaw(name, text) is None


@pytest.mark.parametrize(
    ("name", "text", "wrong_in", "right_in"),
    [
        ("MAX_CTAS", "64", "2.24.3", "2.25.1"),
        ("DEBUG", "ATTN", "2.31.2", "2.32.3"),
        ("DEBUG_SUBSYS", "RAS", "2.23.4", "2.24.3"),
        ("CTA_POLICY", "EFFICIENCY|ZERO", "2.28.9", "2.29.2"),
        ("IB_HCA", "=mlx5_0:1:0:1", "2.30.3", "2.30.7"),
        ("SET_THREAD_NAME", "TRUE", "2.30.3", "2.30.7"),
        ("RAS_TIMEOUT_FACTOR", "1.5", "2.30.7", "2.31.2"),
        ("ALGO", "pat", "2.22.3", "2.23.4"),
        ("ALGO", "allreduce:tree", "2.23.4", "2.24.3"),
    ],
)
def test_values_that_depend_on_the_release(name: str, text: str, wrong_in: str, right_in: str) -> None:
    assert flaw(name, text, wrong_in) is not None
    assert flaw(name, text, right_in) is None


def test_what_a_word_for_a_number_becomes() -> None:
    old, new = flaw("IB_DISABLE", "true", "2.31.2"), flaw("IB_DISABLE", "true", "2.32.3")
    assert old and "as 0" in old.evidence
    assert new and "default" in new.evidence


@pytest.mark.parametrize(
    "text",
    [
        "a\nb",
        "a\rb",
        "a\tb",
        "a\0b",
        '"1"',
        "it's",
        "$(reboot)",
        "${HOME}/x",
        "`id`",
        "a\\b",
        "grün",
        "\u200b1",
        " 1",
        "1 ",
    ],
)
def test_unsafe_values(text: str) -> None:
    found = unsafe(text)
    assert found is not None
    assert "\n" not in found.evidence and found.evidence.isascii()


@pytest.mark.parametrize("length", [LONGEST + 1, 2048])
def test_too_long(length: int) -> None:
    found = unsafe("x" * length)
    assert found and str(length) in found.evidence and len(found.evidence) < 200


@pytest.mark.parametrize("text", ["x" * LONGEST, "a;b", "a|b", "a&b", "[%F %T]", "a!b", "^=x", "#1", "%h.%p"])
def test_values_that_quoting_takes_care_of(text: str) -> None:
    assert unsafe(text) is None


def test_a_comment_behind_a_value() -> None:
    found = unsafe("3   # three")
    assert found and found.fix == "3"


@given(st.text(min_size=1))
def test_no_text_raises(text: str) -> None:
    for name in ("IB_HCA", "ALGO", "DEBUG", "BUFFSIZE", "SOCKET_IFNAME", "COMM_ID", "IB_ADDR_RANGE", "DEBUG_SUBSYS"):
        if unsafe(text) is None:
            flaw(name, text)


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (1, "1"), (1.5, "1.5"), ("x", "x"), (None, None), ([1], None), ({}, None)]
)
def test_yaml_scalars(value: object, text: str | None) -> None:
    assert as_text(value) == text
