# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The grammar of sysctl.conf(5) and sysctl.d(5): names, values, lines. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
import typing as t

PROC_SYS = "/proc/sys"

_SWAP = str.maketrans("./", "/.")
_GLOB = re.compile(r"[*?\[]")


@dataclasses.dataclass(frozen=True)
class Assignment:
    """One effective line of a file.

    name: path below /proc/sys, possibly a glob; value: None for a line "-name", which takes the name out of globs and
    cancels what an earlier file said; lenient: whether the line tells the reader to ignore errors.
    """

    name: str
    value: str | None
    path: str
    line: int
    lenient: bool = False

    @property
    def is_glob(self) -> bool:
        return bool(_GLOB.search(self.name))

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"


def proc_name(name: str) -> str:
    """The path below /proc/sys that a sysctl name means, e.g. net.ipv4.conf.eth0/1.rp_filter -> net/ipv4/conf/eth0.1/rp_filter.

    Where the first separator is a slash the name is a path already; else dots and slashes change places (sysctl.d(5)).
    """
    name = name.strip()
    first = re.search(r"[./]", name)
    if first and first.group() == ".":
        name = name.translate(_SWAP)
    name = re.sub(r"/+", "/", name)
    if name.startswith(PROC_SYS + "/"):
        name = name[len(PROC_SYS) :]
    return name.strip("/")


def dotted(name: str) -> str:
    """The usual spelling of a path below /proc/sys; proc_name() takes it back."""
    return name.translate(_SWAP)


def name_matches(name: str, pattern: str) -> bool:
    """Whether a path below /proc/sys matches a pattern, as glob(7) has it: a wildcard does not match a slash."""
    parts, patterns = name.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def key_name(name: str, where: str = "settings") -> str:
    """proc_name() of one key that somebody asked for; ValueError where it is a pattern or no key at all."""
    path = proc_name(name)
    parts = path.split("/")
    torn = re.search(r"[./]{2}|[\s=\0]", name.strip()) or any(part in ("", ".", "..") for part in parts)
    if len(parts) < 2 or torn:
        raise ValueError(f"{where}: {name!r} is no sysctl key, such as net.core.rmem_max")
    if _GLOB.search(path):
        raise ValueError(f"{where}: {name!r} is a pattern; name each key, or <rdma> for every RDMA interface")
    return path


def same_value(one: str, other: str) -> bool:
    """Whether two values are the same to the kernel: token by token, numbers by value (it reads 0x10 and 010 as C does)."""
    tokens, others = one.split(), other.split()
    return len(tokens) == len(others) and all(a == b or _same_number(a, b) for a, b in zip(tokens, others))


def _same_number(one: str, other: str) -> bool:
    number = _c_integer(one)
    return number is not None and number == _c_integer(other)


def _c_integer(token: str) -> int | None:
    if not re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|[0-9]+)", token):
        return None
    digits = token.lstrip("-")
    base = 16 if digits[:2].lower() == "0x" else 8 if len(digits) > 1 and digits[0] == "0" else 10
    try:
        return int(token, base)
    except ValueError:  # 08 is no octal number
        return None


def parse(lines: t.Iterable[str], path: str) -> tuple[list[Assignment], list[str]]:
    """Every effective line of a file, and a sentence for each line that no reader understands. Never raises."""
    assignments, problems = [], []
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        lenient = line.startswith("-")
        name, equals, value = line[1:].partition("=") if lenient else line.partition("=")
        path_name = proc_name(name)
        if not path_name or (not equals and not lenient):
            problems.append(f"{path}:{number}: {line!r} is no assignment")
            continue
        assignments.append(Assignment(path_name, value.strip() if equals else None, path, number, lenient))
    return assignments, problems


def render(settings: t.Iterable[tuple[str, str, str]], left_out: t.Mapping[str, str]) -> str:
    """The lines of a drop-in. settings: (proc name, value, reason) in order; left_out: {proc name: why not on this node}."""
    lines = []
    for name, value, reason in settings:
        lines += [f"# {part}" for part in [reason] if part]
        if name in left_out:
            lines.append(f"# left out here ({left_out[name]}): {dotted(name)} = {value}")
        else:
            lines.append(f"{dotted(name)} = {value}")
    return "\n".join(lines) + "\n"
