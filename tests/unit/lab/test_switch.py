# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The switch's forwarding and what its rules do to frames."""

from __future__ import annotations

import random
import struct

import pytest

from lab.switch import Delivery, Rule, Switch

BROADCAST = b"\xff" * 6


def mac(port: int) -> bytes:
    return bytes([2, 0, 0, 0, 0, port])


def frame(source: int, target: int | None, payload: bytes = b"\x88\xb5data") -> bytes:
    return (BROADCAST if target is None else mac(target)) + mac(source) + payload


def udp(source: int, target: int, port: int, options: bytes = b"", fragment: int = 0) -> bytes:
    header = bytes([0x40 | (5 + len(options) // 4), 0]) + b"\0\0\0\0" + struct.pack(">H", fragment) + bytes([64, 17])
    ip = header + bytes(10) + options
    return frame(source, target, b"\x08\x00" + ip + struct.pack(">HHHH", 49152, port, 8, 0))


@pytest.fixture
def switch() -> Switch:
    """Four ports, each of which has been heard of."""
    one = Switch(random.Random(7).random)
    for port in range(1, 5):
        one.connect(port)
    for port in range(1, 5):
        one.forward(port, frame(port, None), 0.0)
    return one


def reached(switch: Switch, source: int, data: bytes, now: float = 0.0) -> list[int]:
    return sorted(delivery.port for delivery in switch.forward(source, data, now))


def test_a_known_address_gets_its_frames_alone(switch: Switch) -> None:
    assert switch.forward(1, frame(1, 3), 0.0) == [Delivery(3, 0.0)]


def test_broadcasts_and_unknown_addresses_go_everywhere_but_back(switch: Switch) -> None:
    assert reached(switch, 2, frame(2, None)) == [1, 3, 4]
    assert reached(switch, 2, frame(2, 99)) == [1, 3, 4]


def test_a_frame_for_its_own_port_goes_nowhere(switch: Switch) -> None:
    assert reached(switch, 2, frame(1, 2)) == []


def test_an_address_that_moves_is_learnt_anew(switch: Switch) -> None:
    switch.forward(4, frame(1, None), 0.0)
    assert reached(switch, 2, frame(2, 1)) == [4]


def test_a_port_that_was_unplugged_is_forgotten(switch: Switch) -> None:
    switch.disconnect(3)
    assert reached(switch, 1, frame(1, 3)) == [2, 4]


def test_runts_are_no_frames(switch: Switch) -> None:
    assert switch.forward(1, frame(1, 2)[:13], 0.0) == []


def test_a_dropping_rule_cuts_the_port_off_both_ways_and_no_other(switch: Switch) -> None:
    switch.add_rule(Rule("down", 2, drop=True))
    assert reached(switch, 1, frame(1, 2)) == []
    assert reached(switch, 2, frame(2, 1)) == []
    assert reached(switch, 1, frame(1, None)) == [3, 4]
    switch.remove_rule("down")
    assert reached(switch, 1, frame(1, 2)) == [2]


def test_a_rule_between_two_ports_leaves_the_third_alone(switch: Switch) -> None:
    switch.add_rule(Rule("pair", 2, peer=3, drop=True))
    assert reached(switch, 3, frame(3, 2)) == []
    assert reached(switch, 2, frame(2, 3)) == []
    assert reached(switch, 1, frame(1, 2)) == [2]


@pytest.mark.parametrize("options", [b"", b"\x01" * 8])
def test_a_blocked_udp_port_is_found_behind_ip_options(switch: Switch, options: bytes) -> None:
    switch.add_rule(Rule("roce", 2, udp_port=4791, drop=True))
    assert reached(switch, 1, udp(1, 2, 4791, options)) == []
    assert reached(switch, 1, udp(1, 2, 4792, options)) == [2]
    assert reached(switch, 1, frame(1, 2)) == [2]
    assert reached(switch, 1, udp(1, 3, 4791, options)) == [3]


def test_later_fragments_and_cut_off_headers_have_no_port(switch: Switch) -> None:
    switch.add_rule(Rule("roce", 2, udp_port=4791, drop=True))
    assert reached(switch, 1, udp(1, 2, 4791, fragment=100)) == [2]
    assert reached(switch, 1, udp(1, 2, 4791)[:36]) == [2]


def test_an_mtu_counts_the_ip_packet_without_the_ethernet_header(switch: Switch) -> None:
    switch.add_rule(Rule("mtu", 2, mtu=1500))
    assert reached(switch, 1, frame(1, 2, b"\x08\x00" + bytes(1500))) == [2]
    assert reached(switch, 1, frame(1, 2, b"\x08\x00" + bytes(1501))) == []


def test_loss_takes_its_share(switch: Switch) -> None:
    switch.add_rule(Rule("loss", 2, loss=0.3))
    passed = sum(len(switch.forward(1, frame(1, 2), 0.0)) for _ in range(5000))
    assert 0.66 < passed / 5000 < 0.74
    assert switch.counters.dropped == 5000 - passed


def test_a_delay_is_added_to_the_time_of_arrival(switch: Switch) -> None:
    switch.add_rule(Rule("delay", 2, delay_ms=20))
    assert switch.forward(1, frame(1, 2), 5.0) == [Delivery(2, pytest.approx(5.02))]
    assert switch.forward(1, frame(1, 3), 5.0) == [Delivery(3, 0.0)]


def test_a_rate_queues_each_direction_by_itself_and_drops_the_tail(switch: Switch) -> None:
    switch.add_rule(Rule("rate", 2, rate_mbit=8))
    data = frame(1, 2, bytes(10_000 - 12))  # 10,000 bytes at 8 Mbit/s take 10 ms
    times = [switch.forward(1, data, 1.0) for _ in range(15)]
    assert [one[0].at for one in times[:10]] == pytest.approx([1.0 + 0.01 * n for n in range(1, 11)])
    assert times[12:] == [[], [], []]
    assert switch.forward(2, frame(2, 1), 1.0)[0].at < 1.001
    assert switch.forward(1, data, 2.0)[0].at == pytest.approx(2.01)


def test_rules_add_up_and_one_of_the_same_name_replaces(switch: Switch) -> None:
    switch.add_rule(Rule("a", 2, delay_ms=10))
    switch.add_rule(Rule("b", 1, delay_ms=5))
    switch.add_rule(Rule("a", 2, delay_ms=20))
    assert switch.forward(1, frame(1, 2), 0.0)[0].at == pytest.approx(0.025)
    assert [rule.name for rule in switch.rules] == ["a", "b"]


def test_counters_tell_frames_and_octets(switch: Switch) -> None:
    before = switch.counters.frames, switch.counters.octets
    switch.forward(1, frame(1, 2), 0.0)
    assert (switch.counters.frames - before[0], switch.counters.octets - before[1]) == (1, len(frame(1, 2)))
