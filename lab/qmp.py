# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands to a running QEMU (its monitor protocol, QMP)."""

from __future__ import annotations

import pathlib
import typing as t

from lab.errors import LabError
from lab.unix_socket import JsonLines

_TIMEOUT_S = 10.0


def execute(monitor: pathlib.Path, command: str, arguments: t.Mapping[str, t.Any] | None = None) -> t.Any:
    """Run one command and return what QEMU returns. Raises LabError when QEMU refuses it or does not answer."""
    with JsonLines(monitor, _TIMEOUT_S) as connection:
        connection.receive()
        connection.send({"execute": "qmp_capabilities"})
        _answer(connection, "qmp_capabilities")
        connection.send({"execute": command, "arguments": dict(arguments or {})})
        return _answer(connection, command)


def _answer(connection: JsonLines, command: str) -> t.Any:
    while True:
        message = connection.receive()
        if "return" in message:
            return message["return"]
        if "error" in message:
            raise LabError(f"QEMU refuses {command}: {message['error'].get('desc')}")
