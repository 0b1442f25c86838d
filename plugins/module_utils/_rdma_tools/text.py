# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cleaning of captured terminal text, shared by the parsers of RDMA tools.

A capture reaches us as somebody saved it: with colours, carriage returns, labels that pdsh, srun, mpirun or a log
collector put before each line, shell prompts, several hosts one after the other, and messages of the error stream in
the middle of a line of the output stream. Everything here is linear in the length of the text and raises on no text.
"""

from __future__ import annotations

import collections
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._captured_text import without_terminal
from ansible_collections.gpufabric.cluster.plugins.module_utils._launcher_text import without_escapes

_INVISIBLE = dict.fromkeys(map(ord, "\x00\x07\x08\x1b\u200b\u200e\u200f\u2060\ufeff"))
_LOOKALIKE = str.maketrans(
    {
        "\r": "\n",
        "\x0b": "\n",
        "\x0c": "\n",
        "\xa0": " ",
        "\u202f": " ",
        "\u2007": " ",
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\uff1a": ":",
        "\u2502": " ",  # the frames of tmux's panes
        "\u2503": " ",
    }
)
_FRAMED = re.compile(
    r"^[ \t]{0,8}\|[ \t]?([^|\n]{0,512}?)[ \t]{0,256}\|[ \t]{0,8}$", re.MULTILINE
)  # a box drawn around a text
_RIGHT_EDGE = re.compile(r"[ \t]{0,256}\|$", re.MULTILINE)
_STRING_BEGINS = re.compile(r"[^\"'`\n]{0,256}[=:(,]\s{0,8}[rbuf]?(\"\"\"|'''|[\"'`])")
_STRING_ENDS = {
    quote: re.compile(re.escape(quote) + r"\s{0,8}(?:[,;)\]}+.].{0,256})?$") for quote in ('"""', "'''", '"', "'", "`")
}
_NBSP_READ_AS_LATIN_1 = re.compile("\u00c2[\u00a0 ]")  # a mail archive's two bytes of one blank

_LABEL = re.compile(
    r"(?P<stamp>\[[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:]{5,8}[^\[\]\n]{1,128}\]:?[ \t]?)"  # a logger's brackets: time, program, level
    r"|(?P<time>\[?[0-9]{4}[/-][0-9]{2}[/-][0-9]{2}[T ][0-9:]{5,8}(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9:]{4,6})?\]?:?[ \t]?)"
    r"|(?P<syslog>[A-Z][a-z]{2} [ 0-9]?[0-9] [0-9:]{8} \S{0,127}[^\s:] \S{1,128}: )"
    r"|(?P<date>[A-Z][a-z]{2} [ 0-9]?[0-9] [0-9:]{8}[ ])"
    r"|(?P<task>(?:task|rank)[ ][0-9]{1,6}:[ \t]?)"
    r"|(?P<rank>\[[0-9]{1,6},[0-9]{1,6}\](?:<\w{1,16}>)?:[ \t]?)"
    r"|(?P<bracket>\[[^\[\]\n]{1,128}\]:?[ \t]?)"
    r"|(?P<column>[\w./-]{1,128}[ \t]{0,32}\|[ \t]?)"
    r"|(?P<line>[ ]{1,8}(?P<of>[0-9]{1,6})[ ]{2})"
    r"|(?P<number>[ \t]{0,8}[0-9]{1,6}(?:[:|-]|\t)[ \t]?)"
    r"|(?P<host>[\w.@/-]{1,253}:[ \t]?)"
    r"|(?P<quote>[ \t]{0,8}(?:[>|][ \t]?){1,16})"
    r"|(?P<remark>[ \t]{0,32}(?:#{1,4}|/{2,3}|\*|;|-|\+)[ \t]?)"  # an answer kept in a comment of a script or program, or in a list
    r"|(?P<pod>(?=[\w.]{1,253}[0-9-])\w[\w.-]{0,252}[ ]\w[\w.-]{0,127}[ ])"  # stern: pod and container
)
_CLOCK = re.compile(r"\[[0-9 ]{1,16}[.:][0-9.: ]{1,32}\]")
_RANK_OR_LINE = re.compile(r"[ \t]{0,8}[0-9]{1,6}(?:[:|-]|\t)")
_CHANGING = frozenset(
    {"clock", "stamp", "time", "date", "syslog", "line", "number", "quote", "remark"}
)  # labels that differ from line to line: no stream of their own
_MAX_LABELS = 3
_LONGEST_PREFIX = 200
_MOST_LINES = 0.6
_PIECES = re.compile(r"[0-9]+|\s+|[^0-9\s]+")
_LOOKED_AT = 20
_INTRODUCES = frozenset(":=>(,|")  # the last character before a tool's first line
_LEAST_PODS = 2  # two words before a line are a label where they come again and again
_NO_HOST = frozenset(
    {"hca_id:", "port:", "device:", "dev:", "netdev:", "ibdev:"}
)  # keys before a device's name that look like labels

_RULE = re.compile(r"-{5,}\s*$")
_ANSIBLE = re.compile(r"(\S{1,253}) \| (?:CHANGED|SUCCESS|FAILED|UNREACHABLE)!?(?: \| rc=\S{1,8})? (?:>>|=>)")
_TOOLS = frozenset(
    {"ibstat", "ibstatus", "ibv_devinfo", "ibv_devices", "ibdev2netdev", "show_gids", "mlnx_qos", "rdma", "dmesg"}
)
_HEADING = re.compile(r"(?:==+>?|\*\*\*+)\s+([\w.@\[\],/-]{1,253})\s+(?:<?==+|\*\*\*+)\s*$")
_PROMPT = re.compile(
    r"(?:\([\w.-]{1,64}\)\s?)?\[?[\w.-]{1,64}@(?P<host>[\w.-]{1,253})[: ][^#$%>\n]{0,128}[#$%>](?:\s|$)"
    r"|[#$%]{1,6}\s\s?(?!\"|lid [0-9])\S|\+ \S|[#$%](?:ib(?:stat|status|v_\w{1,16}|dev2netdev)|show_gids|mlnx_qos|rdma)\b"
)
_FENCE = re.compile(r"(?:```|~~~)\w*\s*$|--\s*$")

