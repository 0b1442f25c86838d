#!/usr/bin/env python3
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes that do not exist, as an inventory: ansible-playbook -i inventories/simulated/nodes.py playbooks/verify.yml

GPUFABRIC_SIMULATED_NODES   how many (8)
GPUFABRIC_SIMULATED_HCAS    rails of each (2)
GPUFABRIC_SIMULATED_DIR     where their root directories are built, once (.cache/simulated below the checkout)
GPUFABRIC_SIMULATED_ILL     numbers of nodes that are ill, and how: 3=dead,7=garbage,9=slow_tool,11=hanging
GPUFABRIC_SIMULATED_RAW     1: as an installer leaves them; else their kernels have the default profile already

Everything runs on this machine, over local connections and below those directories: what is changed is changed there.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.gpufabric.cluster.tests.fixtures import simulated_nodes  # noqa: I001

HOST_VARIABLES: dict[str, str] = {}


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--host"]:
        print(json.dumps(HOST_VARIABLES))  # they all come with --list, in _meta
        return 0
    count = int(os.environ.get("GPUFABRIC_SIMULATED_NODES", "8"))
    directory = pathlib.Path(os.environ.get("GPUFABRIC_SIMULATED_DIR", ROOT / ".cache" / "simulated")).resolve()
    ill = dict(word.split("=") for word in os.environ.get("GPUFABRIC_SIMULATED_ILL", "").split(",") if word)
    plan = simulated_nodes.Plan(
        hcas=int(os.environ.get("GPUFABRIC_SIMULATED_HCAS", "2")),
        tuned=os.environ.get("GPUFABRIC_SIMULATED_RAW") != "1",
        ill={int(number): how for number, how in ill.items()},
    )
    print(json.dumps(as_listed(simulated_nodes.build_nodes(directory, count, plan))))
    return 0


def as_listed(inventory: dict[str, dict[str, dict[str, object]]]) -> dict[str, object]:
    """What ``--list`` of an inventory script prints, of an inventory in the form of a file."""
    hosts = inventory["all"]["hosts"]
    return {"all": {"hosts": list(hosts), "vars": inventory["all"]["vars"]}, "_meta": {"hostvars": hosts}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
