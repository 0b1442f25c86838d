# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""SSH with pinned host keys, against servers in this process."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import socket
import threading
import time
import typing as t

import paramiko
import pytest

from lab import keys, remote
from lab.errors import LabError
from lab.ports import LOOPBACK
from lab.remote import Endpoint


class _Operator(paramiko.ServerInterface):
    """Lets one key in and runs `echo` and `false`; keeps silent at anything else."""

    def __init__(self, allowed: str) -> None:
        self._allowed = allowed

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL if key.get_base64() == self._allowed else paramiko.AUTH_FAILED

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        def answer() -> None:
            channel.sendall(command.removeprefix(b"echo ") if command.startswith(b"echo ") else b"")
            channel.send_exit_status(1 if command == b"false" else 0)
            channel.close()

        if command != b"hang":
            # What this method returns is sent first: an answer must not overtake it.
            threading.Timer(0.2, answer).start()
        return True


class Node:
    """An SSH server with a host key of its own, which listens from the start and answers when it is told to."""

    def __init__(self, directory: pathlib.Path, name: str, answers: bool = True) -> None:
        host_key = keys.load_or_generate(directory / f"{name}.host", name)
        self._key = paramiko.Ed25519Key.from_private_key_file(str(directory / f"{name}.host"))
        operator = keys.load_or_generate(directory / "operator", "operator")
        self._server = _Operator(operator.public.split()[1])
        self._listener = socket.create_server((LOOPBACK, 0))
        self.answers = threading.Event()
        if answers:
            self.answers.set()
        self._transports: list[paramiko.Transport] = []
        port = self._listener.getsockname()[1]
        self.endpoint = Endpoint(name, port, host_key.algorithm_and_key, directory / "operator")
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if not self.answers.is_set():
                connection.close()
                continue
            transport = paramiko.Transport(connection)
            transport.add_server_key(self._key)
            self._transports.append(transport)
            try:
                transport.start_server(server=self._server)
            except (paramiko.SSHException, EOFError):
                transport.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._listener.close()
        for transport in self._transports:
            transport.close()


@pytest.fixture
def start(tmp_path: pathlib.Path) -> t.Iterator[t.Callable[..., Node]]:
    started: list[Node] = []

    def one(name: str, **more: t.Any) -> Node:
        started.append(Node(tmp_path, name, **more))
        return started[-1]

    yield one
    for node in started:
        with contextlib.suppress(OSError):
            node.close()


def wait(
    nodes: t.Sequence[Node], booted: t.Callable[[str], bool] = lambda name: True, timeout_s: float = 20
) -> list[str]:
    arrived: list[str] = []
    remote.wait_for_all([node.endpoint for node in nodes], booted, timeout_s, arrived.append)
    return arrived


def test_a_node_with_its_own_key_is_let_in_and_runs_commands(start: t.Callable[..., Node]) -> None:
    node = start("n1")
    assert wait([node]) == ["n1"]
    assert remote.run(node.endpoint, "echo hello") == remote.Completed(0, "hello", "")
    assert remote.run(node.endpoint, "false").status == 1


def test_a_node_with_another_key_is_refused_at_once(start: t.Callable[..., Node]) -> None:
    node, impostor = start("n1"), start("impostor")
    swapped = dataclasses.replace(node.endpoint, port=impostor.endpoint.port)
    begun = time.monotonic()
    with pytest.raises(
        LabError, match=f"n1 is refused: what answers on {LOOPBACK}:{swapped.port} shows another host key"
    ):
        remote.wait_for_all([swapped], lambda name: True, 60, lambda name: None)
    assert time.monotonic() - begun < 10


def test_all_nodes_are_waited_for_at_the_same_time_and_told_as_they_come(start: t.Callable[..., Node]) -> None:
    slow, quick = start("n1", answers=False), start("n2")
    threading.Timer(1.0, slow.answers.set).start()
    assert wait([slow, quick]) == ["n2", "n1"]


def test_nothing_is_asked_of_a_node_before_it_has_booted(start: t.Callable[..., Node]) -> None:
    node = start("n1")
    node.answers.clear()
    asked: list[str] = []

    def booted(name: str) -> bool:
        asked.append(name)
        node.answers.set()
        return len(asked) > 2

    assert wait([node], booted) == ["n1"]


def test_one_that_does_not_come_is_named_with_the_last_reason(start: t.Callable[..., Node]) -> None:
    with pytest.raises(LabError, match="n2 does not come up in time: "):
        wait([start("n1"), start("n2", answers=False)], timeout_s=1)
    with pytest.raises(LabError, match="n3 does not come up in time: it has not booted"):
        wait([start("n3")], booted=lambda name: False, timeout_s=0.5)


def test_a_boot_that_has_failed_ends_the_wait_for_all(start: t.Callable[..., Node]) -> None:
    def booted(name: str) -> bool:
        raise LabError(f"{name} does not boot")

    begun = time.monotonic()
    with pytest.raises(LabError, match="n1 does not boot"):
        wait([start("n1")], booted, timeout_s=60)
    assert time.monotonic() - begun < 5


def test_a_command_that_hangs_is_bounded(start: t.Callable[..., Node]) -> None:
    with pytest.raises(LabError, match="n1 does not answer within 1 s: hang"):
        remote.run(start("n1").endpoint, "hang", timeout_s=1)


def test_a_node_that_is_gone_is_said(start: t.Callable[..., Node]) -> None:
    node = start("n1")
    node.close()
    with pytest.raises(LabError, match="n1 cannot be reached over SSH"):
        remote.run(node.endpoint, "echo x")
