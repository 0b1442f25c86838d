# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The settings of a resolution, read once; what cannot be right about them becomes a finding."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.requirements import lazy
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_sockets import parse_network
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.validate_env import MODES

if t.TYPE_CHECKING:
    import netaddr
else:
    netaddr = lazy("netaddr")


@dataclasses.dataclass(frozen=True)
class Settings:
    """mode: strict or warn. keep_debug: write NCCL_ALGO and NCCL_PROTO. nccl_version: for all nodes, "" to observe it.

    control_network: where the bootstrap belongs. fabric_network: where RoCE GIDs belong. hcas: device names or
    device:port, in place of the selected compute HCAs. traffic_class: RoCE traffic class byte, in place of roce_qos'.
    rail_only: the rails are not connected to one another.
    """

    mode: str = "strict"
    keep_debug: bool = False
    nccl_version: str = ""
    control_network: netaddr.IPNetwork | None = None
    fabric_network: netaddr.IPNetwork | None = None
    hcas: tuple[str, ...] = ()
    traffic_class: int | None = None
    rail_only: bool = False

    @classmethod
    def read(cls, raw: t.Mapping[str, t.Any]) -> tuple[Settings, list[Finding]]:
        """From plain values by the names of the fields; keys that are no field are left aside."""
        findings: list[Finding] = []
        mode = str(raw.get("mode") or "strict")
        if mode not in MODES:
            findings.append(_invalid("nccl_env_validation", f"there is no mode {mode!r}", f"one of {', '.join(MODES)}"))
            mode = "strict"
        settings = cls(
            mode=mode,
            keep_debug=truth(raw.get("keep_debug")),
            nccl_version=str(raw.get("nccl_version") or ""),
            control_network=_network("control_network", raw, findings),
            fabric_network=_network("fabric_network", raw, findings),
            hcas=tuple(words(raw.get("hcas"))),
            traffic_class=_traffic_class(raw, findings),
            rail_only=truth(raw.get("rail_only")),
        )
        return settings, findings


def truth(value: t.Any) -> bool:
    """A switch, also as the text that ``-e name=value`` makes of it."""
    return value.strip().lower() in ("true", "yes", "on", "1") if isinstance(value, str) else bool(value)


def words(value: t.Any) -> list[str]:
    """A list of names, also as one text with commas between them."""
    if isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    return [str(word) for word in value or ()]


def _network(name: str, raw: t.Mapping[str, t.Any], findings: list[Finding]) -> netaddr.IPNetwork | None:
    if not raw.get(name):
        return None
    try:
        return parse_network(raw[name])
    except ValueError as error:
        findings.append(_invalid(f"nccl_env_{name}", str(error), "a network in CIDR notation"))
        return None


def _traffic_class(raw: t.Mapping[str, t.Any], findings: list[Finding]) -> int | None:
    value = raw.get("traffic_class")
    if value is None or value == "":
        return None
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number <= 255:
        findings.append(_invalid("nccl_env_traffic_class", f"{value!r} is no traffic class", "a number from 0 to 255"))
        return None
    return number


def _invalid(subject: str, evidence: str, expected: str) -> Finding:
    return Finding("nccl_setting_invalid", "error", "", subject, evidence, expected, fix=f"correct {subject}")
