# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The launcher's way into the other nodes: a key of the run's own and pinned host keys. PRIVATE to the collection."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._authorized_keys import acting_as, comment
from ansible_collections.gpufabric.cluster.plugins.module_utils._lease import Lease
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Account, Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

#: in the order of preference; a node in FIPS mode makes no Ed25519 key
KEY_KINDS = (("ed25519",), ("ecdsa", "-b", "384"))


class TrustError(Exception):
    """The key cannot be made; the sentence says why."""


class SshTrust:
    """The files of one run's trust on the launcher, all of them in the lease's work directory in memory."""

    def __init__(self, fs: RootedFs, lease: Lease, account: Account) -> None:
        self._fs = fs
        self._lease = lease
        self._account = account
        self.key = f"{lease.work}/key"
        self.known_hosts = f"{lease.work}/known_hosts"
        self.config = f"{lease.work}/ssh_config"

    def make_key(self, tools: Tools) -> str:
        """Make the key pair unless it is there; the public key as "<kind> <base64>". The private key never leaves this node."""
        with acting_as(self._account):
            if not self._fs.exists(f"{self.key}.pub"):
                problems = []
                for kind in KEY_KINDS:
                    path = self._fs.host_path(self.key)
                    done = tools.run(
                        ["ssh-keygen", "-q", "-N", "", "-C", comment(self._lease.run_id), "-f", path, "-t", *kind]
                    )
                    if done.ok:
                        break
                    problems.append(done.problem)
                else:
                    raise TrustError("; ".join(problems))
                os.chmod(self._fs.host_path(self.key), 0o600)
            return " ".join(self._fs.read_text(f"{self.key}.pub").split()[:2])

    def write_client_files(self, peers: t.Sequence[t.Mapping[str, t.Any]]) -> None:
        """known_hosts and ssh_config for *peers*: [{address, port, host_keys: ["<kind> <base64>"]}]."""
        with acting_as(self._account):
            self._fs.write_atomic(self.known_hosts, known_hosts(peers).encode(), 0o600)
            text = ssh_config(
                peers, self._account.name, self._fs.host_path(self.key), self._fs.host_path(self.known_hosts)
            )
            self._fs.write_atomic(self.config, text.encode(), 0o600)


def known_hosts(peers: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    """Lines of sshd(8)'s known_hosts format; a port other than 22 stands as [address]:port."""
    return "".join(
        f"{peer['address'] if peer['port'] == 22 else '[{address}]:{port}'.format(**peer)} {key}\n"
        for peer in peers
        for key in peer["host_keys"]
    )


def ssh_config(peers: t.Sequence[t.Mapping[str, t.Any]], user: str, key: str, known: str) -> str:
    """An ssh_config(5) that knows these nodes, this key and nothing of the user's own configuration.

    Keep-alives: a node that dies is noticed within 40 s, and one whose cores are all busy has as long to answer.
    """
    ports = [f"Host {peer['address']}\n  Port {peer['port']}\n" for peer in peers if peer["port"] != 22]
    common = {
        "User": user,
        "IdentityFile": key,
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "PreferredAuthentications": "publickey",
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": known,
        "GlobalKnownHostsFile": "none",
        "UpdateHostKeys": "no",
        "CheckHostIP": "no",
        "ConnectTimeout": "20",
        "ServerAliveInterval": "10",
        "ServerAliveCountMax": "4",
        "ControlMaster": "no",
        "ControlPath": "none",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "LogLevel": "INFO",  # a connection that ends says why only at this level
    }
    return "".join(ports) + "Host *\n" + "".join(f"  {name} {value}\n" for name, value in common.items())
