# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What bisecting a hang found, as findings with what to type. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_isolation import diagnose_among


def findings(said: t.Mapping[str, t.Any]) -> list[Finding]:
    """The verdict of bisect_hang as findings, each with what to type."""
    proof = "; everybody else together passes" if said["confirmed"] else ""
    found = [
        Finding(
            id="node_hangs",
            severity="error",
            node=name,
            subject="node",
            evidence=f"every run with it hangs or fails, also with a node that passes with others{proof}",
            expected="a run that ends",
            cause="its network, its GPUs or its NCCL settings stop a collective",
            fix=f"{diagnose_among(name, said['good'])}; leave it out of jobs until then",
        )
        for name in said["guilty"]
    ]
    found += [
        Finding(
            id="link_hangs",
            severity="error",
            node=one,
            subject=f"link to {two}",
            evidence=f"{one} and {two} hang together, each passes with others{proof}",
            expected="a run that ends",
            cause="no path between these two: routing, an access list, a firewall or an MTU that differs on the way",
            fix=f"ansible-playbook gpufabric.cluster.diagnose --limit {one},{two}",
        )
        for one, two in said["links"]
    ]
    found += [_finding_of_set("nodes_untold", names) for names in said["untold"]]
    found += [_finding_of_set("hang_unreproduced", names) for names in said["unreproduced"]]
    return found


def _finding_of_set(kind: str, names: t.Sequence[str]) -> Finding:
    untold = kind == "nodes_untold"
    return Finding(
        id=kind,
        severity="error",
        node="",
        subject=" and ".join(names) if len(names) < 4 else f"{len(names)} nodes, {names[0]} to {names[-1]}",
        evidence="they hang together, and no node passed that they could be tried with"
        if untold
        else "they hang together, while every half of them, and halves crosswise, pass",
        expected="a good node to try each with" if untold else "a smaller set that hangs too",
        cause="it is one of them, the path between them, or something that all share: this cannot tell"
        if untold
        else "what grows with the number of ranks: open files, ports, memory for buffers, a slow bootstrap, or a hang that comes and goes",
        fix="add a node that is known to be good and run again"
        if untold
        else "ulimit -n; sysctl net.ipv4.ip_local_port_range; then the whole again with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP",
    )
