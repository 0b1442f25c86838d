# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ping(8) of iputils: reachability, the largest packet that passes, and loss. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Completed, Tools

#: bytes of IP and ICMP headers before ping's payload
HEADERS = {4: 28, 6: 48}
#: seconds between packets that every user may ask for, of any iputils
PATIENT_S = 0.2

_SUMMARY = re.compile(r"(\d+) packets transmitted, (\d+) (?:packets )?received")
_TIMES = re.compile(r"= ([\d.]+)/([\d.]+)/([\d.]+)(?:/[\d.]+)? ms")
_TOO_LONG = re.compile(
    r"message too long,? ?\(?(?:mtu ?= ?(\d+))?|Frag(?:mentation)? needed.*?mtu ?= ?(\d+)", re.IGNORECASE
)
_NO_REASON = re.compile(r"^(?:PING|---|rtt|round-trip|\d+ bytes|\d+ packets|$)")


def ping(
    tools: Tools,
    address: str,
    netdev: str = "",
    count: int = 3,
    interval_s: float = 0.2,
    packet: int = 84,
    fragment: bool = True,
    wait_s: float = 1.0,
) -> dict[str, t.Any]:
    """Send *count* echo requests, each an IP packet of *packet* bytes, out of *netdev*.

    {sent, received, min_ms, avg_ms, packet, problem, mtu}; mtu: what a host or router on the way names as its limit,
    None if nobody does; problem: ping's own words where not all came back. With fragment=False the packets may not be
    cut on the way.
    """
    argv = ["ping", "-n", "-c", str(count), "-i", f"{interval_s:g}", "-W", f"{wait_s:g}"]
    argv += ["-s", str(max(packet - HEADERS[6 if ":" in address else 4], 0))]
    argv += ["-q"] if fragment else ["-M", "do"]
    argv += ["-I", netdev] if netdev else []
    timeout = count * interval_s + wait_s * 3 + 5.0
    done = tools.run([*argv, address], timeout=timeout)
    if "minimal interval" in done.stderr.lower() or "cannot flood" in done.stderr.lower():
        return ping(tools, address, netdev, min(count, 15), PATIENT_S, packet, fragment, wait_s)
    return read_ping(done, packet)


def read_ping(done: Completed, packet: int) -> dict[str, t.Any]:
    """What ping() returns, from what the program printed."""
    text = done.stdout + "\n" + done.stderr
    summary, times, too_long = _SUMMARY.search(text), _TIMES.search(done.stdout), _TOO_LONG.search(text)
    sent, received = (int(n) for n in summary.groups()) if summary else (0, 0)
    return {
        "packet": packet,
        "sent": sent,
        "received": received,
        "min_ms": float(times.group(1)) if times else None,
        "avg_ms": float(times.group(2)) if times else None,
        "mtu": int(next((group for group in too_long.groups() if group), 0)) or None if too_long else None,
        "problem": "" if sent and received == sent else _problem(done, text, sent, received, bool(too_long)),
    }


def _problem(done: Completed, text: str, sent: int, received: int, too_long: bool) -> str:
    if done.missing or done.timed_out:
        return done.problem
    told = [line.strip() for line in text.splitlines() if not _NO_REASON.match(line.strip())]
    if too_long:
        told = [line for line in told if _TOO_LONG.search(line)]
    counted = f"{received} of {sent} came back"
    return f"{counted}: {told[-1]}" if told else counted
