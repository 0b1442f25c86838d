# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges links by what mlxlink tells of cable, bit errors and module. Raw errors are left out: FEC corrects them."""

from __future__ import annotations

import collections
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import majority
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.select_hcas import Port, Selection

#: effective bit error rate (after FEC) above which a link loses packets noticeably; Ethernet and InfiniBand ask for 1e-12
WORST_EFFECTIVE_BER = 1e-12

#: what mlxlink recommends where all is well
NO_ISSUE = "no issue"


def judge_cables(selection: Selection) -> list[Finding]:
    """Warnings about active compute ports whose link is up and bad all the same."""
    findings = []
    ports = [port for ports in selection.compute.values() for port in ports if port.active and port.port.get("cable")]
    for port in ports:
        findings += list(_link(port, port.port["cable"]))
    return findings + _odd_fec(ports)


def _link(port: Port, cable: t.Mapping[str, t.Any]) -> t.Iterator[Finding]:
    ber = cable.get("effective_ber")
    advice = str(cable.get("recommendation", ""))
    part = " ".join(str(cable[key]) for key in ("vendor_name", "vendor_part", "vendor_serial") if cable.get(key))
    if ber is not None and ber > WORST_EFFECTIVE_BER:
        yield _warning(
            port,
            "hca_link_errors",
            f"effective bit error rate {ber:g}, symbol errors {cable.get('symbol_errors', 'unknown')} (mlxlink)",
            f"{WORST_EFFECTIVE_BER:g} at most",
            f"dirt or damage in the cable or optics{f' ({part})' if part else ''}",
        )
    elif advice and NO_ISSUE not in advice.lower():
        yield _warning(
            port, "hca_link_advice", f"mlxlink: {advice}", "no issue observed", "see mlxlink's recommendation"
        )
    limits, degrees = cable.get("temp_range"), cable.get("temp_c")
    if limits and degrees is not None and not limits[0] <= degrees <= limits[1]:
        yield _warning(
            port,
            "hca_module_temperature",
            f"module temperature {degrees:g} °C",
            f"{limits[0]:g} to {limits[1]:g} °C",
            "the module is cooled badly, and its link will fail",
        )


def _odd_fec(ports: t.Iterable[Port]) -> list[Finding]:
    by_rate: dict[float, list[Port]] = collections.defaultdict(list)
    for port in ports:
        if port.port["cable"].get("fec"):
            by_rate[port.port["rate_gbps"] or 0.0].append(port)
    findings = []
    for members in by_rate.values():
        common = majority(str(port.port["cable"]["fec"]) for port in members)
        findings += [
            _warning(
                port,
                "hca_fec",
                f"FEC {port.port['cable']['fec']}",
                f"{common[0]}, as on {common[1]} of {common[2]} ports of this rate",
                "the ends negotiated another error correction: another cable type, or a setting at the switch port",
            )
            for port in members
            if common and port.port["cable"]["fec"] != common[0]
        ]
    return findings


def _warning(port: Port, finding_id: str, evidence: str, expected: str, cause: str) -> Finding:
    return Finding(
        id=finding_id,
        severity="warning",
        node=port.node,
        subject=port.subject,
        evidence=evidence,
        expected=expected,
        cause=cause,
        fix=f"mlxlink -d {port.hca['name']} -p {port.port['port']} -m -c; clean, reseat or swap the cable",
    )
