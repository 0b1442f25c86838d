# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pick the lines of a log that say something, and take a line's prefix off its message. PRIVATE to the collection.

Prefixes: ncclDebugLog() of NCCL's src/debug.cc, 2.2 (no word "NCCL") to 2.32 (time stamp, function, level ATTN).
"""

from __future__ import annotations

import html
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._launcher_text import (
    collected,
    without_marks,
    without_tags,
)

_PREFIX = re.compile(
    r"(?:\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?)\] )?"
    r"(?<![^\s:\[\]()|'\"])(?!\d\d:\d\d:\d\d )(?P<host>[^\s:\[\]()|'\"]{1,256}):(?P<pid>\d{1,10})(?::\d{1,10} |(?= NCCL DIAG) )"
    r"(?:\[(?P<device>-?\d{1,6})\] )?(?:\d+\.\d+ )?"
    r"(?:(?P<site>[^\s:]{1,200}:\d{1,7}) )?(?:\([^)\s]{1,200}\) )?"
    r"(?:NCCL )?(?P<level>INFO|WARN|ATTN|ERROR|TRACE|CALL|ABORT|DIAG|VERSION)\b ?(?P<message>.*)"
)
_BARE = re.compile(
    r"(?:(?<![^\s:])(?P<site>[^\s:]{1,200}:\d{1,7}) )?(?:\([^)\s]{1,200}\) )?NCCL (?P<level>INFO|WARN|ATTN|ERROR|DIAG) (?P<message>.*)"
)


_REPEATED = re.compile(r" \[repeated \d{1,9}x across cluster\].{0,200}$")  # Ray says one of many workers' like lines


class Line(t.NamedTuple):
    """One line: ``level`` is None where NCCL's prefix is missing (another program's line, or a poster cut it off)."""

    text: str
    message: str
    level: str | None = None
    host: str | None = None
    pid: int | None = None
    device: int | None = None
    time: str | None = None


def read_line(raw: bytes) -> Line:
    text = raw[:8192].decode("utf-8", "replace").replace("\x00", "").rstrip("\r\n")
    text = without_tags(_unwrapped(text))
    if "[repeated " in text:
        text = _REPEATED.sub("", text)
    match = _PREFIX.search(text) if "[" in text or "NCCL" in text else None
    if match:
        device = match.group("device")
        return Line(
            text,
            match.group("message"),
            match.group("level"),
            match.group("host"),
            int(match.group("pid")),
            int(device) if device is not None else None,
            match.group("time"),
        )
    match = _BARE.search(text) if "NCCL " in text else None
    if match:
        return Line(text, match.group("message"), match.group("level"))
    return Line(text, text.strip())


def _unwrapped(text: str) -> str:
    """The line within what carries it: JSON of a log collector, or HTML of a page that it was copied from."""
    text = without_marks(collected(text))
    return html.unescape(text) if "&gt;" in text or "&lt;" in text else text


# -- the fast way through a large log --------------------------------------------------------------------------------

# Lines with NCCL's prefix that carry facts; the bulk of a verbose log (every collective call, every proxy step) does not match.
# A literal at the front lets re skip at the speed of memchr.
_FACTS = re.compile(
    rb"NCCL (?:WARN|ATTN|ERROR|DIAG|version|git version|INFO (?:NET/|Using |Bootstrap|NCCL_|NCCL version|comm |nccl\w+ comm |\[Rank |"
    rb"cudaDriverVersion|Assigned |Initialized |Failed |P2P plugin|Plugin|\w+/Plugin|Successfully loaded|GPU Direct|Connected |"
    rb"\d+ coll channels|DMA-BUF|NVLS |MNNVL|TOPO/NET|HINT|Call to|RAS |Cuda failure|Channel \d+/\d+ : [^\n]{1,40}via COLLNET))"
)
_CHANNEL = re.compile(
    rb"\n(?:\S{1,80} )?([^\s:\[\]()|'\"]+):\d+:\d+ \[-?\d+\] NCCL INFO (?:Channel|Ring) \d+(?:/\d+)? : "
    rb"(\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?(?: \[(\w+)\])? via ([^\n]{1,100})"
)
_INFO = b" NCCL INFO "
_WORDS = re.compile(
    rb"[Ee]rror|ERROR|[Ff]ail|FAIL|FATAL|[Ff]atal|[Tt]imeout|[Tt]imed out|[Kk]illed|KILLED|Abort|abort|denied|refused|[Uu]nreachable|"
    rb"No such|not found|No space|WARN|[Cc]annot|[Uu]nable|Xid|[Mm]ismatch|version |CANCELLED|TIME LIMIT|[Ii]nvalid|[Ii]llegal|"
    rb"[Uu]ncorrectable|segfault|[Ss]egmentation|Bus error|not supported|closed|reset|NET/|Using network|via |NCCL_"
)
# In a block that is mostly another program's output each of these is one pass at the speed of memchr; the few that are found
# anywhere are then looked at line by line.
_RARE = (
    b"rror:", b"Error", b"ERROR", b"FATAL", b"failed", b"failure", b"Timeout", b"timed out", b"Killed", b"refused", b"nreachable",
    b"NVRM: Xid", b"CANCELLED", b"denied",
)  # fmt: skip
_FEW = 0.1  # the share of other programs' lines up to which each of them is looked at


def facts_in(block: bytes) -> t.Iterator[int]:
    """Offsets of what is worth reading as a line in a large block, channels left out (see channels_in). Not sorted."""
    for match in _FACTS.finditer(block):
        yield match.start()
    lines = block.count(b"\n")
    others = lines - block.count(_INFO)
    if others <= 0:
        return
    if others <= _FEW * lines:
        for start, end in _other_lines(block):
            if _WORDS.search(block, start, end):
                yield start
        return
    for word in _RARE:
        position = block.find(word)
        while position >= 0:
            yield position
            end = block.find(b"\n", position)
            position = block.find(word, end) if end >= 0 else -1


def _other_lines(block: bytes) -> t.Iterator[tuple[int, int]]:
    """Start and end of the lines that are not NCCL's INFO: what is left between one INFO's line end and the next one's beginning."""
    pieces = block.split(_INFO)
    last = len(pieces) - 1
    offset = 0
    for number, piece in enumerate(pieces):
        if piece.count(b"\n") > 1 or number in (0, last):
            start = 0 if number == 0 else piece.find(b"\n") + 1
            end = len(piece) if number == last else piece.rfind(b"\n")
            for line in piece[start:end].split(b"\n") if 0 <= start <= end else ():
                if line:
                    yield offset + start, offset + start + len(line)
                start += len(line) + 1
        offset += len(piece) + len(_INFO)


def channels_in(block: bytes) -> list[tuple[bytes, bytes, bytes, bytes, bytes]]:
    """(host, source rank, destination rank, send or receive, how) of every channel line in a block."""
    return _CHANNEL.findall(b"\n" + block) if b" via " in block else []


def line_around(block: bytes, position: int) -> tuple[int, int]:
    """Start and end of the line that holds the position."""
    start = block.rfind(b"\n", 0, position) + 1
    end = block.find(b"\n", position)
    return start, len(block) if end < 0 else end