_NOISE = re.compile(r"ib(?:warn|panic|debug): \[|\blibib(?:verbs|umad): ")  # ib..: also right behind half a word
_COMMENT = re.compile(
    r"\s(?:(?:#|//|--)\s|<[-=]"
    r"|[\u2190\u2192\u21d2\u279c\u21d0\u2b05\u25c0\u25c1\u25c4\u27f5\u2705\u2713\u2714\u274c\u2717\u2718\u26a0]).*$"
    r"|(?:-{3,64}>|[\u2014\u2500]{2,64}).*$"
)  # one blank: `\s+` would be quadratic on long runs
_EMPHASIS = re.compile(r"(?<![\w*`])(\*\*|`)([^*`\n]{1,256})\1(?![\w*`])")
_SEAMS = 3
_FAILURE = re.compile(
    r"ibpanic|libib\w+: (?:Warning|Fatal)|\b(?:fatal|fail(?:s|ed|ure)?|errors?|cannot|unable|unknown|invalid|denied"
    r"|traceback|exception|killed|terminated|unreachable|segmentation|panic)\b"
    r"|can't|couldn't|could not|wasn't|isn't|not (?:found|permitted|supported|available|implemented)"
    r"|no such|no ib devices|timed out|wrong ",
    re.IGNORECASE,
)
_NUMBER = re.compile(  # bounded: int() refuses more than 4300 digits
    r"(?:(?P<hexadecimal>0x[0-9a-fA-F]{1,16})|(?P<decimal>[+-]?[0-9]{1,18}\.[0-9]{1,18})|(?P<integer>[+-]?[0-9]{1,18}))(?=[\s(,]|$)"
)


SHELL = (
    r"(?:(?:[\w/-]{0,16}sh|sudo|env|timeout): (?:line [0-9]{1,6}: )?)?"  # who says that a command is not there; no host
)


