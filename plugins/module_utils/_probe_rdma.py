# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The RDMA probes: command lines of ibv_rc_pingpong(1) and ib_write_bw (perftest), and what they print. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Completed

PINGPONG = "ibv_rc_pingpong"
WRITE_BW = "ib_write_bw"
TOOLS = (PINGPONG, WRITE_BW)

DEVICE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

_PINGPONG_TIME = re.compile(r"([\d.]+) usec/iter")
#: size, iterations, peak, average, message rate; in Gb/s with --report_gbits
_WRITE_ROW = re.compile(r"^\s*\d+\s+\d+\s+([\d.]+|-?nan|inf)\s+([\d.]+|-?nan|inf)\s+[\d.]+", re.MULTILINE)
#: lines that are of no use as a reason: decoration, and settings that perftest echoes
_NO_REASON = re.compile(r"^[\s\-*]*$|^\s*(?:local|remote) address|^\s*GID:|^\s*#bytes|: (?:OFF|ON)\b")


@dataclasses.dataclass(frozen=True)
class Rail:
    """One end: device, its port, and the index of the GID to use (None on InfiniBand, where the LID is used)."""

    device: str
    port: int
    gid_index: int | None

    @classmethod
    def from_mapping(cls, data: t.Mapping[str, t.Any]) -> Rail:
        """ValueError for what is no device, port or index: the words come over the network."""
        device = str(data["device"])
        if not DEVICE.fullmatch(device):
            raise ValueError(f"{device!r} is no name of an RDMA device")
        index = data.get("gid_index")
        return cls(device, int(data["port"]), None if index is None else int(index))


def command(tool: str, rail: Rail, tcp_port: int, size: int, iterations: int, host: str = "") -> list[str]:
    """The argument list of either end; with *host* it is the client. size in bytes of one message."""
    if tool not in TOOLS:
        raise ValueError(f"{tool!r} is none of {', '.join(TOOLS)}")
    argv = [tool, "-d", rail.device, "-i", str(rail.port), "-p", str(tcp_port), "-s", str(size), "-n", str(iterations)]
    if rail.gid_index is not None:
        argv += ["-g" if tool == PINGPONG else "-x", str(rail.gid_index)]
    if tool == WRITE_BW:
        # -F: a processor's changing clock is no reason to stop, perftest's manual
        argv += ["-F", "--report_gbits"]
    return [*argv, host] if host else argv


def pingpong_us(text: str) -> float | None:
    """µs of one round trip, from what ibv_rc_pingpong prints at its end."""
    found = _PINGPONG_TIME.search(text)
    return float(found.group(1)) if found else None


def write_gbs(text: str) -> float | None:
    """The average bandwidth in GB/s (1e9 bytes/s) from ib_write_bw's row; None where there is none or it is no number."""
    rows = _WRITE_ROW.findall(text)
    if not rows or not re.fullmatch(r"[\d.]+", rows[-1][1]):
        return None
    return round(float(rows[-1][1]) / 8, 6)


def reason(done: Completed) -> str:
    """One sentence about why a tool gave no result: its last telling line, else how it ended."""
    if done.missing:
        return done.problem
    lines = [line.strip() for line in (done.stdout + "\n" + done.stderr).splitlines() if not _NO_REASON.search(line)]
    if done.timed_out:
        return f"{done.argv[0]} got no answer within {done.seconds:.0f} s"
    return f"{done.argv[0]}: {lines[-1]}" if lines else done.problem or f"{done.argv[0]} printed no result"
