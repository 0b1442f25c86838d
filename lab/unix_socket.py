# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Connects to a Unix socket whatever the length of its path (the kernel takes 107 bytes), and talks JSON lines over it."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import types
import typing as t

from lab.errors import LabError


class JsonLines:
    """A connection on which either side sends one JSON object a line. Every wait is bounded by timeout_s."""

    def __init__(self, path: pathlib.Path, timeout_s: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
            try:
                self._socket.connect(f"/proc/self/fd/{directory}/{path.name}")
            finally:
                os.close(directory)
        except OSError as error:
            self._socket.close()
            raise LabError(f"nothing answers at {path}: {error.strerror or error}") from error
        self._stream = self._socket.makefile("rwb")

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._stream.close()
        self._socket.close()

    def send(self, message: t.Mapping[str, t.Any]) -> None:
        """Send one object."""
        self._stream.write(json.dumps(message).encode() + b"\n")
        self._stream.flush()

    def receive(self) -> dict[str, t.Any]:
        """The next object. Raises LabError when the other side is silent or gone."""
        try:
            line = self._stream.readline()
        except OSError as error:
            raise LabError("the lab's process does not answer in time") from error
        if not line:
            raise LabError("the lab's process has closed the connection")
        message: dict[str, t.Any] = json.loads(line)
        return message