class Stream(t.NamedTuple):
    """The lines that one host (or rank, or pod) printed; `host` is empty where the text names none."""

    host: str
    lines: list[str]


def clean(text: str) -> str:
    """Take away what a terminal, a web form or a log collector added to each character: colours, CRLF, escapes, curly quotes."""
    text = _NBSP_READ_AS_LATIN_1.sub(" ", without_terminal(text))
    text = without_escapes(text)
    text = _FRAMED.sub(r"\1", text)
    if text.count("|\n") > _MOST_LINES * text.count("\n"):  # the right edge of a pane
        text = _RIGHT_EDGE.sub("", text)
    return text.translate(_LOOKALIKE).translate(_INVISIBLE)


def _labels(line: str, limit: int) -> list[tuple[str, str]]:
    """The labels (kind, literal) at the beginning of a line, none reaching beyond `limit`."""
    found: list[tuple[str, str]] = []
    at = 0
    while at < limit and len(found) < _MAX_LABELS:
        match = _LABEL.match(line, at)
        if match is None or match.end() > limit:
            break
        kind = t.cast(str, match.lastgroup)
        found.append(("clock" if kind == "bracket" and _CLOCK.match(match.group()) else kind, match.group()))
        at = match.end()
    return found


class _Labels(t.NamedTuple):
    """The labels that a text carries: kinds that change from line to line, literals of the others, how many a line has."""

    kinds: set[str]
    literals: set[str]
    depth: int


def _are_numbered(lines: t.Sequence[str]) -> bool:
    """Whether each line begins with a number and two blanks, one more than the line before: `cat -n` without its tab."""
    found = [_LABEL.match(line) for line in lines if line.strip()]
    numbers = [int(match.group("of")) if match and match.lastgroup == "line" else 0 for match in found[:_LOOKED_AT]]
    return len(numbers) > 1 and numbers[0] > 0 and all(b == a + 1 for a, b in zip(numbers, numbers[1:]))


def _pods(lines: t.Sequence[str]) -> frozenset[str]:
    """The two words that stand before line after line."""
    matches = map(_LABEL.match, lines)
    counted = collections.Counter(match.group() for match in matches if match and match.lastgroup == "pod")
    return frozenset(literal for literal, count in counted.items() if count >= _LEAST_PODS)


def _known_labels(lines: t.Sequence[str], anchor: re.Pattern[str]) -> _Labels:
    """Which labels the text carries, told by the lines on which something known follows them."""
    kinds: set[str] = set()
    literals: set[str] = set()
    depth = 0
    numbered, pods = _are_numbered(lines), _pods(lines)
    for line in lines:
        match = anchor.search(line)
        if match is None or not line[: match.start()].strip():
            continue
        labels = _labels(line, match.start())
        behind = sum(len(literal) for _unused, literal in labels)
        if (
            not labels
            or line[behind : match.start()].strip()
            or any(literal.strip() in _NO_HOST for _unused, literal in labels)
            or any(kind == "pod" and literal not in pods for kind, literal in labels)
            or (labels[0][0] == "line" and not numbered)
        ):
            continue
        depth = max(depth, len(labels))
        for kind, literal in labels:
            if kind in _CHANGING:
                kinds.add(kind)
            else:
                literals.add(literal.strip())
    if "number" in kinds:  # the ranks of `srun --label` come again and again, the numbers of `cat -n` do not
        seen = [match.group().strip() for match in map(_RANK_OR_LINE.match, lines) if match]
        if len(set(seen)) * 2 <= len(seen):
            literals.update(seen)
    return _Labels(kinds, literals, depth)


class _Prefix(t.NamedTuple):
    """What a logger that nobody knows puts before most lines; `names` holds it where it says who printed a line."""

    pattern: re.Pattern[str]
    names: frozenset[str]

    def off(self, line: str) -> tuple[str, str]:
        """(name of the stream, the line without the prefix)."""
        match = self.pattern.match(line)
        if match is None:
            return "", line
        literal = match.group().strip()
        return literal.strip("[](){}:|> ") if literal in self.names else "", line[match.end() :]


