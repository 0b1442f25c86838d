# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the variants add: Slurm's configuration and the simulated fabric."""

from __future__ import annotations

import collections
import re

import pytest

from lab import ibsim, slurm, variants
from lab.errors import LabError
from lab.plan import MAXIMUM_NODES, make_plan


def test_every_variant_names_valid_paths_once() -> None:
    for name, variant in variants.VARIANTS.items():
        files = variant.own_files(make_plan(2, 2, soft_roce=variant.soft_roce))
        assert len({file.path for file in files}) == len(files), name
        assert not [file.path for file in files if file.path.startswith("/") or ".." in file.path]


def test_an_unknown_variant_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(LabError, match="--variant is 'pbs', expected one of base, slurm, ibsim"):
        variants.find("pbs")


def test_slurm_knows_every_node_on_the_control_network() -> None:
    text = slurm.slurm_conf(make_plan(3, 1))
    assert "SlurmctldHost=n1(10.76.0.1)\n" in text
    assert re.findall(r"^NodeName=(n\d+) NodeAddr=(\S+)$", text, re.M) == [(f"n{n}", f"10.76.0.{n}") for n in (1, 2, 3)]


def test_each_lab_has_its_own_munge_key_and_nobody_else_reads_it() -> None:
    keys = [file for _ in range(2) for file in slurm.own_files(make_plan(1, 1)) if file.path.endswith("munge.key")]
    assert keys[0].content != keys[1].content
    assert all(len(key.content) >= 32 and key.mode == 0o600 for key in keys)


@pytest.mark.parametrize("nodes", [1, 2, 5, MAXIMUM_NODES])
def test_both_ends_of_every_cable_agree_and_no_port_is_used_twice(nodes: int) -> None:
    ends: dict[tuple[str, int], tuple[str, int]] = {}
    name = ""
    for line in ibsim.topology(make_plan(nodes, 1, soft_roce=False)).splitlines():
        if header := re.fullmatch(r'(?:Switch|Hca)\t(\d+) "(\w+)"', line):
            name, most = header[2], int(header[1])
        elif link := re.fullmatch(r'\[(\d+)\]\t"(\w+)"\[(\d+)\] s=7', line):
            assert (name, int(link[1])) not in ends
            assert 1 <= int(link[1]) <= most
            ends[name, int(link[1])] = (link[2], int(link[3]))
        else:
            assert line == ""
    assert all(ends[there] == here for here, there in ends.items())
    assert collections.Counter(end for end, _ in ends)["leaf0"] == (nodes + 1) // 2 + 1
    assert not [end for end in ends if end[1] == ibsim.SPARE_PORT]


def test_the_collection_is_told_where_each_cable_leads() -> None:
    told = ibsim.group_variables(make_plan(3, 1, soft_roce=False))["rdma_cabling"]
    assert told[2] == {"node": "n3", "switch": "leaf0", "switch_port": "2"}
