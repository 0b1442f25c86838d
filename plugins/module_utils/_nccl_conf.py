# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NCCL's configuration files: their grammar, which of them count, and what a rank ends up with. PRIVATE to the collection.

Source: setEnvFile() and initEnvFunc() in NCCL's src/misc/param.cc, releases 2.18 to 2.30, and runs of those libraries.
"""

from __future__ import annotations

import dataclasses
import typing as t

SYSTEM_FILE = "/etc/nccl.conf"
USER_FILE = ".nccl.conf"

#: a key for encryption: never leaves the node
SECRET = "NCCL_PSK"

#: bytes of a name or value that are kept
FIELD = 1023

Version = tuple[int, ...]

CARRIAGE_RETURN_GONE_SINCE: Version = (2, 30, 3)
CONF_FILE_SINCE: Version = (2, 23, 4)
HOME_VARIABLE_SINCE: Version = (2, 30, 3)

#: the release whose grammar is assumed where none is known: that of a current NCCL
CURRENT: Version = (2, 28, 9)


@dataclasses.dataclass(frozen=True)
class Line:
    """One line that sets something. number: from 1; oddity: why it probably is not what its author meant, or ""."""

    number: int
    name: str
    value: str
    oddity: str = ""


def parse(text: str, version: Version = CURRENT) -> list[Line]:
    """The lines of a configuration file that set a variable, as NCCL *version* takes them: no trimming, no quotes.

    Everything before the first = is the name, everything after it the value. Later lines of the same name are returned
    too, with that as their oddity: the first one counts.
    """
    lines: list[Line] = []
    seen: dict[str, int] = {}
    for number, raw in enumerate(text.split("\n"), 1):
        if version >= CARRIAGE_RETURN_GONE_SINCE:
            raw = raw.rstrip("\r")
        name, equals, value = raw.partition("=")
        if not equals or raw.startswith("#"):
            continue  # before 2.26.2 a comment with = sets a variable whose name begins with #, which nobody reads
        name, value = name[:FIELD], value[:FIELD]
        oddity = (
            f"line {seen[name]} has set it already, and the first one counts" if name in seen else _oddity(name, value)
        )
        seen.setdefault(name, number)
        lines.append(Line(number, name, value, oddity))
    return lines


def _oddity(name: str, value: str) -> str:
    """Why a line does not do what it looks like, "" where it does."""
    if name != name.strip():
        if name.strip().startswith("#"):
            return "a comment begins in column 1 or is none"
        return "the blank before = belongs to the name, so that NCCL never asks for it"
    if name.startswith("export "):
        return "this is no shell: the name would be 'export ...'"
    if value.endswith("\r"):
        return "the line ends with a carriage return, which this NCCL takes for a part of the value"
    if value != value.strip():
        return "blanks around the value belong to it"
    if value[:1] in "\"'" and value:
        return "quotes belong to the value"
    if " #" in value or "\t#" in value:
        return "a comment behind a value belongs to it"
    if value.startswith("$"):
        return "variables are not expanded"
    return ""


def variables(text: str, version: Version = CURRENT) -> dict[str, str]:
    """{name: value} that the file gives; the first of two lines wins (setenv without overwriting)."""
    found: dict[str, str] = {}
    for line in parse(text, version):
        found.setdefault(line.name, line.value)
    return found


@dataclasses.dataclass(frozen=True)
class Effective:
    """What a rank ends up with for one variable, and the file or environment that it comes from."""

    value: str
    source: str


def effective(
    read_text: t.Callable[[str], str], environment: t.Mapping[str, str], home: str, version: Version = CURRENT
) -> dict[str, Effective]:
    """{NCCL_*: value and source} of a process with this environment, whose user lives in *home*. read_text: of a path, or OSError.

    The environment comes first, then the file that NCCL_CONF_FILE names (which counts from 2.23 on, and only in the
    environment) or else ~/.nccl.conf, then /etc/nccl.conf.
    """
    result = {name: Effective(value, "environment") for name, value in environment.items() if is_nccl(name)}
    for path in files(environment, home, version):
        try:
            text = read_text(path)
        except OSError:
            continue
        for name, value in variables(text, version).items():
            if is_nccl(name):
                result.setdefault(name, Effective(value, path))
    return result


def files(environment: t.Mapping[str, str], home: str, version: Version = CURRENT) -> list[str]:
    """The configuration files that count for such a process, the strongest first, whether they exist or not."""
    named = environment.get("NCCL_CONF_FILE", "") if version >= CONF_FILE_SINCE else ""
    if version >= HOME_VARIABLE_SINCE:
        home = environment.get("HOME", home)
    own = [named] if named else [f"{home.rstrip('/')}/{USER_FILE}"] if home else []
    return [path for path in own if path.startswith("/")] + [SYSTEM_FILE]


def is_nccl(name: str) -> bool:
    """Whether a name is NCCL's, and its value may be told."""
    return name.startswith("NCCL_") and name != SECRET
