# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The NCCL environment of one node: profiles, the vendor's file, the user's values and the hardware, in that order."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import nccl_constraints, nccl_profiles
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.env_settings import Settings
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_names import SOURCE
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_profiles import Profile
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.node_env import SITE, USER, WORDS, Node, NodeEnv, Work
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_profile import add_profile_setting
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_user import add_user_value
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.validate_env import Validated


def resolve_node(
    node: Node, profiles: t.Sequence[Profile], checked: Validated, settings: Settings, catalogue: Catalogue
) -> NodeEnv:
    """One node's variables; checked: the user's values after validate()."""
    work = Work(node, profiles, checked, settings, catalogue)
    wanted, disagreements = nccl_profiles.compose(profiles, work.env.transport)
    work.env.findings += [finding for finding in disagreements if finding.subject not in checked.kept]
    _suit_profiles(work)
    for setting in wanted.values():
        add_profile_setting(work, setting)
    for name, value in node.site.items():
        _from_site(work, name, value)
    for name, value, reason in checked.dropped:
        work.env.drop(name, value, USER, reason)
    for name in checked.removed:
        if name in work.env.variables:
            work.env.take_away(name, f"unset by {USER}")
    for name, value in checked.kept.items():
        add_user_value(work, name, value)
    _drop_pointless(work)
    _constraints(work)
    return work.env


def _suit_profiles(work: Work) -> None:
    """A profile for a transport that this node has not, and a node without any HCA."""
    transport = work.env.transport
    if transport is None or work.node.role != "compute":
        return
    _named_hcas(work)
    for profile in work.profiles:
        if profile.transport and profile.transport not in transport and "plugin" not in transport:
            work.finding(
                "nccl_profile_mismatch",
                "warning",
                f"profile {profile.name}",
                f"profile {profile.name} is for {WORDS[profile.transport]}; this node's ranks use {work.shown_transport}",
                expected=f"HCAs on {WORDS[profile.transport]}, or another profile",
                fix="nccl_env_profiles: [guide]",
            )
    if transport == {"socket"} and not work.selected and not any(p.transport == "socket" for p in work.profiles):
        work.finding(
            "nccl_no_hca",
            "warning",
            "RDMA",
            "no compute HCA is active on this node; its ranks will use TCP sockets",
            expected="an HCA, or the profile tcp where none is meant to be",
            cause="NCCL falls back to sockets without an error, at a fraction of the bandwidth",
            fix="ansible-playbook gpufabric.cluster.rdma says why; where none is meant to be: nccl_env_profiles: [tcp]",
        )


def _named_hcas(work: Work) -> None:
    """HCAs that nccl_env_hcas names and the node does not have."""
    chosen = {name for port in work.selected or () for name in (str(port), port.device)}
    absent = [name for name in work.settings.hcas if name not in chosen]
    if absent:
        present = ", ".join(sorted({device["name"] for device in work.node.hcas or ()})) or "none"
        work.finding(
            "nccl_hca_absent",
            work.wrong,
            "nccl_env_hcas",
            f"nccl_env_hcas names {', '.join(absent)}; this node has {present}",
            expected="HCAs that the node has",
            cause="its ranks would use fewer HCAs than meant, or TCP sockets",
            fix="leave nccl_env_hcas empty: the role rdma selects the compute HCAs on each node",
        )


def _from_site(work: Work, name: str, value: str) -> None:
    before = work.env.variables.get(name)
    if before and before.value != value:
        work.env.take_away(name, f"the site's own nccl.conf has {value}")
    work.set(name, value, SITE, "from the nccl.conf that was here before")


def _drop_pointless(work: Work) -> None:
    for name, entry in list(work.env.variables.items()):
        variable = work.catalogue.variables.get(name)
        if variable is None or entry.origin == SITE or not work.is_pointless(variable):
            continue
        readers = WORDS.get(variable.transport, "RDMA")
        reason = f"only ranks on {readers} look at it, and ranks here use {work.shown_transport}"
        work.env.take_away(name, reason)
        if entry.origin == USER and work.node.role == "compute":
            work.finding(
                "nccl_pointless",
                "notice",
                name,
                f"{name}={entry.value} does nothing here: {reason}",
                fix=f"remove {name} from {SOURCE}",
            )


def _constraints(work: Work) -> None:
    breaches = nccl_constraints.breaches({name: entry.value for name, entry in work.env.variables.items()})
    for breach in breaches:
        users = [name for name in breach.names if name in work.checked.kept]
        if not users:
            continue
        work.finding(
            "nccl_constraint",
            work.wrong if breach.breaks else "notice",
            " and ".join(breach.names),
            breach.evidence,
            expected=breach.expected,
            fix=f"correct {users[-1]} in {SOURCE}",
        )
        for name, value in breach.corrected.items():
            if value is None:
                work.env.take_away(name, breach.evidence)
            else:
                before = work.env.variables[name]
                work.env.variables[name] = dataclasses.replace(before, value=value, reason=breach.evidence)
