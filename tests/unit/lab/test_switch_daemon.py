# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The switch as a process: sockets as QEMU uses them, and its control."""

from __future__ import annotations

import pathlib
import socket
import struct
import sys
import time
import typing as t

import pytest

from lab import process, switch_client
from lab.errors import LabError
from lab.paths import REPOSITORY
from lab.switch import Rule


@pytest.fixture
def directory(tmp_path: pathlib.Path) -> t.Iterator[pathlib.Path]:
    command = [sys.executable, "-m", "lab.switch_daemon", str(tmp_path), "rail0", "2"]
    one = process.spawn(command, REPOSITORY, tmp_path / "log", "test-switch")
    deadline = time.monotonic() + 15
    while not (tmp_path / "rail0.control").exists():
        assert one.alive() and time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.02)
    yield tmp_path
    process.end([one])
    assert (tmp_path / "log").read_text() == ""


def plug(directory: pathlib.Path, port: int) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(5)
    connection.connect(str(directory / f"rail0-{port}"))
    deadline = time.monotonic() + 5
    while port not in switch_client.show(directory / "rail0.control")["ports"]:
        assert time.monotonic() < deadline
    return connection


def framed(source: int, target: int, size: int) -> bytes:
    data = bytes([2, 0, 0, 0, 0, target, 2, 0, 0, 0, 0, source]) + bytes(size - 12)
    return struct.pack(">I", len(data)) + data


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += connection.recv(size - len(data))
    return data


def test_frames_pass_whole_in_order_however_they_are_cut(directory: pathlib.Path) -> None:
    sent = b"".join(framed(1, 2, size) for size in (64, 9014, 60, 1514) * 20)
    with plug(directory, 1) as one, plug(directory, 2) as two:
        for start in range(0, len(sent), 4099):
            one.sendall(sent[start : start + 4099])
        assert receive(two, len(sent)) == sent


def test_a_rule_comes_and_goes_while_frames_flow(directory: pathlib.Path) -> None:
    control = directory / "rail0.control"
    with plug(directory, 1) as one, plug(directory, 2) as two:
        switch_client.add_rule(control, Rule("down", 2, drop=True))
        one.sendall(framed(1, 2, 100))
        two.settimeout(0.3)
        with pytest.raises(TimeoutError):
            two.recv(1)
        switch_client.remove_rule(control, "down")
        one.sendall(framed(1, 2, 200))
        two.settimeout(5)
        assert receive(two, 204) == framed(1, 2, 200)


def test_a_delayed_frame_comes_later(directory: pathlib.Path) -> None:
    switch_client.add_rule(directory / "rail0.control", Rule("late", 2, delay_ms=200))
    with plug(directory, 1) as one, plug(directory, 2) as two:
        begun = time.monotonic()
        one.sendall(framed(1, 2, 100))
        receive(two, 104)
        assert time.monotonic() - begun >= 0.2


def test_a_nic_that_takes_nothing_does_not_stop_the_others(directory: pathlib.Path) -> None:
    """A stopped node fills its buffer and then loses frames; memory stays bounded and other traffic goes on."""
    with plug(directory, 1) as one, plug(directory, 2):
        for _ in range(1500):
            one.sendall(framed(1, 2, 9000))
        counters = switch_client.show(directory / "rail0.control")["counters"]
        assert counters["dropped"] > 0


def test_a_stream_out_of_step_is_closed(directory: pathlib.Path) -> None:
    with plug(directory, 1) as one:
        one.sendall(b"\xff\xff\xff\xff")
        assert one.recv(1) == b""


def test_nonsense_to_the_control_is_refused_and_survived(directory: pathlib.Path) -> None:
    control = directory / "rail0.control"
    with pytest.raises(LabError, match="refuses"):
        switch_client._ask(control, {"add": {"colour": "red"}})
    assert switch_client.show(control)["rules"] == []


def test_no_switch_is_said(tmp_path: pathlib.Path) -> None:
    with pytest.raises(LabError, match="nothing answers at"):
        switch_client.show(tmp_path / "rail0.control")
