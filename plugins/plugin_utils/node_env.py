# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One node during its resolution: what is known of it, and what was worked out so far."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import resolve_rdma, resolve_sockets
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import Catalogue, Variable, Version
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.env_settings import Settings
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_names import SOURCE
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_profiles import Profile, Transport
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_rdma import Port
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.validate_env import Validated

#: origins of a value besides profiles
USER = SOURCE
SITE = "site"
HARDWARE = "hardware"

WORDS = {"ib": "InfiniBand", "roce": "RoCE", "socket": "TCP sockets", "plugin": "a network plug-in"}


@dataclasses.dataclass(frozen=True)
class Node:
    """What is known of one node; see resolve_env.resolve_fleet() for the fields.

    selected: the compute ports as device:port, None where nobody selected any.
    """

    name: str
    version: Version
    version_known: bool
    hcas: t.Sequence[t.Mapping[str, t.Any]] | None
    selected: t.Sequence[str] | None
    addresses: t.Mapping[str, t.Sequence[str]]
    role: str
    site: t.Mapping[str, str]
    traffic_class: int | None
    overrides: t.Mapping[str, t.Any]
    library_names: frozenset[str] | None


@dataclasses.dataclass(frozen=True)
class Entry:
    """One resolved variable.

    origin: profile NAME, nccl_env_variables, site or hardware. scope: uniform or node. conf: whether it has an effect in
    nccl.conf.
    """

    name: str
    value: str
    origin: str
    reason: str
    scope: str = "uniform"
    conf: bool = True


@dataclasses.dataclass
class NodeEnv:
    """variables in the order in which they are written; dropped: (name, value, origin, reason)."""

    version: str
    transport: Transport
    variables: dict[str, Entry] = dataclasses.field(default_factory=dict)
    dropped: list[tuple[str, str, str, str]] = dataclasses.field(default_factory=list)
    findings: list[Finding] = dataclasses.field(default_factory=list)
    writable: bool = True
    profiles: list[str] = dataclasses.field(default_factory=list)

    def drop(self, name: str, value: str, origin: str, reason: str) -> None:
        self.dropped.append((name, value, origin, reason))

    def take_away(self, name: str, reason: str) -> None:
        entry = self.variables.pop(name)
        self.drop(name, entry.value, entry.origin, reason)

    def keep_uniform_only(self) -> None:
        """For a node on which no ranks run: what is bound to a node has nothing to do there."""
        for name, entry in list(self.variables.items()):
            if entry.scope == "node":
                self.take_away(name, "no ranks run on this node, and other nodes have another value")

    def as_dict(self) -> dict[str, t.Any]:
        keys = ("name", "value", "origin", "reason")
        return {
            "nccl_version": self.version,
            "transport": sorted(self.transport) if self.transport is not None else None,
            "profiles": self.profiles,
            "writable": self.writable,
            "variables": [dict(vars(entry)) for entry in self.variables.values()],
            "dropped": [dict(zip(keys, entry)) for entry in self.dropped],
        }


class Work:
    """A resolution of one node under way. checked: the user's values after validate()."""

    def __init__(
        self, node: Node, profiles: t.Sequence[Profile], checked: Validated, settings: Settings, catalogue: Catalogue
    ) -> None:
        self.node = node
        self.profiles = profiles
        self.checked = checked
        self.settings = settings
        self.catalogue = catalogue
        self.active = None if node.hcas is None else resolve_rdma.ports_of(node.hcas)
        self.selected = self._select()
        self.env = NodeEnv(".".join(map(str, node.version)), self._transport())

    def _select(self) -> list[Port] | None:
        """The ports that carry collectives: named ones, else the selected ones, else all active ones."""
        if self.active is None:
            return None
        wanted = self.settings.hcas or self.node.selected
        if wanted is None or (not wanted and self.node.selected is None):
            return self.active
        every = resolve_rdma.ports_of(self.node.hcas or (), active_only=False)
        named = {str(port): port for port in every} | {port.device: port for port in reversed(every)}
        return [named[name] for name in wanted if name in named]

    def _transport(self) -> Transport:
        fixed = {**self.node.site, **self.checked.kept}
        net = fixed.get("NCCL_NET", "").lower()
        if net == "socket" or fixed.get("NCCL_IB_DISABLE") == "1":
            return frozenset({"socket"})
        if net not in ("", "ib"):
            return frozenset({"plugin"})
        if any(profile.transport == "socket" for profile in self.profiles):
            return frozenset({"socket"})
        return None if self.selected is None else resolve_rdma.transport_of(self.selected)

    @property
    def shown_transport(self) -> str:
        return " and ".join(WORDS[word] for word in sorted(self.env.transport or ()))

    def gid_choice(self) -> resolve_rdma.GidChoice:
        up = {str(port) for port in self.active or ()}
        return resolve_rdma.choose_gids(
            [port for port in self.selected or () if str(port) in up],
            self.node.version,
            resolve_sockets.ipv4_networks(self.node.addresses),
            self.settings.fabric_network,
        )

    def is_pointless(self, variable: Variable) -> bool:
        """Whether nothing on this node looks at the variable."""
        transport = self.env.transport
        if transport is None or not variable.transport or "plugin" in transport:
            return False
        if variable.transport == "rdma":
            return not transport & {"ib", "roce"}
        return variable.transport not in transport

    @property
    def wrong(self) -> str:
        return "error" if self.settings.mode == "strict" else "warning"

    def set(self, name: str, value: str, origin: str, reason: str) -> None:
        variable = self.catalogue.variables.get(name)
        conf = variable is None or not variable.environment_only
        self.env.variables[name] = Entry(name, value, origin, reason, conf=conf)

    def finding(self, kind: str, severity: str, subject: str, evidence: str, **more: str) -> None:
        self.env.findings.append(Finding(kind, severity, self.node.name, subject, evidence, **more))
