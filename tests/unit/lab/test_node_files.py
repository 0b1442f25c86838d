# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The archive that gives a node its identity."""

from __future__ import annotations

import io
import tarfile

from lab import keys
from lab.node_files import hosts_file, links_file, node_archive
from lab.plan import make_plan

PLAN = make_plan(2, 2)
OPERATOR = keys.generate("operator")


def unpack(lab_id: str, name: str) -> tuple[dict[str, tarfile.TarInfo], dict[str, str]]:
    data = node_archive(PLAN, PLAN.node(name), lab_id, keys.generate("host"), OPERATOR)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        entries = {entry.name: entry for entry in archive.getmembers()}
        texts = {
            name: stream.read().decode()
            for name, entry in entries.items()
            if (stream := archive.extractfile(entry) if entry.isfile() else None)
        }
    return entries, texts


def test_names_resolve_on_the_control_network_and_on_each_rail() -> None:
    lines = hosts_file(PLAN).splitlines()
    assert "10.76.0.2 n2" in lines
    assert "10.77.1.2 n2-rail1" in lines


def test_links_are_one_line_a_nic() -> None:
    lines = [line.split() for line in links_file(PLAN.node("n1")).splitlines()]
    assert [line[1:] for line in lines] == [
        ["eth0", "10.0.2.15/24", "1500", "-"],
        ["eth1", "10.77.0.1/24", "9000", "mlx5_0"],
        ["eth2", "10.77.1.1/24", "9000", "mlx5_1"],
        ["ctl0", "10.76.0.1/24", "1500", "-"],
    ]


def test_secrets_are_closed_and_belong_to_their_users() -> None:
    entries, texts = unpack("lab", "n1")
    assert entries["etc/ssh/ssh_host_ed25519_key"].mode == 0o600
    for home, owner in (("root", 0), ("home/ops", 1000)):
        assert entries[f"{home}/.ssh"].mode == 0o700
        assert entries[f"{home}/.ssh"].uid == owner
        assert entries[f"{home}/.ssh/authorized_keys"].uid == owner
        assert texts[f"{home}/.ssh/authorized_keys"] == OPERATOR.public
    assert all(OPERATOR.private not in text for text in texts.values())


def test_machine_ids_are_valid_and_differ_by_node_and_by_lab() -> None:
    ids = [unpack(lab, node)[1]["etc/machine-id"] for lab in ("a", "b") for node in ("n1", "n2")]
    assert len(set(ids)) == 4
    assert all(len(one) == 33 and int(one, 16) for one in ids)


def test_the_archive_fills_whole_sectors() -> None:
    data = node_archive(PLAN, PLAN.node("n1"), "lab", keys.generate("host"), OPERATOR)
    assert len(data) % 512 == 0
