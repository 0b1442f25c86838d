# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `ibv_devinfo` prints (libibverbs, examples/devinfo.c): the short form, `-v` of rdma-core and MLNX_OFED, and `-l`."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._captured_text import unpacked
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.text import (
    SHELL,
    Leftovers,
    bare,
    is_failure,
    key_value,
    number,
    seamed,
    settle,
    streams,
)

_HEADER = re.compile(r"hca_id:\s*(\S{1,128})$")
_ANCHOR = re.compile(r"hca_id:|libibverbs: |[0-9]{1,4} HCAs? found:|No IB devices found|" + SHELL + r"ibv_devinfo: ")
_PORT = re.compile(r"port:\s*([0-9]{1,6})$")
_GID = re.compile(  # digits may be blackened: fe80::xxxx:xxff:fexx:xxxx
    r"GID\[\s{0,8}([0-9]{1,6})\]:?\s*([0-9a-fA-FxX*#?:.]{2,64})(?:%\S{1,32})?(?:,\s*(\S.*))?$"
)
_GID_ALONE = re.compile(r"GID\[\s{0,8}[0-9]{1,6}\]:?$")  # a mail broke the line behind it
_LISTED = re.compile(r"([0-9]{1,4}) HCAs? found:?$")
_NAME = re.compile(r"[A-Za-z][\w.-]{0,127}$")
_NO_DRIVER = re.compile(r"no userspace device-specific driver found for \S{0,256}?(uverbs[0-9]{1,6})")
_FOREIGN = re.compile(
    r"CA\b ?:? ?'|Infiniband device |link \S{1,128}/[0-9]|DEV\s|#####"
)  # another tool's answer in the same text
_VERBOSE = re.compile(  # what -v adds: `key: value`, flags in capitals, and a few sentences
    r"[A-Za-z][\w ]{0,60}(?:\([\w ]{1,16}\))?:|[A-Z][A-Z0-9_ ]{2,60}$|[\w ]{1,60} \(mask\)\s|[\w ]{1,60} not supported$"
    r"|[\w -]{1,40} offload$|Delay drop$"
)

_Reading = t.Callable[[str], t.Union[int, float, str]]
_OF_HCA: dict[str, _Reading] = {
    "transport": str,
    "fw_ver": str,
    "node_guid": str,
    "sys_image_guid": str,
    "vendor_id": str,
    "vendor_part_id": number,
    "hw_ver": str,
    "board_id": str,
    "phys_port_cnt": number,
}
_OF_PORT: dict[str, _Reading] = {
    "state": str,
    "max_mtu": number,
    "active_mtu": number,
    "sm_lid": number,
    "port_lid": number,
    "port_lmc": str,
    "link_layer": str,
    "max_msg_sz": str,
    "port_cap_flags": str,
    "port_cap_flags2": str,
    "max_vl_num": str,
    "pkey_tbl_len": number,
    "gid_tbl_len": number,
    "active_width": str,
    "active_speed": str,
    "effective_speed": str,
    "phys_state": str,
}
_CODED = frozenset(
    {"state", "phys_state", "active_width", "active_speed", "max_vl_num"}
)  # words, and a number in parentheses
_CODE = re.compile(r"[\w. ]{0,32}\([0-9]{1,4}\)$")
_SEAM = re.compile(r"\s{1,64}(?=(?:port|transport|state|[a-z]{1,24}(?:_[a-z0-9]{1,24}){1,6}):|GID\[)")


def _known(line: str) -> bool:
    """Whether a line is one that ibv_devinfo prints, whole."""
    line = line.strip()
    pair = key_value(line)
    if pair is None:
        return bool(_GID.match(line))
    return pair[0] in _OF_HCA or pair[0] in _OF_PORT or pair[0] in ("hca_id", "port") or bool(_GID.match(line))


