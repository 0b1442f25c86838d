# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m lab.switch_daemon DIRECTORY NETWORK PORTS`: one network's switch, over Unix sockets in a directory.

QEMU's `-netdev stream` connects NIC i to the socket `NETWORK-i` and sends each frame behind its length (four bytes,
big-endian), in order and without loss. `NETWORK.control` takes JSON lines: {"add": RULE}, {"remove": NAME} or
{"show": true}, each answered by one line.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import os
import signal
import struct
import sys
import typing as t

from lab.switch import Rule, Switch

_LENGTH = struct.Struct(">I")
_LONGEST_FRAME = 1 << 17
# What a port that does not take its frames (a stopped node) may hold, before its frames are dropped as a switch would.
_PORT_BUFFER = 8 << 20


class Port(asyncio.Protocol):
    """One NIC's connection."""

    def __init__(self, fabric: Fabric, number: int) -> None:
        self._fabric = fabric
        self._number = number
        self._pending = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = t.cast(asyncio.Transport, transport)
        self._fabric.plug(self._number, self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._fabric.unplug(self._number, self._transport)

    def data_received(self, data: bytes) -> None:
        pending = self._pending
        pending += data
        position, packets = 0, []
        while len(pending) - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(pending, position)
            if length > _LONGEST_FRAME:
                # Out of step with the sender: nothing that follows can be told apart.
                t.cast(asyncio.Transport, self._transport).abort()
                return
            end = position + _LENGTH.size + length
            if len(pending) < end:
                break
            packets.append(bytes(pending[position:end]))
            position = end
        del pending[:position]
        self._fabric.carry(self._number, packets)


class Fabric:
    """The switch with its connected ports."""

    def __init__(self) -> None:
        self.switch = Switch()
        self._transports: dict[int, asyncio.Transport] = {}
        self._loop = asyncio.get_running_loop()

    def plug(self, number: int, transport: asyncio.Transport) -> None:
        """A NIC has connected; it takes the place of an earlier one."""
        self._transports[number] = transport
        self.switch.connect(number)

    def unplug(self, number: int, transport: asyncio.Transport) -> None:
        """A NIC's connection has ended."""
        if self._transports.get(number) is transport:
            del self._transports[number]
            self.switch.disconnect(number)

    def carry(self, source: int, packets: t.Iterable[bytes]) -> None:
        """Forward frames, each still behind its length; what goes to one port at once is written at once."""
        now = self._loop.time()
        ready: dict[int, list[bytes]] = {}
        for packet in packets:
            for port, at in self.switch.forward(source, packet[_LENGTH.size :], now):
                if at:
                    self._loop.call_at(at, self._write, port, packet)
                else:
                    ready.setdefault(port, []).append(packet)
        for port, together in ready.items():
            self._write(port, b"".join(together))

    def _write(self, port: int, data: bytes) -> None:
        transport = self._transports.get(port)
        if transport is None or transport.is_closing() or transport.get_write_buffer_size() > _PORT_BUFFER:
            self.switch.counters.dropped += 1
            return
        transport.write(data)

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one controlling connection until it closes."""
        while line := await reader.readline():
            try:
                answer = self._obey(json.loads(line))
            except (KeyError, TypeError, ValueError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    def _obey(self, request: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        if "add" in request:
            self.switch.add_rule(Rule.from_json(request["add"]))
        elif "remove" in request:
            self.switch.remove_rule(request["remove"])
        return {
            "rules": [dataclasses.asdict(rule) for rule in self.switch.rules],
            "counters": dataclasses.asdict(self.switch.counters),
            "ports": sorted(self._transports),
        }


async def serve(network: str, ports: int) -> None:
    """Listen in the working directory on every port's socket and, last, on the control socket: it says that all are there."""
    fabric = Fabric()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    for port in range(1, ports + 1):
        await loop.create_unix_server(functools.partial(Port, fabric, port), f"{network}-{port}")
    await asyncio.start_unix_server(fabric.control, f"{network}.control")
    await ended.wait()


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    asyncio.run(serve(sys.argv[2], int(sys.argv[3])))
