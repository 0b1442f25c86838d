# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that are one node's own, as the tar archive that it unpacks once, before its first boot."""

from __future__ import annotations

import hashlib
import io
import tarfile

from lab.keys import KeyPair
from lab.plan import Node, Plan

_OPS_ID = 1000


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


def node_archive(plan: Plan, node: Node, lab_id: str, host_key: KeyPair, operator: KeyPair) -> bytes:
    """The tar archive of node's identity: name, machine id, addresses, host key, authorized keys."""
    machine_id = hashlib.sha256(f"{lab_id} {node.name}".encode()).hexdigest()[:32]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        _directory(archive, "etc/lab", 0o755)
        _file(archive, "etc/lab/links", links_file(node))
        _file(archive, "etc/hostname", f"{node.name}\n")
        _file(archive, "etc/hosts", hosts_file(plan))
        _file(archive, "etc/machine-id", f"{machine_id}\n", 0o444)
        _file(archive, "etc/ssh/ssh_host_ed25519_key", host_key.private, 0o600)
        _file(archive, "etc/ssh/ssh_host_ed25519_key.pub", host_key.public)
        for home, owner in (("root", 0), ("home/ops", _OPS_ID)):
            _directory(archive, f"{home}/.ssh", 0o700, owner)
            _file(archive, f"{home}/.ssh/authorized_keys", operator.public, 0o600, owner)
    return buffer.getvalue()


def _directory(archive: tarfile.TarFile, name: str, mode: int, owner: int = 0) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, mode, owner, owner
    archive.addfile(entry)


def _file(archive: tarfile.TarFile, name: str, content: str, mode: int = 0o644, owner: int = 0) -> None:
    data = content.encode()
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.uid, entry.gid = len(data), mode, owner, owner
    archive.addfile(entry, io.BytesIO(data))
