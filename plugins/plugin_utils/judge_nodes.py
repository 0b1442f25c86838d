# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges what node_info found: nodes that do not answer, twins, and nodes that somebody is using."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding


def judge_nodes(nodes: t.Mapping[str, t.Mapping[str, t.Any]], settings: t.Mapping[str, t.Any]) -> list[Finding]:
    """Findings over the registered results of node_info, a node each."""
    findings = []
    answered = {name: result["observed"] for name, result in nodes.items() if "observed" in result}
    for name, result in nodes.items():
        if name not in answered:
            findings.append(_silent(name, result))
        elif answered[name]["busy"]:
            findings.append(_busy(name, answered[name]))
    return findings + _twins(answered)


def _silent(name: str, result: t.Mapping[str, t.Any]) -> Finding:
    said = " ".join(str(result.get("msg", "no answer")).split())
    if result.get("unreachable"):
        return Finding(
            id="node_unreachable",
            severity="error",
            node=name,
            subject="SSH",
            evidence=said,
            expected="an answer to the first connection",
            cause="the node is off, its network is down, or its SSH key or user is not the inventory's",
            fix=f"ansible {name} -m ansible.builtin.ping -vvv; then power, cable and sshd at its console",
        )
    if result.get("timedout"):
        return Finding(
            id="node_hangs",
            severity="error",
            node=name,
            subject="first answer",
            evidence=f"it was reached, and did not say what it is within {result['timedout'].get('period', '?')} s",
            expected="an answer within node_facts_timeout_s",
            cause="a file system that does not answer, a driver that hangs (nvidia-smi), or far too much work on the node",
            fix=f"ssh {name} 'ps -eo state,pid,wchan:32,args | grep ^D'; then its console and dmesg",
        )
    details = " ".join(str(result.get("module_stderr", "")).split())[-300:]
    return Finding(
        id="node_unusable",
        severity="error",
        node=name,
        subject="Python",
        evidence=" ".join(filter(None, [said, details])),
        expected="Python 3.9 or later at ansible_python_interpreter",
        cause="Ansible's modules need a Python on the node",
        fix=f"ansible {name} -m ansible.builtin.raw -a 'apt-get install -y python3 || dnf install -y python3'",
    )


def _busy(name: str, node: t.Mapping[str, t.Any]) -> Finding:
    return Finding(
        id="node_busy",
        severity="warning",
        node=name,
        subject="running work",
        evidence=node["busy_why"],
        expected="an idle node",
        cause="a change or a benchmark now would disturb that work, so the node was only observed",
        fix="wait or drain it, or say -e gpufabric_busy=ignore",
    )


def _twins(nodes: t.Mapping[str, t.Mapping[str, t.Any]]) -> list[Finding]:
    """Two inventory names of one machine, and two machines cloned with one machine-id or host name."""
    findings = []
    for key, subject, cause, fix in (
        ("boot_id", "boot id", "two inventory names lead to one machine", "remove one of them from the inventory"),
        (
            "machine_id",
            "machine-id",
            "a disk image was cloned with its machine-id; DHCP and journals confuse such nodes",
            "rm /etc/machine-id && systemd-machine-id-setup, on all but one",
        ),
        ("hostname", "host name", "NCCL tells hosts apart by name, and MPI too", "hostnamectl set-hostname NAME"),
    ):
        owners: dict[str, list[str]] = {}
        for name, node in nodes.items():
            if node.get(key):
                owners.setdefault(node[key], []).append(name)
        shared = [(value, names) for value, names in owners.items() if len(names) > 1]
        for value, names in shared:
            findings.append(
                Finding(
                    id=f"duplicate_{key}",
                    severity="error" if key == "boot_id" else "warning",
                    node=names[1],
                    subject=subject,
                    evidence=f"{', '.join(names)} all have {value}",
                    expected=f"a {subject} of its own for each node",
                    cause=cause,
                    fix=fix,
                )
            )
        if shared and key == "boot_id":
            break  # one machine under two names shares the other two as a consequence
    return findings
