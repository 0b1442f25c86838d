# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a value is one that NCCL reads as it was meant: text, numbers, switches, choices."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import Variable, Version
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_flaw import Flaw
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_forms import check_form

#: bytes that a value may have in nccl.conf (a name and a value fill a buffer of 1,024 bytes each in NCCL's param.cc)
LONGEST = 1023

#: since this release a number without a leading digit gives the default and a log line at level ATTN; before, silently 0
ATTN_SINCE = (2, 32, 3)

DECIMAL = re.compile(r"[+-]?(0|[1-9][0-9]*)$")
HEXADECIMAL = re.compile(r"[+-]?0[xX][0-9a-fA-F]+$")
SUFFIXES = {"k": 2**10, "m": 2**20, "g": 2**30}
TRUE_WORDS = ("true", "yes", "on", "enable", "enabled", "t", "y")
FALSE_WORDS = ("false", "no", "off", "disable", "disabled", "f", "n")


def as_text(value: t.Any) -> str | None:
    """A YAML scalar as it would reach a file; None for a list, a mapping or nothing."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    return None


def unsafe(text: str) -> Flaw | None:
    """What keeps a value out of every file, however it is quoted; None if nothing does.

    nccl.conf has no quotes, no escapes and one line a value, so that what a shell would unquote arrives there as it is.
    """
    shown = text if len(text) <= 60 else f"{text[:57]}... ({len(text.encode())} bytes)"
    if not text.isascii():
        return Flaw("unsafe", f"{shown!a} holds {_first(text, lambda c: not c.isascii())}", "ASCII text")
    if any(not c.isprintable() for c in text):
        return Flaw("unsafe", f"{shown!a} holds {_first(text, lambda c: not c.isprintable())}", "text on one line")
    if len(text) > LONGEST:
        return Flaw("unsafe", f"the value has {len(text)} bytes", f"at most {LONGEST} bytes")
    if text != text.strip():
        return Flaw("unsafe", f"{shown!a} begins or ends with a blank", "no blanks around it", text.strip())
    for mark in "\"'":
        if mark in text:
            bare = text.strip("\"'")
            return Flaw(
                "type",
                f"{shown!a} holds a quote, which NCCL takes for a part of the value",
                "the bare value",
                "" if mark in bare else bare,
            )
    if re.search(r"[$`\\]", text):
        return Flaw("unsafe", f"{shown!a} holds a shell expression, which NCCL does not expand", "the value itself")
    if re.search(r"\s#", text):
        bare = re.split(r"\s#", text)[0].rstrip()
        return Flaw("type", f"{shown!a}: NCCL takes a trailing comment for a part of the value", "no comment", bare)
    return None


def _first(text: str, wanted: t.Callable[[str], bool]) -> str:
    return f"the character {next(c for c in text if wanted(c))!a}"


def nccl_integer(text: str) -> int | None:
    """What strtoll(text, base 0) gives, as NCCL calls it; None where no digit leads, which NCCL up to 2.31 takes for 0."""
    match = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]+)", text)
    if match is None:
        return None
    sign, digits = match.groups()
    if digits[:2] in ("0x", "0X"):
        value = int(digits, 16)
    elif digits[0] == "0":
        octal = re.match(r"[0-7]*", digits)
        value = int(octal.group() if octal and octal.group() else "0", 8)
    else:
        value = int(digits)
    return -value if sign == "-" else value


def check(variable: Variable, text: str, version: Version) -> Flaw | None:
    """The first thing wrong with *text* as the value of *variable* in this NCCL, or None."""
    if variable.type == "int":
        return _check_integer(variable, text, version)
    if variable.type == "bool":
        return _check_flag(variable, text, version)
    if variable.type == "enum":
        return _check_choice(variable, text, version)
    if variable.type == "path":
        return _check_path(text)
    return check_form(variable, text, version)


def _misread(text: str, version: Version) -> str:
    """How this NCCL reads a text that is no clean number."""
    value = nccl_integer(text)
    if value is not None:
        return f"NCCL reads {text} as {value}"
    if version >= ATTN_SINCE:
        return f"NCCL refuses {text} and takes the default"
    return f"NCCL reads {text} as 0 and says nothing"


def _check_number(text: str, version: Version, expected: str) -> Flaw | None:
    if DECIMAL.match(text) or HEXADECIMAL.match(text):
        return None
    return Flaw("type", _misread(text, version), expected, _meant(text))


def _meant(text: str) -> str:
    """The number that was probably meant, "" if there is no telling."""
    if text.lower() in TRUE_WORDS:
        return "1"
    if text.lower() in FALSE_WORDS:
        return "0"
    suffixed = re.match(r"(\d+)\s*([kmg])i?b?$", text, re.IGNORECASE)
    if suffixed:
        return str(int(suffixed.group(1)) * SUFFIXES[suffixed.group(2).lower()])
    padded = re.match(r"0+(\d+)$", text)
    return padded.group(1) if padded else ""


def _check_integer(variable: Variable, text: str, version: Version) -> Flaw | None:
    low, high = variable.entry.get("min"), variable.maximum(version)
    unit = variable.entry.get("unit", "")
    expected = _range_text(low, high, unit)
    since = variable.entry.get("fractions_since")
    if since and re.match(r"\d+\.\d+$", text) and version >= tuple(map(int, since.split("."))):
        return None
    flaw = _check_number(text, version, expected)
    if flaw:
        return dataclasses.replace(flaw, fix="") if text.isalpha() else flaw
    value = t.cast(int, nccl_integer(text))
    if (low is not None and value < low) or (high is not None and value > high):
        return Flaw("range", f"{text} is out of range, and NCCL does not say so", expected)
    step = variable.entry.get("multiple_of")
    if step and value > 0 and value % step:
        return Flaw("range", f"{text} is no multiple of {step}", f"a multiple of {step}")
    return None


def _range_text(low: int | None, high: int | None, unit: str) -> str:
    what = f"a whole number of {unit}" if unit else "a whole number"
    if low is not None and high is not None:
        return f"{what} from {low} to {high}"
    return f"{what}, {low} or more" if low is not None else what


def _check_flag(variable: Variable, text: str, version: Version) -> Flaw | None:
    since = variable.entry.get("words_since")
    if since and text.upper() in ("T", "TRUE", "F", "FALSE") and version >= tuple(map(int, since.split("."))):
        return None
    flaw = _check_number(text, version, "0 or 1")
    if flaw:
        return flaw
    return None if nccl_integer(text) in (0, 1) else Flaw("range", f"{text} is neither 0 nor 1", "0 or 1")


def _check_choice(variable: Variable, text: str, version: Version) -> Flaw | None:
    choices = variable.choices(version)
    pattern = variable.entry.get("pattern")
    if text in choices or (pattern and re.search(pattern, text)):
        return None
    expected = f"one of {', '.join(choices)}"
    if variable.is_number:
        flaw = _check_number(text, version, expected)
        if flaw:
            return flaw if flaw.fix in choices else dataclasses.replace(flaw, fix="")
        if str(nccl_integer(text)) in choices:
            return None
        return Flaw("range", f"{text} is none of the values that it has", expected)
    alike = [choice for choice in choices if choice.lower() == text.lower()]
    if alike and not variable.entry.get("case_sensitive"):
        return None
    if alike:
        return Flaw(
            "choice", f"{text}: here NCCL tells capitals from small letters, and ignores it", expected, alike[0]
        )
    late = [choice for choice in variable.entry["choices"] if choice.lower() == text.lower()]
    if late:
        since = variable.entry["choices_since"][late[0]]
        return Flaw("choice", f"{text} came with NCCL {since}; this one ignores it", expected)
    return Flaw("choice", f"{text} is no choice of it, which NCCL does not report", expected)


def _check_path(text: str) -> Flaw | None:
    if text.startswith("~"):
        return Flaw("form", f"{text}: NCCL does not expand ~", "an absolute path")
    return None
