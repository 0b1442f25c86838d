# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Profiles of NCCL settings (data/nccl_profiles.json): what they want, laid over one another."""

from __future__ import annotations

import dataclasses
import functools
import json
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import DATA
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nearest_name import edit_distance

PROFILES = DATA / "nccl_profiles.json"

#: edits up to which a profile's name counts as misspelt, and a bound for the search
MISSPELT = 2
LONGEST_NAME = 20

#: transports of a node: any of ib and roce, or socket, or plugin; None where its hardware is unknown
Transport = t.Optional[frozenset[str]]


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a profile wants of one variable.

    value: a fixed text; source: what it is resolved from (hcas, gids, control_network, traffic_class, rails);
    leave: the variable is left alone although guides ask for *asked*. when: always, rdma, ib, roce or socket.
    """

    name: str
    profile: str
    reason: str
    when: str = "always"
    value: str = ""
    source: str = ""
    asked: str = ""
    leave: bool = False

    @property
    def wants(self) -> tuple[str, str, bool]:
        return (self.value, self.source, self.leave)

    def applies(self, transport: Transport) -> bool:
        if self.when == "always" or transport is None:
            return True
        if self.when == "rdma":
            return bool(transport & {"ib", "roce"})
        return self.when in transport


@dataclasses.dataclass(frozen=True)
class Profile:
    """transport: what it is made for, "" for any; overlay: meant to be laid over another one."""

    name: str
    summary: str
    overlay: bool
    production: bool
    transport: str
    settings: tuple[Setting, ...]


@functools.lru_cache(maxsize=1)
def load_profiles() -> dict[str, Profile]:
    return profiles_from(json.loads(PROFILES.read_text(encoding="utf-8")))


def profiles_from(data: t.Mapping[str, t.Mapping[str, t.Any]]) -> dict[str, Profile]:
    return {
        name: Profile(
            name,
            entry["summary"],
            entry["layer"] == "overlay",
            entry["production"],
            entry.get("transport", ""),
            tuple(
                Setting(
                    s["name"],
                    name,
                    s["reason"],
                    s["when"],
                    s.get("value", ""),
                    s.get("from", ""),
                    s.get("asked", ""),
                    s.get("leave", False),
                )
                for s in entry["settings"]
            ),
        )
        for name, entry in data.items()
    }


def chosen(names: t.Sequence[str], known: t.Mapping[str, Profile]) -> tuple[list[Profile], list[Finding]]:
    """The profiles that exist, and an error for each name that does not, or that contradicts another as a whole."""
    findings = []
    profiles: list[Profile] = []
    for name in names:
        if name in known:
            profiles.append(known[name])
            continue
        near = min(known, key=lambda other: edit_distance(str(name), other, LONGEST_NAME))
        likely = near if edit_distance(str(name), near, LONGEST_NAME) <= MISSPELT else ""
        findings.append(
            Finding(
                id="nccl_profile_unknown",
                severity="error",
                node="",
                subject="nccl_env_profiles",
                evidence=f"there is no profile {name!r}",
                expected=(f"{likely}, probably; " if likely else "") + f"one of {', '.join(known)}",
                fix=f"nccl_env_profiles: [{likely or 'guide'}]",
            )
        )
    bound = {profile.transport: profile.name for profile in profiles if profile.transport}
    if len(bound) > 1:
        findings.append(
            Finding(
                id="nccl_profiles_disagree",
                severity="error",
                node="",
                subject="nccl_env_profiles",
                evidence=f"the profiles {' and '.join(bound.values())} are made for different transports",
                expected="one of them; guide serves a fleet of several transports",
                fix=f"nccl_env_profiles: [{next(iter(bound.values()))}]",
            )
        )
    return profiles, findings


def compose(profiles: t.Sequence[Profile], transport: Transport) -> tuple[dict[str, Setting], list[Finding]]:
    """{variable: what is wanted of it} on such a node, later profiles over earlier ones, and where two disagree."""
    wanted: dict[str, Setting] = {}
    findings = []
    overlays = {profile.name for profile in profiles if profile.overlay}
    for profile in profiles:
        for setting in profile.settings:
            if not setting.applies(transport):
                continue
            before = wanted.get(setting.name)
            if before and before.wants != setting.wants and not {profile.name, before.profile} & overlays:
                findings.append(_disagreement(before, setting))
            if before and before.profile in overlays and profile.name not in overlays:
                continue
            wanted[setting.name] = setting
    return wanted, findings


def _disagreement(before: Setting, setting: Setting) -> Finding:
    said = [f"{s.profile} wants {s.value or s.source or 'it left alone'}" for s in (before, setting)]
    return Finding(
        id="nccl_profiles_disagree",
        severity="warning",
        node="",
        subject=setting.name,
        evidence=f"{said[0]}, {said[1]}; the later profile counts",
        expected="profiles that agree, or a value in nccl_env_variables",
        fix=f"nccl_env_variables: {setting.name}: '{setting.value or '...'}'",
    )
