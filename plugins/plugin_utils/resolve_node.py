# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The NCCL environment of one node: profiles, the vendor's file, the user's values and the hardware, in that order."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import (
    nccl_constraints,
    nccl_profiles,
    resolve_rdma,
    resolve_sockets,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import Catalogue, Variable, Version
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.env_settings import Settings
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_profiles import Profile, Setting, Transport
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_value import nccl_integer
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_rdma import AUTOMATIC_SINCE, Port
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.validate_env import SOURCE, Validated

USER = SOURCE
SITE = "site"

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
            "variables": [dataclasses.asdict(entry) for entry in self.variables.values()],
            "dropped": [dict(zip(keys, entry)) for entry in self.dropped],
        }


def resolve_node(
    node: Node, profiles: t.Sequence[Profile], checked: Validated, settings: Settings, catalogue: Catalogue
) -> NodeEnv:
    """One node's variables; checked: the user's values after validate()."""
    return _Resolution(node, profiles, checked, settings, catalogue).run()


class _Resolution:
    def __init__(
        self, node: Node, profiles: t.Sequence[Profile], checked: Validated, settings: Settings, catalogue: Catalogue
    ) -> None:
        self.node = node
        self.profiles = profiles
        self.checked = checked
        self.settings = settings
        self.catalogue = catalogue
        self.active = None if node.hcas is None else resolve_rdma.ports_of(node.hcas)
        self.selected = self._selected()
        self.env = NodeEnv(".".join(map(str, node.version)), self._transport())

    def run(self) -> NodeEnv:
        wanted, disagreements = nccl_profiles.compose(self.profiles, self.env.transport)
        self.env.findings += [f for f in disagreements if f.subject not in self.checked.kept]
        self._suit_profiles()
        for setting in wanted.values():
            self._from_profile(setting)
        for name, value in self.node.site.items():
            self._from_site(name, value)
        for name, value, reason in self.checked.dropped:
            self.env.drop(name, value, USER, reason)
        for name in self.checked.removed:
            if name in self.env.variables:
                self.env.take_away(name, f"unset by {USER}")
        for name, value in self.checked.kept.items():
            self._from_user(name, value)
        self._drop_pointless()
        self._constraints()
        return self.env

    # ---- what the hardware is

    def _selected(self) -> list[Port] | None:
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
    def _shown_transport(self) -> str:
        return " and ".join(WORDS[word] for word in sorted(self.env.transport or ()))

    def _suit_profiles(self) -> None:
        """A profile for a transport that this node has not, and a node without any HCA."""
        transport = self.env.transport
        if transport is None or self.node.role != "compute":
            return
        for profile in self.profiles:
            if profile.transport and profile.transport not in transport and "plugin" not in transport:
                self._finding(
                    "nccl_profile_mismatch",
                    "warning",
                    f"profile {profile.name}",
                    f"profile {profile.name} is for {WORDS[profile.transport]}; this node's ranks use {self._shown_transport}",
                    expected=f"HCAs on {WORDS[profile.transport]}, or another profile",
                    fix="nccl_env_profiles: [guide]",
                )
        if transport == {"socket"} and not self.selected and not any(p.transport == "socket" for p in self.profiles):
            self._finding(
                "nccl_no_hca",
                "warning",
                "RDMA",
                "no compute HCA is active on this node; its ranks will use TCP sockets",
                expected="an HCA, or the profile tcp where none is meant to be",
                cause="NCCL falls back to sockets without an error, at a fraction of the bandwidth",
                fix="ansible-playbook playbooks/rdma.yml, or nccl_env_profiles: [tcp]",
            )

    # ---- profiles

    def _from_profile(self, setting: Setting) -> None:
        origin = f"profile {setting.profile}"
        if setting.leave:
            if setting.name not in self.node.overrides:
                self.env.drop(setting.name, setting.asked, origin, setting.reason)
            return
        if setting.source:
            self._resolved(setting, origin)
            return
        variable = self.catalogue.variables[setting.name]
        if not variable.is_in(self.node.version):
            self.env.drop(setting.name, setting.value, origin, f"NCCL {self.env.version} does not have it")
        elif variable.default(self.node.version)[0] == setting.value:
            self.env.drop(setting.name, setting.value, origin, f"the default of NCCL {self.env.version}")
        else:
            self._set(setting.name, setting.value, origin, setting.reason)

    def _resolved(self, setting: Setting, origin: str) -> None:
        resolver = {
            "hcas": self._hcas,
            "gids": self._gids,
            "control_network": self._control_network,
            "traffic_class": self._traffic_class,
            "rails": self._rails,
        }[setting.source]
        resolver(setting, origin)

    def _hcas(self, setting: Setting, origin: str) -> None:
        if not self.selected:
            why = "the HCAs were not observed" if self.selected is None else "no compute HCA on this node"
            self.env.drop(setting.name, "", origin, why)
            return
        listed = ", ".join(str(port) for port in self.selected)
        self._set(setting.name, resolve_rdma.exact(self.selected), origin, f"{setting.reason}: {listed}")

    def _gids(self, setting: Setting, origin: str) -> None:
        if not self.selected:
            self.env.drop(setting.name, "", origin, "no HCA whose GID table could be read")
            return
        if setting.name in self.checked.kept:
            return
        choice = self._gid_choice()
        if choice.problem:
            self.env.drop(setting.name, "", origin, choice.problem)
            self._finding(
                "nccl_gid_unresolved",
                "warning",
                setting.name,
                choice.problem,
                expected="one RoCE v2 GID with an IPv4 address on every compute HCA",
                cause="without it RoCE packets leave with the wrong source address, and connections time out",
                fix=choice.fix,
            )
        elif not choice.variables:
            self.env.drop(setting.name, "", origin, choice.reason)
        for name, (value, reason) in choice.variables.items():
            self._set(name, value, origin, reason)

    def _gid_choice(self) -> resolve_rdma.GidChoice:
        up = {str(port) for port in self.active or ()}
        return resolve_rdma.choose_gids(
            [port for port in self.selected or () if str(port) in up],
            self.node.version,
            resolve_sockets.ipv4_networks(self.node.addresses),
            self.settings.fabric_network,
        )

    def _control_network(self, setting: Setting, origin: str) -> None:
        network = self.settings.control_network
        if network is None:
            self.env.drop(setting.name, "", origin, "nccl_env_control_network is not set: NCCL chooses the interface")
            return
        found = resolve_sockets.interfaces_in(network, self.node.addresses)
        if found:
            more = " (several: NCCL takes them in this order)" if len(found) > 1 else ""
            self._set(setting.name, f"={','.join(found)}", origin, f"has an address in {network}{more}")
            return
        self.env.drop(setting.name, "", origin, f"no interface has an address in {network}")
        if setting.name in self.checked.kept or self.node.role != "compute":
            return
        self._finding(
            "nccl_control_interface_absent",
            "error",
            setting.name,
            f"no interface of this node has an address in {network}",
            expected="an address in nccl_env_control_network on every node",
            cause="ranks here would bootstrap over an interface that the others cannot reach",
            fix=f"give the node an address in {network}, or correct nccl_env_control_network",
        )

    def _traffic_class(self, setting: Setting, origin: str) -> None:
        value = self.settings.traffic_class if self.settings.traffic_class is not None else self.node.traffic_class
        if value is None:
            self.env.drop(setting.name, "", origin, "no QoS was verified: set nccl_env_traffic_class, or run roce_qos")
        elif value == 0:
            self.env.drop(setting.name, "0", origin, f"the default of NCCL {self.env.version}")
        else:
            self._set(setting.name, str(value), origin, f"{setting.reason}: DSCP {value >> 2}")

    def _rails(self, setting: Setting, origin: str) -> None:
        if self.settings.rail_only:
            self._set(setting.name, "0", origin, f"nccl_env_rail_only: {setting.reason}")

    # ---- the vendor's file, and the user

    def _from_site(self, name: str, value: str) -> None:
        before = self.env.variables.get(name)
        if before and before.value != value:
            self.env.take_away(name, f"the site's own nccl.conf has {value}")
        self._set(name, value, SITE, "from the nccl.conf that was here before")

    def _from_user(self, name: str, value: str) -> None:
        before = self.env.variables.get(name)
        if before and before.value != value:
            self.env.take_away(name, f"{USER} has {value}")
        adjust = {
            "NCCL_IB_HCA": self._user_hcas,
            "NCCL_IB_GID_INDEX": self._user_gid_index,
            "NCCL_IB_TC": self._user_traffic_class,
            "NCCL_SOCKET_IFNAME": self._user_interfaces,
        }.get(name)
        final = adjust(name, value) if adjust else value
        if final is not None:
            self._set(name, final, USER, "as given" if final == value else f"given as {value}, made exact")

    def _user_hcas(self, name: str, value: str) -> str | None:
        if self._is_pointless(self.catalogue.variables[name]):
            return value
        everything = None if self.node.hcas is None else resolve_rdma.ports_of(self.node.hcas, active_only=False)
        made = resolve_rdma.make_exact(value, everything)
        if made.absent:
            present = ", ".join(sorted({port.device for port in everything or ()})) or "none"
            self._finding(
                "nccl_hca_absent",
                self._wrong,
                name,
                f"{name}={value}: {', '.join(made.absent)} matches no HCA of this node, which has {present}",
                expected="HCAs that the node has; without this variable the role resolves them on each node",
                cause="NCCL silently uses what is left of the list, or TCP sockets if nothing is",
                fix=f"remove {name} from {SOURCE}",
            )
        if not made.value:
            self.env.drop(name, value, USER, "matches no HCA of this node")
            return None
        if made.was_prefix:
            takes = f", which takes {', '.join(made.widened)} too" if made.widened else ""
            self._finding(
                "nccl_hca_prefix",
                "warning",
                name,
                f"{name}={value} matches by prefix{takes}; it is written as {made.value}",
                expected="a list that begins with =, such as " + made.value,
                cause="NCCL takes every HCA whose name begins with an entry: mlx5_1 also takes mlx5_10 to mlx5_19",
                fix=f"remove {name} from {SOURCE}: the role resolves it on each node",
            )
        return made.value

    def _user_gid_index(self, name: str, value: str) -> str | None:
        index = nccl_integer(value)
        ports = [port for port in self.selected or () if port.roce]
        if index is None or index < 0 or self._is_pointless(self.catalogue.variables[name]):
            return value
        wrong = []
        for port in ports:
            there, meant = port.at(index), port.intended(self.settings.fabric_network)
            if meant is not None and (there is None or (there.ipv4, there.is_v2) != (meant.ipv4, True)):
                wrong.append(f"{port} has {there or 'no GID'} at {index}, and {meant} at {meant.index}")
        if wrong:
            self._finding(
                "nccl_gid_index_wrong",
                self._wrong,
                name,
                f"{name}={value} is wrong on this node: {'; '.join(wrong)}",
                expected=self._gid_advice(),
                cause=self.catalogue.variables[name].advice,
                fix=f"remove {name} from {SOURCE}: the role resolves it on each node",
            )
            self.env.drop(name, value, USER, wrong[0])
            choice = self._gid_choice()
            for other, (resolved, reason) in choice.variables.items():
                self._set(other, resolved, "hardware", reason)
            return None
        seen = "it fits every compute HCA here today" if ports else "no GID table was there to check it against"
        self._finding(
            "nccl_gid_index_fixed",
            "warning",
            name,
            f"{name}={value} is fixed for all nodes; {seen}",
            expected=self._gid_advice(),
            cause=self.catalogue.variables[name].advice,
            fix=f"remove {name} from {SOURCE}",
        )
        return value

    def _gid_advice(self) -> str:
        if self.node.version >= AUTOMATIC_SINCE:
            return f"no such setting: NCCL {self.env.version} finds the GID itself, as every release since 2.21 does"
        return "an index that the role resolves on each node from its GID table"

    def _user_traffic_class(self, name: str, value: str) -> str | None:
        number, verified = nccl_integer(value), self.node.traffic_class
        if number in (None, -1) or number == verified or self._is_pointless(self.catalogue.variables[name]):
            return value
        assert number is not None
        found = (
            "no QoS was verified on this node" if verified is None else f"the QoS verified on this node is {verified}"
        )
        self._finding(
            "nccl_traffic_class_unverified",
            "warning",
            name,
            f"{name}={value} is DSCP {number >> 2} with ECN bits {number & 3}; {found}",
            expected="the traffic class that HCAs and switches carry without loss",
            cause=self.catalogue.variables[name].advice,
            fix="run the role roce_qos, which verifies DSCP, priority and PFC, before this one",
        )
        return value

    def _user_interfaces(self, name: str, value: str) -> str | None:
        if not self.node.addresses:
            return value
        absent = resolve_sockets.unmatched(value, self.node.addresses)
        if absent and self.node.role == "compute":
            present = ", ".join(sorted(n for n, assigned in self.node.addresses.items() if assigned))
            self._finding(
                "nccl_interface_absent",
                self._wrong,
                name,
                f"{name}={value}: {', '.join(absent)} matches no interface of this node, which has {present}",
                expected="interfaces that every node has, or nccl_env_control_network with the network that is meant",
                cause="ranks here fail with 'no socket interface found', or others fail to reach them",
                fix=f"remove {name} from {SOURCE}, and set nccl_env_control_network",
            )
            if len(absent) == len(value.lstrip("^=").split(",")):
                self.env.drop(name, value, USER, "matches no interface of this node")
                return None
        return resolve_sockets.make_exact(value, self.node.addresses)

    # ---- all together

    def _is_pointless(self, variable: Variable) -> bool:
        """Whether nothing on this node looks at the variable."""
        transport = self.env.transport
        if transport is None or not variable.transport or "plugin" in transport:
            return False
        if variable.transport == "rdma":
            return not transport & {"ib", "roce"}
        return variable.transport not in transport

    def _drop_pointless(self) -> None:
        for name, entry in list(self.env.variables.items()):
            variable = self.catalogue.variables.get(name)
            if variable is None or entry.origin == SITE or not self._is_pointless(variable):
                continue
            readers = WORDS.get(variable.transport, "RDMA")
            reason = f"only ranks on {readers} look at it, and ranks here use {self._shown_transport}"
            self.env.take_away(name, reason)
            if entry.origin == USER and self.node.role == "compute":
                self._finding(
                    "nccl_pointless",
                    "notice",
                    name,
                    f"{name}={entry.value} does nothing here: {reason}",
                    fix=f"remove {name} from {SOURCE}",
                )

    def _constraints(self) -> None:
        breaches = nccl_constraints.breaches({name: entry.value for name, entry in self.env.variables.items()})
        for breach in breaches:
            users = [name for name in breach.names if name in self.checked.kept]
            if not users:
                continue
            self._finding(
                "nccl_constraint",
                self._wrong if breach.breaks else "notice",
                " and ".join(breach.names),
                breach.evidence,
                expected=breach.expected,
                fix=f"correct {users[-1]} in {SOURCE}",
            )
            for name, value in breach.corrected.items():
                if value is None:
                    self.env.take_away(name, breach.evidence)
                else:
                    before = self.env.variables[name]
                    self.env.variables[name] = dataclasses.replace(before, value=value, reason=breach.evidence)

    @property
    def _wrong(self) -> str:
        return "error" if self.settings.mode == "strict" else "warning"

    def _set(self, name: str, value: str, origin: str, reason: str) -> None:
        variable = self.catalogue.variables.get(name)
        conf = variable is None or not variable.environment_only
        self.env.variables[name] = Entry(name, value, origin, reason, conf=conf)

    def _finding(self, kind: str, severity: str, subject: str, evidence: str, **more: str) -> None:
        self.env.findings.append(Finding(kind, severity, self.node.name, subject, evidence, **more))
