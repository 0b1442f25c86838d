# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""SSH keys of a lab: one operator key, and one host key a node that is known before the node first boots."""

from __future__ import annotations

import dataclasses
import pathlib

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from lab.paths import write_atomically


@dataclasses.dataclass(frozen=True)
class KeyPair:
    """An Ed25519 key pair in OpenSSH's formats; public is one line, `ssh-ed25519 BASE64 COMMENT`."""

    private: str
    public: str

    @property
    def algorithm_and_key(self) -> str:
        """The public key without its comment, as known_hosts holds it."""
        return " ".join(self.public.split()[:2])


def generate(comment: str) -> KeyPair:
    """A new key pair without a passphrase."""
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return KeyPair(private.decode("ascii"), f"{public.decode('ascii')} {comment}\n")


def load_or_generate(path: pathlib.Path, comment: str) -> KeyPair:
    """The key pair at path and path.pub, generated when either is absent. The private file is mode 0600."""
    public_path = path.with_name(f"{path.name}.pub")
    if path.exists() and public_path.exists():
        return KeyPair(path.read_text("ascii"), public_path.read_text("ascii"))
    pair = generate(comment)
    write_atomically(path, pair.private.encode("ascii"), 0o600)
    write_atomically(public_path, pair.public.encode("ascii"))
    return pair


def known_hosts_line(host: str, port: int, public: str) -> str:
    """A known_hosts line that pins public for host on a port other than 22."""
    return f"[{host}]:{port} {' '.join(public.split()[:2])}\n"
