# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `mlxlink` prints (mft): sections of labels as text (in colours on a terminal), or the same as JSON."""

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._captured_text import unpacked
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.text import Leftovers, clean

_UNDERLINE = re.compile(r"-{3,}\s*$")
_TITLE = re.compile(r"=+\s{1,8}(\S.{0,128}?)\s{1,8}=+$")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,3})?(?=[\s,\[]|$)")
_RANGE = re.compile(r"\[\s{0,4}([+-]?[0-9]{1,9}(?:\.[0-9]{1,9})?)\s{0,4}\.\.\s{0,4}([+-]?[0-9]{1,9}(?:\.[0-9]{1,9})?)")
_NOT_MEASURABLE = 1e-250  # the tool prints 15E-255 for a bit error rate too small to measure

_WORDS = {
    "State": "state",
    "Physical state": "phys_state",
    "Speed": "speed",
    "Width": "width",
    "FEC": "fec",
    "Recommendation": "recommendation",
    "Identifier": "identifier",
    "Cable Type": "cable_type",
    "Vendor Name": "vendor_name",
    "Vendor Part Number": "vendor_part",
    "Vendor Serial Number": "vendor_serial",
}
_COUNTS = {
    "Symbol Errors": "symbol_errors",
    "Effective Physical Errors": "effective_errors",
    "Link Down Counter": "link_downs",
    "Link Error Recovery Counter": "link_error_recoveries",
    "Temperature [C]": "temp_c",
    "Voltage [mV]": "voltage_mv",
    "Status Opcode": "status_opcode",
    "Time Since Last Clear [Min]": "minutes_since_clear",
}
_RATES = {"Symbol BER": "symbol_ber", "Effective Physical BER": "effective_ber", "Raw Physical BER": "raw_ber"}
_LANES = {
    "Raw Physical Errors Per Lane": "raw_errors_per_lane",
    "Rx Power Current [dBm]": "rx_power_dbm",
    "Tx Power Current [dBm]": "tx_power_dbm",
    "Bias Current [mA]": "bias_ma",
}


def _number(text: str) -> int | float | None:
    match = _NUMBER.match(text.strip())
    if match is None:
        return None
    found = match.group()
    return int(found) if found.lstrip("+-").isdecimal() else float(found)


def _rate(text: str) -> float | None:
    """A bit error rate; the tool's marker for `too small to measure` is 0."""
    found = _number(text)
    return None if found is None else 0.0 if found < _NOT_MEASURABLE else float(found)


def _range(text: str) -> list[float] | None:
    match = _RANGE.search(text[:256])
    return [float(match.group(1)), float(match.group(2))] if match else None


def _sections_of_text(text: str, left: Leftovers) -> dict[str, dict[str, str]]:
    sections: dict[str, dict[str, str]] = {}
    title = ""
    lines = [line.strip() for line in clean(unpacked(text)).split("\n")]
    for number, line in enumerate(lines):
        framed = _TITLE.match(line)
        key, colon, value = line.partition(" :")
        if not line or _UNDERLINE.match(line):
            continue
        if framed or (not colon and number + 1 < len(lines) and _UNDERLINE.match(lines[number + 1])):
            title = framed.group(1) if framed else line
        elif colon or ":" in line:
            key, _unused, value = (key, colon, value) if colon else line.partition(":")
            sections.setdefault(title, {}).setdefault(key.strip(), value.strip())
        elif line.endswith("Info"):
            title = line
        else:
            left.add(line)
    return sections


def _sections_of_json(found: object, title: str = "") -> dict[str, dict[str, str]]:
    """The innermost mappings of a JSON answer by name, their values as text."""
    sections: dict[str, dict[str, str]] = {}
    pending: list[tuple[str, object]] = [(title, found)]
    while pending:
        name, value = pending.pop()
        if not isinstance(value, dict):
            continue
        for key, inner in value.items():
            if isinstance(inner, dict) and not isinstance(inner.get("values"), list):
                pending.append((key, inner))
                continue
            values = inner["values"] if isinstance(inner, dict) else inner
            text = ",".join(map(str, values)) if isinstance(values, list) else str(values)
            sections.setdefault(name, {})[key] = text
    return sections


def parse_mlxlink(text: str) -> dict[str, t.Any]:
    """Read the answer of mlxlink (`-d DEVICE`, with any of -m, -c, --show_fec, --json).

    Returns sections ({title: {label: value as printed}}) and, of what they hold: state, phys_state, speed, width, fec,
    recommendation, identifier, cable_type, vendor_name, vendor_part, vendor_serial (text), symbol_errors, effective_errors,
    link_downs, link_error_recoveries, temp_c, voltage_mv, status_opcode, minutes_since_clear (numbers), symbol_ber,
    effective_ber, raw_ber (the marker 15E-255 is 0), raw_errors_per_lane, rx_power_dbm, tx_power_dbm, bias_ma (a number a
    lane), temp_range (alarm limits); errors, unparsed. A label that is not there, or N/A, is left out. Never raises.
    """
    left = Leftovers()
    sections: dict[str, dict[str, str]] = {}
    if text.lstrip().startswith("{"):
        try:
            sections = _sections_of_json(json.loads(text))
        except (ValueError, RecursionError):
            left.errors.append("the JSON of mlxlink is not complete")
    if not sections:
        sections = _sections_of_text(text, left)
    answer: dict[str, t.Any] = {}
    for labels in sections.values():
        for label, value in labels.items():
            for fields, read in ((_WORDS, str), (_COUNTS, _number), (_RATES, _rate)):
                if label in fields:
                    answer.setdefault(fields[label], read(value))
            if label in _LANES:
                answer.setdefault(_LANES[label], [_number(lane) for lane in value.partition("[")[0].split(",")])
            if label == "Temperature [C]":
                answer.setdefault("temp_range", _range(value))
    known = {key: value for key, value in answer.items() if value not in (None, "", "N/A", [None])}
    return {"sections": sections, **known, "errors": left.errors, "unparsed": left.unparsed}