class _Reader:
    """Reads the lines of one host; `hcas` grows by one mapping a device."""

    def __init__(self, host: str, left: Leftovers) -> None:
        self.left = left
        self.hcas: list[dict[str, t.Any]] = []
        self.without_driver: list[str] = []
        self._of_host = {"host": host} if host else {}
        self._hca: dict[str, t.Any] | None = None
        self._port: dict[str, t.Any] | None = None
        self._listing = False
        self._half = ""
        self._coded = ""  # the field whose code a mail broke off

    def read(self, line: str) -> None:
        """Take one line, already without blanks at its ends."""
        if _GID_ALONE.match(line):
            self._half = line
            return
        if self._half and line:
            line, self._half = f"{self._half} {line}", ""
        header = _HEADER.match(line)
        if header:
            self._begin(header.group(1))
            self._listing = False
        elif _LISTED.match(line):
            self._hca = self._port = None
            self._listing = True
        elif self._listing and _NAME.match(line):
            self._begin(line)
            self._hca = None
        elif _FOREIGN.match(line):
            self._hca = self._port = None
            self.left.add(line)
        elif self._hca is None or not self._in_block(self._hca, line):
            no_driver = _NO_DRIVER.search(line)
            if no_driver:
                self.without_driver.append(no_driver.group(1))
            self.left.add(line)

    def _begin(self, name: str) -> None:
        self._hca = {"hca_id": name, **self._of_host, "ports": []}
        self._port = None
        self.hcas.append(self._hca)

    def _in_block(self, hca: dict[str, t.Any], line: str) -> bool:
        """Take a line that belongs to the device that is open; False for any other."""
        port = _PORT.match(line)
        if port:
            self._new_port(hca)["port"] = int(port.group(1))
            return True
        gid = _GID.match(line)
        if gid:
            entry: dict[str, t.Any] = {"index": int(gid.group(1)), "gid": gid.group(2)}
            if gid.group(3):
                entry["type"] = gid.group(3).strip()
            (self._port if self._port is not None else self._new_port(hca))["gids"].append(entry)
            return True
        pair = key_value(line)
        if pair is not None and pair[0] in _OF_PORT:
            self._set_of_port(hca, *pair)
            self._coded = pair[0] if pair[0] in _CODED and "(" not in pair[1] else ""
            return True
        if self._coded and self._port is not None and _CODE.match(line):
            self._port[self._coded] += " " + line
            self._coded = ""
            return True
        if pair is not None and pair[0] in _OF_HCA:
            hca.setdefault(pair[0], _OF_HCA[pair[0]](pair[1]))
            return True
        return bool(_VERBOSE.match(line)) and not (is_failure(line) and line.startswith("lib"))

    def _new_port(self, hca: dict[str, t.Any]) -> dict[str, t.Any]:
        self._port = {"gids": []}
        hca["ports"].append(self._port)
        return self._port

    def _set_of_port(self, hca: dict[str, t.Any], key: str, value: str) -> None:
        port = self._port
        if port is None or ("port" not in port and key in port):
            port = self._new_port(hca)  # `ibv_devinfo | grep state`: the port's number is not in the text
        port.setdefault(key, _OF_PORT[key](value))


def parse_ibv_devinfo(text: str) -> dict[str, t.Any]:
    """Read the answer of ibv_devinfo.

    Returns hcas (hca_id, host where the text names one, transport, fw_ver, node_guid, sys_image_guid, vendor_id,
    vendor_part_id, hw_ver, board_id, phys_port_cnt, ports: port, state, max_mtu and active_mtu in bytes, sm_lid, port_lid,
    port_lmc, link_layer, with -v also gid_tbl_len, active_width, active_speed, phys_state and others as printed, gids:
    index, gid, type where one is printed), uverbs_without_driver (kernel devices that no provider serves), errors, unparsed.
    A label that is not in the text is not in the answer; one with nothing behind it is the empty text. Never raises.
    """
    left = Leftovers()
    hcas: list[dict[str, t.Any]] = []
    without_driver: list[str] = []
    for host, lines in streams(unpacked(text), _ANCHOR):
        reader = _Reader(host, left)
        for line in seamed(settle(lines, _known), _SEAM):
            reader.read(bare(line))
        hcas += reader.hcas
        without_driver += reader.without_driver
    return {"hcas": hcas, "uverbs_without_driver": without_driver, "errors": left.errors, "unparsed": left.unparsed}