def _common_prefix(lines: t.Sequence[str], anchor: re.Pattern[str]) -> _Prefix | None:
    """The shape of what stands before known lines (digits and blanks may change), where most lines begin with it."""
    shapes: collections.Counter[str] = collections.Counter()
    for line in lines:
        match = anchor.search(line, 0, _LONGEST_PREFIX)  # a line that is known from its beginning has no prefix
        before = line[: match.start()].rstrip() if match else ""
        if before.strip():
            shapes["".join(map(_shape_of, _PIECES.findall(before.lstrip())))] += 1
    if not shapes:
        return None
    pattern = re.compile(r"\s{0,8}" + shapes.most_common(1)[0][0] + " ?")
    found = [match.group().strip() for match in map(pattern.match, lines) if match]
    if len(found) < max(2, _MOST_LINES * sum(map(bool, map(str.strip, lines)))):
        return None
    literals = collections.Counter(found)
    return _Prefix(pattern, frozenset(literals) if len(literals) * 3 <= len(found) else frozenset())


def _shape_of(piece: str) -> str:
    if piece.isdecimal():
        return r"\d{1,20}"
    return r"\s{1,32}" if piece.isspace() else re.escape(piece)


def _stream_name(kind: str, literal: str) -> str:
    """What a label says of who printed the line; empty for one that says nothing of it, such as a clock in brackets."""
    if kind == "rank":  # both streams of a rank belong together: [1,0]<stderr>:
        return literal[1 : literal.index("]")]
    name = literal.strip().strip("[]:| \t-")
    if name in _TOOLS:
        return ""
    return name if kind in ("host", "number") or any(character.isalpha() for character in name) else ""


def _unlabel(line: str, known: _Labels) -> tuple[str, str]:
    """(name of the stream, the line without its labels)."""
    names: list[str] = []
    at = 0
    for kind, literal in _labels(line, len(line))[: known.depth]:
        if literal.strip() in known.literals:
            names.append(_stream_name(kind, literal))
        elif kind not in known.kinds:
            break
        at += len(literal)
    return " ".join(filter(None, names)), line[at:]


def streams(text: str, anchor: re.Pattern[str]) -> list[Stream]:
    """Clean a capture and part it by host: labels before each line, headings of clush, dshbak, ansible, prompts.

    `anchor` finds where a line of the tool begins; what stands before it on such lines is a label, which is then taken
    off every line that carries it. Streams come in the order of their first line, and so do the lines of each.
    """
    lines = _first_line_alone(clean(text).split("\n"), anchor)
    known = _known_labels(lines, anchor)
    prefix = None if known.depth else _common_prefix(lines, anchor)
    parted: dict[str, list[str]] = {}
    section = ""
    quote = ""
    for number, line in enumerate(lines):
        label = ""
        if known.depth:
            label, line = _unlabel(line, known)
        elif prefix:
            label, line = prefix.off(line)
        line, quote = _unquoted(line, quote, anchor)
        heading = _heading(lines, number, line)
        if heading is not None:
            section = heading or section
            continue
        parted.setdefault(label or section, []).append(line)
    return [Stream(host, found) for host, found in parted.items()]


def _first_line_alone(lines: list[str], anchor: re.Pattern[str]) -> list[str]:
    """The lines; the tool's first one parted from what stands before it and before no other, as in `output: CA 'mlx5_0'`."""
    found = [(at, match.start()) for at, match in enumerate(map(anchor.search, lines)) if match]
    first, begins = found[0] if found else (0, 0)
    before = lines[first][:begins]
    if before.rstrip()[-1:] not in _INTRODUCES or any(lines[at][:start].strip() for at, start in found[1:]):
        return lines
    alike = re.compile("".join(map(_shape_of, _PIECES.findall(before))))
    if len(lines) < first + 3 or sum(alike.match(line) is not None for line in lines) > 1:
        return lines
    return [*lines[:first], before, lines[first][begins:], *lines[first + 1 :]]


