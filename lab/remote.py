# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""SSH to the nodes with pinned host keys: wait for all at once, run a command on one."""

from __future__ import annotations

import base64
import concurrent.futures
import dataclasses
import logging
import pathlib
import threading
import time
import typing as t

import paramiko

from lab.errors import LabError
from lab.ports import LOOPBACK

_RETRY_S = 0.3
_CONNECT_S = 15.0
# An emulated node under load takes its time for the key exchange.
_HANDSHAKE_S = 45.0

# What goes wrong while a node boots is expected, and said here in one sentence when it lasts.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """How a node is reached, and the public host key (`ssh-ed25519 BASE64`) that it must show."""

    node: str
    port: int
    host_key: str
    identity: pathlib.Path
    user: str = "root"


@dataclasses.dataclass(frozen=True)
class Completed:
    """A command that has ended on a node."""

    status: int
    output: str
    errors: str


def connect(endpoint: Endpoint) -> paramiko.SSHClient:
    """A connection to the node. Raises LabError at once when it shows another host key than the one given to it."""
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    algorithm, encoded = endpoint.host_key.split()[:2]
    pinned = paramiko.Ed25519Key(data=base64.b64decode(encoded))
    client.get_host_keys().add(f"[{LOOPBACK}]:{endpoint.port}", algorithm, pinned)
    try:
        client.connect(
            LOOPBACK,
            endpoint.port,
            endpoint.user,
            key_filename=str(endpoint.identity),
            allow_agent=False,
            look_for_keys=False,
            timeout=_CONNECT_S,
            banner_timeout=_HANDSHAKE_S,
            auth_timeout=_HANDSHAKE_S,
        )
    except paramiko.BadHostKeyException as error:
        client.close()
        raise LabError(
            f"{endpoint.node} is refused: what answers on {LOOPBACK}:{endpoint.port} shows another host key than the one given to it"
        ) from error
    except BaseException:
        client.close()
        raise
    return client


def wait_for_all(
    endpoints: t.Sequence[Endpoint], booted: t.Callable[[str], bool], timeout_s: float, arrived: t.Callable[[str], None]
) -> None:
    """Wait on all nodes at the same time until each has booted and lets the operator in.

    booted(node) says whether the console has announced the node (QEMU's user-mode network accepts connections long before),
    and raises LabError when it never will. arrived(node) is called as each comes. The first failure ends the wait.
    """
    deadline = time.monotonic() + timeout_s
    given_up = threading.Event()
    pool = concurrent.futures.ThreadPoolExecutor(max(1, len(endpoints)))
    try:
        waits = {pool.submit(_wait_for, one, booted, deadline, given_up): one for one in endpoints}
        for done in concurrent.futures.as_completed(waits):
            done.result()
            arrived(waits[done].node)
    finally:
        # A handshake that hangs ends when the caller ends the machine: not waited for here.
        given_up.set()
        pool.shutdown(wait=False, cancel_futures=True)


def _wait_for(endpoint: Endpoint, booted: t.Callable[[str], bool], deadline: float, given_up: threading.Event) -> None:
    last = "it has not booted"
    while not given_up.is_set():
        if booted(endpoint.node):
            try:
                connect(endpoint).close()
                return
            except (paramiko.SSHException, OSError, EOFError) as error:
                last = f"{type(error).__name__}: {error}"
        if time.monotonic() > deadline:
            raise LabError(f"{endpoint.node} does not come up in time: {last}")
        given_up.wait(_RETRY_S)


def run(endpoint: Endpoint, command: str, timeout_s: float = 60.0) -> Completed:
    """Run a shell command on the node. Raises LabError when the node cannot be reached or does not answer in time."""
    try:
        client = connect(endpoint)
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise LabError(f"{endpoint.node} cannot be reached over SSH: {error or type(error).__name__}") from error
    try:
        channel_in, out, errors = client.exec_command(command, timeout=timeout_s)
        channel_in.close()
        output, problems = out.read(), errors.read()
        return Completed(
            out.channel.recv_exit_status(), output.decode("utf-8", "replace"), problems.decode("utf-8", "replace")
        )
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise LabError(f"{endpoint.node} does not answer within {timeout_s:.0f} s: {command}") from error
    finally:
        client.close()
