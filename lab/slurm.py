# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variant `slurm`: a real slurmctld on the first node and a slurmd on every one, over the control network."""

from __future__ import annotations

import base64
import secrets

from lab.node_files import OwnFile
from lab.plan import Plan

# More than a node has, so that several ranks fit on a node of one processor.
_CPUS = 4
_KEY_BYTES = 96


def slurm_conf(plan: Plan) -> str:
    """slurm.conf(5) of the lab, the same on every node."""
    nodes = "".join(f"NodeName={node.name} NodeAddr={node.control.address}\n" for node in plan.nodes)
    return (
        "ClusterName=lab\n"
        f"SlurmctldHost={plan.nodes[0].name}({plan.nodes[0].control.address})\n"
        "AuthType=auth/munge\n"
        "SlurmUser=slurm\n"
        "StateSaveLocation=/var/lib/slurm/slurmctld\n"
        "SlurmdSpoolDir=/var/lib/slurm/slurmd\n"
        "MpiDefault=pmix\n"
        "ProctrackType=proctrack/linuxproc\n"
        "TaskPlugin=task/none\n"
        "SelectType=select/cons_tres\n"
        "SelectTypeParameters=CR_CPU\n"
        "SlurmdParameters=config_overrides\n"
        "ReturnToService=2\n"
        # An emulated node answers late.
        "MessageTimeout=60\n"
        "SlurmdTimeout=120\n"
        f"NodeName=DEFAULT CPUs={_CPUS} State=UNKNOWN\n"
        f"{nodes}"
        "PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    )


def own_files(plan: Plan) -> list[OwnFile]:
    """slurm.conf, and the munge key that all nodes of this lab share."""
    key = base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode("ascii")
    return [
        OwnFile("etc/slurm/slurm.conf", slurm_conf(plan)),
        OwnFile("etc/lab/munge.key", key, 0o600),
    ]