def _unquoted(line: str, quote: str, anchor: re.Pattern[str]) -> tuple[str, str]:
    """(the line without what a program's source puts around a string, the quote of the string that is still open)."""
    begins = None if quote else _STRING_BEGINS.match(line)
    if begins and anchor.match(line[begins.end() :].lstrip()):
        line, quote = line[begins.end() :], begins.group(1)
    ends = _STRING_ENDS[quote].search(line) if quote else None
    if ends:
        line, quote = line[: ends.start()].replace("\\" + quote, quote), ""
    return line, quote


def _heading(lines: t.Sequence[str], number: int, line: str) -> str | None:
    """The host that a heading begins, empty for a line of the shell that names none, None for any other line."""
    bare = line.strip()
    if not bare:
        return None
    if bare[0] == "-":
        return "" if _RULE.match(bare) or _FENCE.match(bare) else None
    if (
        0 < number < len(lines) - 1
        and _RULE.match(lines[number - 1].strip())
        and _RULE.match(lines[number + 1].strip())
    ):
        return bare.split(" (")[0] if " " not in bare.split(" (")[0] else ""
    if bare[0] in "=*":
        match = _HEADING.match(bare)
        return ("" if match.group(1) in _TOOLS else match.group(1)) if match else None
    if " | " in bare:
        match = _ANSIBLE.match(bare)
        return match.group(1) if match else None
    if "@" in bare or bare[0] in "#$%+":
        match = _PROMPT.match(bare)
        return (match.group("host") or "") if match else None
    return "" if bare[0] in "`~" and _FENCE.match(bare) else None


def settle(lines: t.Sequence[str], known: t.Callable[[str], bool]) -> list[str]:
    """Lift messages of the error stream out of the middle of lines.

    Both streams in one file meet where the output's buffer was flushed: `State: Actibwarn: [7] ...` and then `ive`.
    The message becomes a line of its own; the halves are joined where `known` says that only together they are a line.
    """
    done: list[str] = []
    half: str | None = None
    for line in lines:
        match = _NOISE.search(line)
        head = line[: match.start()] if match else line
        if half is not None and (match is None or head):
            whole = half + head
            if known(whole) and not known(head):
                head = whole
            else:
                done.append(half)
            half = None
        if match is None:
            done.append(head)
            continue
        done.append(line[match.start() :])
        if head.strip():
            half = head
    if half is not None:
        done.append(half)
    return done


def seamed(lines: t.Iterable[str], seam: re.Pattern[str]) -> t.Iterator[str]:
    """Part lines again whose ends a web form took away: `seam` finds the blanks before a label; a line of its own has none."""
    for line in lines:
        parts = seam.split(line.strip())
        if len(parts) > _SEAMS:
            yield from parts
        else:
            yield line


def bare(line: str) -> str:
    """A line without blanks, pairs of emphasis marks and trailing remarks (`# ...`, `<--- ...`)."""
    line = line.strip()
    if "#" in line or "<" in line or "//" in line or "--" in line or not line.isascii():
        line = _COMMENT.sub("", line).rstrip()
    return _EMPHASIS.sub(r"\2", line) if "**" in line or "`" in line else line


def key_value(line: str) -> tuple[str, str] | None:
    """`key: value` parted at the first colon, blanks taken off; None where there is no colon."""
    key, colon, value = line.partition(":")
    return (key.strip(), value.strip()) if colon and key.strip() else None


def number(text: str) -> int | float | str:
    """The number at the beginning of `text` (decimal, or hexadecimal with 0x); `text` itself where there is none."""
    match = _NUMBER.match(text)
    if match is None:
        return text
    found = match.group()
    if match.lastgroup == "hexadecimal":
        return int(found, 16)
    return float(found) if match.lastgroup == "decimal" else int(found)


def is_failure(line: str) -> bool:
    """Whether a line that no parser understands reads like an error."""
    return bool(_FAILURE.search(line))


class Leftovers:
    """What a parser did not understand: `errors` reads like a failure, `unparsed` is all the rest."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.unparsed: list[str] = []

    def add(self, line: str) -> None:
        """Keep a line; blank ones are nothing."""
        line = line.strip()
        if line:
            (self.errors if is_failure(line) else self.unparsed).append(line)
