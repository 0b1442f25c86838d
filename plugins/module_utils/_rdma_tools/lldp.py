# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `lldpcli show neighbors` prints (lldpd): JSON (`-f json` and `json0`), `-f keyvalue`, and the form for people."""

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._captured_text import unpacked
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.text import Leftovers, clean, key_value

_KEYVALUE = re.compile(
    r"lldp\.(\S{1,64}?)\.(chassis|port|via|rid|age|vlan|unknown-tlvs|lldp-med)\b\.?([\w.-]{0,64})=(.*)$"
)
_INTERFACE = re.compile(r"Interface:\s{1,16}([^\s,]{1,64}),")
_RULE = re.compile(r"-{5,}\s*$")
_OF_KEYVALUE = {
    ("chassis", "name"): "switch",
    ("chassis", "mac"): "chassis_id",
    ("chassis", "local"): "chassis_id",
    ("port", "ifname"): "port",
    ("port", "local"): "port",
    ("port", "mac"): "port",
    ("port", "descr"): "port_description",
}
_OF_PEOPLE = {"SysName": "switch", "ChassisID": "chassis_id", "PortID": "port", "PortDescr": "port_description"}
_TYPED = frozenset({"ChassisID", "PortID"})  # `ifname Ethernet1/1`, `mac 00:...`
_SKIPPED = frozenset(
    {
        "Chassis",
        "Port",
        "SysDescr",
        "MgmtIP",
        "MgmtIface",
        "Capability",
        "TTL",
        "PMD autoneg",
        "Adv",
        "MAU oper type",
        "VLAN",
        "MFS",
        "LLDP neighbors",
        "Port aggregated",
        "Unknown TLVs",
        "TLV",
        "PPVID",
        "PI",
    }
)


def _neighbour(interface: str) -> dict[str, t.Any]:
    return {"interface": interface, "switch": "", "chassis_id": "", "port": "", "port_description": ""}


def _text(value: object) -> str:
    """The text of a JSON value: json0 wraps each in a list of mappings with `value`."""
    while isinstance(value, (list, dict)):
        value = (value[0] if value else "") if isinstance(value, list) else value.get("value", "")
    return str(value)


def _entries(found: object) -> t.Iterator[tuple[str, dict[str, t.Any]]]:
    """(interface, its mapping) of every form that lldpd has given the list of interfaces."""
    for item in found if isinstance(found, list) else [found]:
        if not isinstance(item, dict):
            continue
        if isinstance(item.get("name"), str):
            yield item["name"], item
        else:
            for name, inner in item.items():
                for one in inner if isinstance(inner, list) else [inner]:
                    if isinstance(one, dict):
                        yield name, one


def _first(found: object) -> dict[str, t.Any]:
    if isinstance(found, list):
        found = found[0] if found else {}
    return found if isinstance(found, dict) else {}


def _of_json(found: object) -> list[dict[str, t.Any]]:
    neighbours = []
    for interface, entry in _entries(_first(_first(found).get("lldp")).get("interface")):
        chassis, port = _first(entry.get("chassis")), _first(entry.get("port"))
        name = _text(chassis.get("name", ""))
        if "id" not in chassis and chassis:  # json names the mapping by the switch
            name, chassis = next(iter(chassis)), _first(next(iter(chassis.values())))
        neighbours.append(
            {
                "interface": interface,
                "switch": name,
                "chassis_id": _text(chassis.get("id", "")),
                "port": _text(port.get("id", "")),
                "port_description": _text(port.get("descr", "")),
            }
        )
    return neighbours


def _of_lines(text: str, left: Leftovers) -> list[dict[str, t.Any]]:
    neighbours: dict[tuple[str, int], dict[str, t.Any]] = {}
    blocks = 0
    open_block: dict[str, t.Any] | None = None
    for line in map(str.strip, clean(unpacked(text)).split("\n")):
        keyvalue, interface = _KEYVALUE.match(line), _INTERFACE.match(line)
        if keyvalue:
            name, group, label, value = keyvalue.groups()
            entry = neighbours.setdefault((name, 0), _neighbour(name))
            field = _OF_KEYVALUE.get((group, label))
            if field and not entry[field]:
                entry[field] = value.strip()
        elif interface:
            blocks += 1
            open_block = neighbours[(interface.group(1), blocks)] = _neighbour(interface.group(1))
        else:
            pair = key_value(line)
            if open_block is not None and pair is not None and pair[0] in _OF_PEOPLE:
                open_block[_OF_PEOPLE[pair[0]]] = pair[1].partition(" ")[2].strip() if pair[0] in _TYPED else pair[1]
            elif not _RULE.match(line) and (pair is None or pair[0] not in _SKIPPED):
                left.add(line)
    return list(neighbours.values())


def parse_lldp(text: str) -> dict[str, t.Any]:
    """Read the answer of `lldpcli show neighbors`.

    Returns neighbours (interface, switch by its system name, chassis_id, port by its ID, port_description; empty where the
    switch does not say), errors, unparsed. Never raises.
    """
    left = Leftovers()
    if text.lstrip().startswith(("{", "[")):
        try:
            return {"neighbours": _of_json(json.loads(text)), "errors": [], "unparsed": []}
        except (ValueError, RecursionError):
            left.errors.append("the JSON of lldpcli is not complete")
    return {"neighbours": _of_lines(text, left), "errors": left.errors, "unparsed": left.unparsed}
