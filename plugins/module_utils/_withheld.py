# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Takes values out of texts that may have come from an environment: what a program prints may end up in a report. PRIVATE to the collection.

Variables of the families that say how a run was carried out are kept, but for keys among them. Of everything else the name stays, so
that a reader sees what was there, and the value goes. It also works on a text that nobody expected to hold any of it: a dump of the
environment by a wrapper, a traceback, a launcher's own complaint.
"""

from __future__ import annotations

import re
import typing as t

WITHHELD = "(withheld)"

#: variables whose values are part of a result
FAMILIES = (
    "NCCL_", "TORCH_NCCL_", "UCX_", "UCC_", "FI_", "OMPI_", "PRTE_", "HCOLL_", "MLX5_", "RDMAV_", "IBV_", "CUDA_", "NVIDIA_", "NVSHMEM_",
    "GLOO_", "OMP_", "GPUFABRIC_",
)  # fmt: skip
NAMES = ("HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH")

#: a key, in whichever family it is
SECRET = re.compile(r"PSK|SECRET|TOKEN|PASSW|CREDENTIAL|JWT|API_?KEY|_KEY\b|PRIVATE", re.IGNORECASE)

_VALUE = r"(?:\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|[^\s\"',;]+)"
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
# NAME=value: at a line's start any name in capitals, and all of the line, as in a dump; elsewhere one with an underscore, since
# logs are full of LID=5 and MTU=4096.
_DUMPED = re.compile(r"(?m)^(?P<before>[ \t]*(?:export |declare -x )?(?P<name>[A-Z][A-Z0-9_]*)=)(?P<value>.+)$")
_ASSIGNED = re.compile(rf"(?P<before>(?<![\w./-])(?P<name>[A-Z][A-Z0-9]*_[A-Z0-9_]*)=)(?P<value>{_VALUE})")
# "NAME": "value", as JSON and Python print a mapping.
_MAPPED = re.compile(rf"(?P<before>[\"'](?P<name>{_NAME})[\"']\s*:\s*)(?P<value>\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*')")
# NCCL's own words, and those of people.
_SET_TO = re.compile(
    rf"(?P<before>\b(?P<name>[A-Z][A-Z0-9]*_[A-Z0-9_]*) (?:is )?set (?:by environment )?to )(?P<value>{_VALUE})"
)
_SAID = re.compile(
    rf"(?P<before>(?<![\w-])(?:\w+_)?(?:passw(?:or)?d|passphrase|secret|token|api_?key|private_?key|jwt|psk)[\"']?\s?[=:]\s?)(?P<value>{_VALUE})",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<before>\b(?:Bearer|Basic) )(?P<value>[A-Za-z0-9._~+/=-]{8,})")
_URL = re.compile(r"(?P<before>\b[a-z][a-z0-9+.-]*://)(?P<value>[^/\s:@\"']*:[^/\s@\"']+|[^/\s:@\"']{16,})(?=@)")
_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
#: a shorter value is likelier to be a word of the text
_SHORTEST = 8


def is_allowed(name: str) -> bool:
    """Whether a variable's value may stand in a result."""
    return (name in NAMES or name.startswith(FAMILIES)) and not SECRET.search(name)


def secrets_of(environment: t.Mapping[str, str]) -> list[str]:
    """Values of an environment that must not appear anywhere, whatever stands around them; the longest first."""
    found = {value for name, value in environment.items() if SECRET.search(name) and len(value) >= _SHORTEST}
    return sorted(found, key=len, reverse=True)


def withhold(text: str, secrets: t.Iterable[str] = ()) -> str:
    """*text* without the values of variables that are not allowed, without keys, and without *secrets*."""
    for secret in secrets:
        text = text.replace(secret, WITHHELD)
    if "-----BEGIN" in text:
        text = _BLOCK.sub(WITHHELD, text)
    if "=" in text:
        text = _ASSIGNED.sub(_unless_allowed, _DUMPED.sub(_unless_allowed, text))
    if ":" in text:
        text = _MAPPED.sub(_unless_harmless, text)
    if " set " in text:
        text = _SET_TO.sub(_unless_allowed, text)
    if "://" in text:
        text = _URL.sub(_value_only, text)
    if "Bearer " in text or "Basic " in text:
        text = _BEARER.sub(_value_only, text)
    return _SAID.sub(_value_only, text)


def withheld(value: t.Any) -> t.Any:
    """The same in every text of a structure; the value of a key that is a variable's name goes as a whole."""
    if isinstance(value, str):
        return withhold(value)
    if isinstance(value, dict):
        return {
            key: WITHHELD
            if _is_variable(key) and not is_allowed(key) and isinstance(entry, (str, int, float))
            else withheld(entry)
            for key, entry in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [withheld(entry) for entry in value]
    return value


def _is_variable(key: t.Any) -> bool:
    return isinstance(key, str) and re.fullmatch(r"[A-Z][A-Z0-9_]*", key) is not None


def _unless_allowed(match: t.Match[str]) -> str:
    return match[0] if is_allowed(match["name"]) else _value_only(match)


def _unless_harmless(match: t.Match[str]) -> str:
    """A mapping's key is a variable if it is all capitals; a key by its name is one in any case."""
    variable = _is_variable(match["name"]) or SECRET.search(match["name"])
    return _unless_allowed(match) if variable else match[0]


def _value_only(match: t.Match[str]) -> str:
    return f"{match['before']}{WITHHELD}"
