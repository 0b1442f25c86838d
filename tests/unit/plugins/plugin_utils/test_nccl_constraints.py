# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What variables demand of one another."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_constraints import breaches


def values(text: str) -> dict[str, str]:
    return {f"NCCL_{name}": value for name, _, value in (pair.partition("=") for pair in text.split())}


@pytest.mark.parametrize(
    ("given", "names", "breaks"),
    [
        ("SOCKET_NTHREADS=16 NSOCKS_PERTHREAD=8", "SOCKET_NTHREADS NSOCKS_PERTHREAD", True),
        ("SOCKET_NTHREADS=8 NSOCKS_PERTHREAD=9", "SOCKET_NTHREADS NSOCKS_PERTHREAD", True),
        ("NSOCKS_PERTHREAD=8", "SOCKET_NTHREADS NSOCKS_PERTHREAD", False),
        ("MIN_CTAS=32 MAX_CTAS=16", "MIN_CTAS MAX_CTAS", True),
        ("MIN_NCHANNELS=9 MAX_NCHANNELS=8", "MIN_NCHANNELS MAX_NCHANNELS", True),
        ("DEBUG_FILE=/tmp/x", "DEBUG_FILE", False),
        ("DEBUG=WARN DEBUG_SUBSYS=NET", "DEBUG_SUBSYS", False),
        ("IB_GID_INDEX=3 IB_ADDR_RANGE=10.0.0.0/8", "IB_ADDR_RANGE", False),
    ],
)
def test_breaches(given: str, names: str, breaks: bool) -> None:
    found = breaches(values(given))
    assert [(breach.names, breach.breaks) for breach in found] == [
        (tuple(f"NCCL_{name}" for name in names.split()), breaks)
    ]


@pytest.mark.parametrize(
    "given",
    [
        "SOCKET_NTHREADS=2 NSOCKS_PERTHREAD=8",
        "SOCKET_NTHREADS=16 NSOCKS_PERTHREAD=4",
        "SOCKET_NTHREADS=4",
        "MIN_CTAS=16 MAX_CTAS=16",
        "DEBUG=INFO DEBUG_SUBSYS=NET DEBUG_FILE=/tmp/x",
        "DEBUG=WARN DEBUG_FILE=/tmp/x",
        "IB_GID_INDEX=-1 IB_ADDR_RANGE=10.0.0.0/8",
        "",
    ],
)
def test_no_breach(given: str) -> None:
    assert breaches(values(given)) == []


def test_too_many_sockets_become_what_nccl_makes_of_them() -> None:
    (breach,) = breaches(values("SOCKET_NTHREADS=16 NSOCKS_PERTHREAD=8"))
    assert breach.corrected == {"NCCL_NSOCKS_PERTHREAD": "4"}
    assert "128" in breach.evidence
