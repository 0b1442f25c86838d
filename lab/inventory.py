# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Ansible inventory of a lab, and the known_hosts file that pins its nodes."""

from __future__ import annotations

import dataclasses
import pathlib
import typing as t

import yaml

from lab.keys import known_hosts_line
from lab.paths import COMMITTED_INVENTORY, write_atomically
from lab.plan import Node, Plan
from lab.ports import LOOPBACK
from lab.remote import Endpoint

_HEADER = "# Written by `python -m lab up`, removed by `python -m lab down`. Settings belong in group_vars/.\n"


def ssh_options(known_hosts: pathlib.Path) -> list[str]:
    """ssh's options for a lab's nodes: only the pinned keys count, and only the operator's key is offered."""
    return [
        *("-o", f'UserKnownHostsFile="{known_hosts}"'),
        *("-o", "GlobalKnownHostsFile=/dev/null"),
        *("-o", "StrictHostKeyChecking=yes"),
        *("-o", "IdentitiesOnly=yes"),
    ]


def host_variables(node: Node, endpoint: Endpoint, known_hosts: pathlib.Path) -> dict[str, t.Any]:
    """The inventory variables of one node. Paths are absolute: they hold wherever ansible-playbook is started."""
    options = " ".join(f"'{word}'" if '"' in word else word for word in ssh_options(known_hosts))
    return {
        "ansible_host": LOOPBACK,
        "ansible_port": endpoint.port,
        "ansible_user": endpoint.user,
        "ansible_ssh_private_key_file": str(endpoint.identity),
        "ansible_ssh_common_args": options,
        "ansible_python_interpreter": "/usr/bin/python3",
        "gpufabric_control_address": str(node.control.address),
    }


@dataclasses.dataclass(frozen=True)
class Group:
    """The group of the lab's variant, for group_vars/NAME, and variables that follow from its plan."""

    name: str
    variables: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)


def render(plan: Plan, endpoints: t.Mapping[str, Endpoint], known_hosts: pathlib.Path, group: Group) -> str:
    """hosts.yml: every node in the group `lab`, below it the group of the variant."""
    inner: dict[str, t.Any] = {
        "hosts": {node.name: host_variables(node, endpoints[node.name], known_hosts) for node in plan.nodes}
    }
    if group.variables:
        inner["vars"] = dict(group.variables)
    tree = {"all": {"children": {"lab": {"children": {group.name: inner}}}}}
    return _HEADER + yaml.safe_dump(tree, sort_keys=False, width=1000)


def write(
    directory: pathlib.Path,
    plan: Plan,
    endpoints: t.Mapping[str, Endpoint],
    known_hosts: pathlib.Path,
    group: Group,
) -> pathlib.Path:
    """Write known_hosts and hosts.yml; return the latter. An inventory elsewhere gets the committed group_vars by a link."""
    lines = [known_hosts_line(LOOPBACK, one.port, one.host_key) for one in endpoints.values()]
    write_atomically(known_hosts, "".join(lines).encode())
    directory.mkdir(parents=True, exist_ok=True)
    link = directory / "group_vars"
    if directory != COMMITTED_INVENTORY and not link.is_symlink():
        link.symlink_to(COMMITTED_INVENTORY / "group_vars")
    path = directory / "hosts.yml"
    write_atomically(path, render(plan, endpoints, known_hosts, group).encode())
    return path


def remove(directory: pathlib.Path) -> None:
    """Take back what write has made."""
    (directory / "hosts.yml").unlink(missing_ok=True)
    if directory != COMMITTED_INVENTORY and directory.is_dir():
        (directory / "group_vars").unlink(missing_ok=True)
        directory.rmdir()
