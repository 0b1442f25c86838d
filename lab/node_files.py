# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that are one node's own, as the tar archive that it unpacks once, before its first boot."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
import typing as t

from lab.keys import KeyPair
from lab.plan import Node, Plan

_OPS_ID = 1000


@dataclasses.dataclass(frozen=True)
class OwnFile:
    """A file that a node gets at its first boot; path is relative to its root directory."""

    path: str
    content: str
    mode: int = 0o644
    owner: int = 0


def hosts_file(plan: Plan) -> str:
    """/etc/hosts: every node's name on the control network, and `NAME-railR` on its rails."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    for node in plan.nodes:
        lines.append(f"{node.control.address} {node.name}")
        lines += [f"{link.address} {node.name}-{link.network.name}" for link in node.rails]
    return "\n".join(lines) + "\n"


def links_file(node: Node) -> str:
    """/etc/lab/links: `MAC NAME ADDRESS/PREFIX MTU RDMA-DEVICE-OR-DASH`, one line a NIC, read by lab-network and lab-rdma."""
    return "".join(
        f"{link.mac} {link.interface} {link.cidr} {link.network.mtu} {link.rdma_device or '-'}\n" for link in node.links
    )


def node_archive(
    plan: Plan, node: Node, lab_id: str, host_key: KeyPair, operator: KeyPair, more: t.Iterable[OwnFile] = ()
) -> bytes:
    """The tar archive of node's identity: name, machine id, addresses, host key, authorized keys, and more."""
    machine_id = hashlib.sha256(f"{lab_id} {node.name}".encode()).hexdigest()[:32]
    files = [
        OwnFile("etc/lab/links", links_file(node)),
        OwnFile("etc/hostname", f"{node.name}\n"),
        OwnFile("etc/hosts", hosts_file(plan)),
        OwnFile("etc/machine-id", f"{machine_id}\n", 0o444),
        OwnFile("etc/ssh/ssh_host_ed25519_key", host_key.private, 0o600),
        OwnFile("etc/ssh/ssh_host_ed25519_key.pub", host_key.public),
        OwnFile("root/.ssh/authorized_keys", operator.public, 0o600),
        OwnFile("home/ops/.ssh/authorized_keys", operator.public, 0o600, _OPS_ID),
        *more,
    ]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        _directory(archive, "etc/lab", 0o755, 0)
        _directory(archive, "root/.ssh", 0o700, 0)
        _directory(archive, "home/ops/.ssh", 0o700, _OPS_ID)
        for file in files:
            data = file.content.encode()
            entry = tarfile.TarInfo(file.path)
            entry.size, entry.mode, entry.uid, entry.gid = len(data), file.mode, file.owner, file.owner
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _directory(archive: tarfile.TarFile, name: str, mode: int, owner: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, mode, owner, owner
    archive.addfile(entry)
