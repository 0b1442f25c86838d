# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the subnet tools (iblinkinfo, ibnetdiscover) have in common: node descriptions, link widths and lane speeds."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._captured_text import terminal_width

_LANE_GBPS: dict[str, float] = {  # nominal Gbit/s of a lane, by its name
    "SDR": 2.5,
    "DDR": 5,
    "QDR": 10,
    "FDR10": 10,
    "FDR": 14,
    "EDR": 25,
    "HDR": 50,
    "NDR": 100,
    "XDR": 200,
}
# iblinkinfo prints a lane's signalling rate, 25.78125 for EDR, which some round: up to 6.25 % above the nominal rate.
_ABOVE_NOMINAL = 1.07
_DIFFERENCE = re.compile(r"^< .*?(?:0x|\"|\[)", re.MULTILINE)  # a line that only the older fabric of --diff has
_SIDE = re.compile(r"^([<>]) +", re.MULTILINE)
_SIDES = {
    "\ue000": "<",
    "\ue001": ">",
}  # characters of no text carry the side to the line's end, out of the parsers' way
_MOST_PIECES = 6
# What firmware says of a chip that nobody gave a name, and the words that name givers use.
_SWITCH_CHIP = re.compile(
    r"M[FT][0-9];|Quantum|Switch-?(?:X|IB)|SwitchX|Infini[Ss]cale|IS[R5][0-9]|SFS-|Voltaire (?:[0-9]|s[LF]B|ISR|Grid|Line)"
    r"|QLogic 1[0-9]{4}|S(?:un|UN) (?:DCS|Datacenter)|Obsidian|(?i:\bswitch\b|(?:^|[^a-z])(?:leaf|spine|ibsw|core)(?![a-z]))"
)
_ROUTER_CHIP = "Technologies Router"
_ADAPTER_CHIP = re.compile(r"HCA|ConnectX|InfiniHost|mlx[45]_|hfi1_|qib[0-9]|mthca|ibp[0-9]|Aggregation Node")
_CHIP_ALONE = re.compile(r"\s{0,8}(?:HCA-[0-9]|MT[0-9]{5} (?:ConnectX|InfiniHost))")  # a host that never said its name
_SWITCH = re.compile(r"M[FT][0-9];([^:;]{1,128}):")  # managed switches: MF0;name:model/unit
_AGGREGATION = "Aggregation Node"  # SHARP's own port on a switch is a CA by type and no host


def _lane_gbps(speed: str) -> float | None:
    """Nominal rate of a lane from its name or its signalling rate; None for any other word."""
    if speed in _LANE_GBPS:
        return _LANE_GBPS[speed]
    try:
        signalled = float(speed)
    except ValueError:
        return None
    return next((lane for lane in _LANE_GBPS.values() if lane <= signalled < lane * _ABOVE_NOMINAL), None)


def with_sides(text: str) -> str:
    """The answer of `--diff` with its marks `<` and `>` moved to the ends of lines (`side_of`); any other text as it is.

    A mail's quotes are `>` as well: only a text that also has lines with `<` is an answer of `--diff`.
    """
    if not _DIFFERENCE.search(text):
        return text
    marks = {side: mark for mark, side in _SIDES.items()}
    return "\n".join(
        line[found.end() :] + marks[found.group(1)] if (found := _SIDE.match(line)) else line
        for line in text.split("\n")
    )


def side_of(line: str) -> tuple[str, dict[str, str]]:
    """(the line, {"side": "<" or ">"} where only the older or only the newer of two fabrics has it)."""
    side = _SIDES.get(line[-1:])
    return (line[:-1], {"side": side}) if side else (line, {})


def _joined(pieces: t.Iterable[str], width: int) -> str:
    """One line of the pieces of it: as they are behind one that fills the terminal, else with a blank between them."""
    text = ""
    fills = False
    for piece in pieces:
        part = piece.rstrip().removesuffix("\\").rstrip()  # a document marks what it broke
        text += part if fills else " " + part.lstrip()
        fills = bool(width) and len(piece) == width
        if fills:
            text += piece[len(piece.rstrip()) :]
    return text.strip().replace("== (", "==(")


def unwrapped(
    lines: t.Sequence[str], begun: t.Callable[[str], bool], whole: t.Callable[[str], bool]
) -> t.Iterator[str]:
    """Join lines that a mail or a terminal broke: one that `begun` knows, and what follows it until `whole` knows them all together.

    Pieces that never become a whole line are given back one by one.
    """
    width = terminal_width(lines)
    pieces: list[str] = []
    for printed in lines:
        line = _joined([printed], 0)
        alone = not line or whole(line)
        if pieces and not alone:
            joined = _joined([*pieces, printed], width)
            if whole(joined):
                yield joined
                pieces = []
                continue
            if len(pieces) < _MOST_PIECES and not begun(line):
                pieces.append(printed)
                continue
        yield from (_joined([piece], 0) for piece in pieces)
        pieces = []
        if not alone and begun(line):
            pieces = [printed]
        else:
            yield line
    yield from (_joined([piece], 0) for piece in pieces)


def kind_of(description: str) -> str:
    """Switch, Router or CA by a node's description, empty where that says nothing."""
    if _ROUTER_CHIP in description:
        return "Router"
    if _ADAPTER_CHIP.search(description):
        return "CA"
    return "Switch" if _SWITCH_CHIP.search(description) else ""


def rate_gbps(width: str, speed: str) -> float | None:
    """Nominal rate of a link in Gbit/s from `4X` and `25.78125 Gbps` or `EDR`; None where either is not known."""
    lanes = width.rstrip("xX")
    lane = _lane_gbps(speed.split(" ")[0])
    return int(lanes) * lane if lane is not None and lanes.isdecimal() and len(lanes) < 4 else None


def short_name(kind: str, description: str) -> str:
    """The host of a CA (`gpu-1` of `gpu-1 HCA-3` or `gpu-1 mlx5_3`), the name of a switch.

    Empty for an aggregation node, and for a CA whose description is only its chip's.
    """
    if kind.upper() == "CA":
        words = description.split()
        nameless = not words or _AGGREGATION in description or _CHIP_ALONE.match(description)
        return "" if nameless else words[0]
    managed = _SWITCH.match(description)
    return managed.group(1) if managed else description


def unique(names: t.Iterable[str]) -> list[str]:
    """Names in the order of their first mention, empty ones left out."""
    return list(dict.fromkeys(filter(None, names)))


def hosts_and_switches(
    links: t.Iterable[t.Mapping[str, t.Any]], nodes: t.Iterable[t.Mapping[str, t.Any]]
) -> dict[str, list[str]]:
    """The hosts and switches that nodes and both ends of links name."""
    named: list[tuple[str, str]] = []
    for node in nodes:
        named.append((node["type"], node["name"]))
    for link in links:
        named.append((link["node_type"], link["node"]))
        named.append((link["peer_type"], link["peer"]))
    return {
        "hosts": unique(short_name(kind, name) for kind, name in named if kind == "CA"),
        "switches": unique(short_name(kind, name) for kind, name in named if kind == "Switch"),
    }
