# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How a probing node talks with a responder: one line of JSON each way over TCP. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import json
import socket
import typing as t

#: of one request or answer, in bytes
LINE_LIMIT = 65536


class ChannelError(Exception):
    """What went wrong, in a sentence."""


class LineSocket:
    """Lines of JSON over a connected socket. Not safe for several threads at once."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._buffered = b""

    def send(self, message: t.Mapping[str, t.Any]) -> None:
        self.socket.sendall((json.dumps(message) + "\n").encode())

    def receive(self) -> dict[str, t.Any] | None:
        """The next message, None at the end of the connection. ChannelError for anything that is no JSON object in a line."""
        while b"\n" not in self._buffered:
            if len(self._buffered) > LINE_LIMIT:
                raise ChannelError("the line is too long")
            received = self.socket.recv(65536)
            if not received:
                return None
            self._buffered += received
        line, self._buffered = self._buffered.split(b"\n", 1)
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise ChannelError("the line holds no JSON object")
        return message


def connect(address: str, port: int, timeout_s: float, netdev: str = "", source: str = "") -> socket.socket:
    """A TCP connection that leaves by *netdev* from the address *source*. OSError as the kernel answers.

    Without the right to bind to an interface (SO_BINDTODEVICE, socket(7)) the route decides, as it does for NCCL.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.settimeout(timeout_s)
        if netdev:
            with contextlib.suppress(PermissionError):
                made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, netdev.encode())
        if source:
            made.bind((source, 0))
        made.connect((address, port))
    except BaseException:
        made.close()
        raise
    return made


class Channel:
    """A connection to a responder over the first of *addresses* that works. Closing it ends all that it asked for."""

    def __init__(self, addresses: t.Sequence[str], port: int, token: str, timeout_s: float) -> None:
        self.address = ""
        self._token = token
        said = []
        for address in addresses:
            try:
                self._lines = LineSocket(connect(address, port, timeout_s))
                self.address = address
                break
            except OSError as error:
                said.append(f"{address}: {why(error)}")
        if not self.address:
            raise ChannelError("; ".join(said) or "the peer has no address")

    def ask(self, do: str, timeout_s: float, **arguments: t.Any) -> dict[str, t.Any]:
        """The answer to one request. ChannelError says what the responder could not do, or that there was no answer."""
        self._lines.socket.settimeout(timeout_s)
        try:
            self._lines.send({"token": self._token, "do": do, **arguments})
            answer = self._lines.receive()
        except OSError as error:
            raise ChannelError(f"no answer to {do} from {self.address}: {why(error)}") from error
        if answer is None:
            raise ChannelError(f"the peer closed the connection at {do}")
        if "error" in answer:
            raise ChannelError(str(answer["error"]))
        return answer

    def close(self) -> None:
        self._lines.socket.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def why(error: OSError) -> str:
    """The system's words for an error."""
    return "timed out" if isinstance(error, socket.timeout) else (error.strerror or str(error))
