# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The forwarding of a learning Ethernet switch with faults, as a pure function of frames and time.

A frame carries no preamble and no checksum: destination MAC, source MAC, type, payload. Ports are numbered as the
nodes are. What a fault does to a frame is the sum of the rules that match it.
"""

from __future__ import annotations

import dataclasses
import random
import struct
import typing as t

_ETHERNET_HEADER = 14
_IPV4 = b"\x08\x00"
_UDP = 17
_MAXIMUM_QUEUE_S = 0.1


@dataclasses.dataclass(frozen=True)
class Rule:
    """What happens to frames that enter or leave by a port.

    peer narrows the rule to frames between port and that other port, udp_port to datagrams to that port. drop takes them
    all, loss a share of them (0 to 1), mtu those whose IP packet is longer (bytes); delay_ms holds them, rate_mbit queues
    them (tail drop).
    """

    name: str
    port: int
    peer: int | None = None
    udp_port: int | None = None
    drop: bool = False
    loss: float = 0.0
    mtu: int | None = None
    delay_ms: float = 0.0
    rate_mbit: float | None = None

    @classmethod
    def from_json(cls, value: t.Mapping[str, t.Any]) -> Rule:
        """The rule that dataclasses.asdict made value from."""
        return cls(**value)


class Delivery(t.NamedTuple):
    """A frame to hand to a port: now where at is 0, else at that time."""

    port: int
    at: float


@dataclasses.dataclass
class Counters:
    """What the switch has done since it started."""

    frames: int = 0
    octets: int = 0
    dropped: int = 0


class Switch:
    """Learns which MAC address is behind which port, and applies rules."""

    def __init__(self, chance: t.Callable[[], float] = random.random) -> None:
        self.counters = Counters()
        self._ports: set[int] = set()
        self._port_of: dict[bytes, int] = {}
        self._rules: dict[str, Rule] = {}
        self._free_at: dict[tuple[str, int], float] = {}
        self._chance = chance

    @property
    def rules(self) -> list[Rule]:
        """The rules in force, in the order in which they came."""
        return list(self._rules.values())

    def connect(self, port: int) -> None:
        """Something is plugged into port."""
        self._ports.add(port)

    def disconnect(self, port: int) -> None:
        """What was plugged into port is gone: its addresses are forgotten."""
        self._ports.discard(port)
        self._port_of = {address: behind for address, behind in self._port_of.items() if behind != port}

    def add_rule(self, rule: Rule) -> None:
        """Put a rule in force, in the place of one of the same name."""
        self._rules[rule.name] = rule

    def remove_rule(self, name: str) -> None:
        """Take a rule back; one that is not there is no error."""
        self._rules.pop(name, None)
        self._free_at = {key: at for key, at in self._free_at.items() if key[0] != name}

    def forward(self, source: int, frame: bytes, now: float) -> list[Delivery]:
        """Where a frame that came in by source goes. now is a monotonic time in seconds."""
        if len(frame) < _ETHERNET_HEADER:
            return []
        self._port_of[frame[6:12]] = source
        known = None if frame[0] & 1 else self._port_of.get(frame[:6])
        targets = [port for port in (self._ports if known is None else (known,)) if port != source]
        if not self._rules:
            deliveries = [Delivery(target, 0.0) for target in targets]
        else:
            deliveries = [
                Delivery(target, at)
                for target in targets
                if (at := self._delivery_time(source, target, frame, now)) is not None
            ]
            self.counters.dropped += len(targets) - len(deliveries)
        self.counters.frames += len(deliveries)
        self.counters.octets += len(deliveries) * len(frame)
        return deliveries

    def _delivery_time(self, source: int, target: int, frame: bytes, now: float) -> float | None:
        """When the frame reaches target: 0 at once, a time later, None never."""
        at = now
        for rule in self._rules.values():
            if not _matches(rule, source, target, frame):
                continue
            if rule.drop or (rule.loss and self._chance() < rule.loss):
                return None
            if rule.mtu is not None and len(frame) - _ETHERNET_HEADER > rule.mtu:
                return None
            at += rule.delay_ms / 1000
            if rule.rate_mbit:
                # Each direction of the port is a link of its own.
                link = (rule.name, 0 if source == rule.port else 1)
                begins = max(at, self._free_at.get(link, 0.0))
                if begins - at > _MAXIMUM_QUEUE_S:
                    return None
                at = self._free_at[link] = begins + len(frame) * 8 / (rule.rate_mbit * 1e6)
        return at if at > now else 0.0


def _matches(rule: Rule, source: int, target: int, frame: bytes) -> bool:
    if rule.port not in (source, target):
        return False
    if rule.peer is not None and rule.peer not in (source, target):
        return False
    return rule.udp_port is None or _udp_destination(frame) == rule.udp_port


def _udp_destination(frame: bytes) -> int | None:
    """Destination port of an IPv4 UDP datagram (of its first fragment), None for any other frame."""
    if frame[12:14] != _IPV4 or len(frame) < _ETHERNET_HEADER + 20 or frame[23] != _UDP:
        return None
    offset = _ETHERNET_HEADER + (frame[14] & 0x0F) * 4
    if len(frame) < offset + 4 or struct.unpack_from(">H", frame, 20)[0] & 0x1FFF:
        return None
    port: int = struct.unpack_from(">H", frame, offset + 2)[0]
    return port
