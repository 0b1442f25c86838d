# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of an environment may stand in a result: variables that say how it was measured, and nothing else."""

from __future__ import annotations

import string

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._withheld import (
    is_allowed,
    secrets_of,
    withheld,
    withhold,
)
from hypothesis import given
from hypothesis import strategies as st

PLANTED = "hunter2-planted"

FORMS = [
    "AWS_SECRET_ACCESS_KEY={}",
    "n1: HF_TOKEN={}",
    "export SLURM_JWT='{}'",
    'declare -x NCCL_PSK="{}"',
    "[1,0]<stderr>:NCCL_PSK={}",
    "n1:11:11 [0] NCCL INFO NCCL_PSK set by environment to {}.",
    '{{"env": ["NCCL_PSK={}", "PATH=/usr/bin"]}}',
    "environ({{'HF_TOKEN': '{}', 'PATH': '/usr/bin'}})",
    '{{"password": "{}"}}',
    "ansible_become_password: {}",
    "curl -H 'Authorization: Bearer {}' https://example.org",
    "fatal: could not read https://git:{}@example.org/nccl-tests.git",
    "mpirun -x NCCL_DEBUG=INFO -x WANDB_API_KEY={} all_reduce_perf",
    "  USER_DATA=one two {}",
    "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\n{}",
]


@pytest.mark.parametrize("form", FORMS)
def test_a_value_is_withheld_and_what_stands_around_it_stays(form: str) -> None:
    text = f"before\n{form.format(PLANTED)}\nafter"
    told = withhold(text)
    assert PLANTED not in told and "(withheld)" in told
    assert told.startswith("before\n") and (told.endswith("\nafter") or "PRIVATE KEY" in form)


@pytest.mark.parametrize(
    "text",
    [
        "NCCL_DEBUG=INFO",
        "mpirun -x NCCL_IB_HCA==mlx5_0:1 -x UCX_TLS=rc,ud,self --mca btl_tcp_if_include 10.0.0.0/24",
        "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1 LID=5 MTU=4096",
        "# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809",
        "#  Rank  0 Group  0 Pid  11 on  host-a device  0 [0000:1a:00] NVIDIA H200",
        "    1048576  262144  float  sum  -1   30.11   34.82   34.82   0   30.02   34.93   34.93   0",
        "# Out of bounds values : 0 OK",
        "n1:1:1 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0",
        "https://github.com/NVIDIA/nccl-tests.git",
        "read 512 tokens: fine, max_tokens=512",
    ],
)
def test_what_says_how_it_was_measured_stays(text: str) -> None:
    assert withhold(text) == text


def test_known_secrets_go_wherever_they_stand() -> None:
    found = secrets_of({"HF_TOKEN": PLANTED, "NCCL_DEBUG": "INFO-INFO", "EDITOR_KEY": "short", "USER": "somebody-long"})
    assert found == [PLANTED]
    assert withhold(f"Invalid credentials ({PLANTED})", found) == "Invalid credentials ((withheld))"


def test_structures_are_gone_through() -> None:
    given = {
        "environment": {"HF_TOKEN": PLANTED, "NCCL_DEBUG": "INFO", "X": 7},
        "argv": ["-x", f"HF_TOKEN={PLANTED}"],
        "size": 8,
    }
    assert withheld(given) == {
        "environment": {"HF_TOKEN": "(withheld)", "NCCL_DEBUG": "INFO", "X": "(withheld)"},
        "argv": ["-x", "HF_TOKEN=(withheld)"],
        "size": 8,
    }


VALUES = st.text(string.ascii_letters + string.digits + "+/-._", min_size=12, max_size=40)
NAMES = st.from_regex(r"[A-Z]{2,8}(_[A-Z0-9]{1,8}){1,3}", fullmatch=True).filter(lambda name: not is_allowed(name))


@given(
    NAMES,
    VALUES,
    st.sampled_from(["{}={}", "export {}={}", "x {}={} y", '"{}": "{}"', "{} set by environment to {}", "-x {}='{}'"]),
)
def test_whatever_is_not_allowed_is_withheld(name: str, value: str, form: str) -> None:
    assert value not in withhold(form.format(name, value))
