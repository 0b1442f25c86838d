# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The NCCL environment of a whole fleet, resolved in one pure call: which variable, which value, from where, and why."""

from __future__ import annotations

import collections
import dataclasses
import json
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding, worst_first
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import nccl_profiles
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import (
    Catalogue,
    Version,
    load_catalogue,
    parse_version,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.env_settings import Settings, words
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import listed
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.merged_findings import NAMED_NODES, merged
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_names import SOURCE
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.node_env import Node, NodeEnv
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_node import resolve_node
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.validate_env import Rules, Validated, validate


def resolve_fleet(
    nodes: t.Mapping[str, t.Mapping[str, t.Any]],
    profiles: t.Sequence[str],
    overrides: t.Mapping[str, t.Any],
    settings: t.Mapping[str, t.Any] | None = None,
    catalogue: Catalogue | None = None,
) -> dict[str, t.Any]:
    """{nodes: {name: {variables, dropped, nccl_version, transport, profiles, writable}}, findings, writable}.

    nodes: {name: {hcas, selected, addresses, nccl_version, role, site, traffic_class, library_names, profiles, overrides,
    settings}}, each optional: hcas as hca_info returns them (None where they were not observed), selected [device:port] the
    compute ports among them (None: all that are active), addresses {interface: [address/prefix]}, nccl_version of the
    library that ranks load ("" where unknown), role compute or submit, site {name: value} of a vendor's nccl.conf,
    traffic_class that roce_qos verified, library_names where the library is newer than the catalogue; profiles, overrides
    and settings of this node in place of the fleet's. settings: see env_settings.Settings.
    variables: ordered [{name, value, origin, reason, scope}]; scope is uniform (right for the environment of any process) or
    node (only for this node's nccl.conf). dropped: [{name, value, origin, reason}]. writable: whether nothing in strict mode
    speaks against writing. Never raises for what a user wrote.
    """
    known = catalogue or load_catalogue()
    plans = _Plans(known)
    fleet: list[Node] = []
    resolved: dict[str, NodeEnv] = {}
    per_node: dict[str, list[Finding]] = {}
    for name, data in nodes.items():
        plan = plans.of(
            words(_given(data, "profiles", profiles)), {**(settings or {}), **(_given(data, "settings", {}))}
        )
        node, problems = _node(name, data, overrides, plan.settings, known)
        checked = plan.validated(node)
        env = resolve_node(node, plan.profiles, checked, plan.settings, known)
        fleet.append(node)
        resolved[name] = env
        per_node[name] = [*plan.findings, *problems, *checked.findings, *env.findings]
        errors = any(finding.severity == "error" for finding in per_node[name])
        env.profiles = [profile.name for profile in plan.profiles]
        env.writable = not (plan.settings.mode == "strict" and errors)
    _scope(fleet, resolved, known)
    findings = worst_first([*merged(per_node), *_versions(fleet, known), *_differing(fleet, resolved, known)])
    return {
        "writable": all(env.writable for env in resolved.values()),
        "nodes": {name: env.as_dict() for name, env in resolved.items()},
        "findings": [finding.as_dict() for finding in findings],
    }


def _given(data: t.Mapping[str, t.Any], key: str, otherwise: t.Any) -> t.Any:
    return otherwise if data.get(key) is None else data[key]


class _Plan:
    """Profiles and settings that some nodes share; the same values against the same NCCL are checked only once."""

    def __init__(self, profiles: t.Sequence[str], settings: t.Mapping[str, t.Any], catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._checked: dict[str, Validated] = {}
        self.settings, findings = Settings.read(settings)
        self.profiles, wrong = nccl_profiles.chosen(profiles, nccl_profiles.load_profiles())
        self.findings = findings + wrong
        self._production = all(profile.production for profile in self.profiles)

    def validated(self, node: Node) -> Validated:
        names = node.library_names
        key = json.dumps([node.version, list(node.overrides.items()), sorted(names or ())], default=str)
        if key not in self._checked:
            rules = Rules(self.settings.mode, self._production, self.settings.keep_debug, names)
            self._checked[key] = validate(node.overrides, node.version, rules, self._catalogue)
        return self._checked[key]


class _Plans:
    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._known: dict[str, _Plan] = {}

    def of(self, profiles: t.Sequence[str], settings: t.Mapping[str, t.Any]) -> _Plan:
        key = json.dumps([list(profiles), settings], sort_keys=True, default=str)
        if key not in self._known:
            self._known[key] = _Plan(profiles, settings, self._catalogue)
        return self._known[key]


def _node(
    name: str,
    data: t.Mapping[str, t.Any],
    overrides: t.Mapping[str, t.Any],
    settings: Settings,
    catalogue: Catalogue,
) -> tuple[Node, list[Finding]]:
    text = settings.nccl_version or str(data.get("nccl_version") or "")
    findings = []
    try:
        version: Version | None = parse_version(text) if text else None
    except ValueError as error:
        version = None
        findings.append(
            Finding(
                "nccl_version_invalid", "error", name, "nccl_env_nccl_version", str(error), "a version as in 2.28.9"
            )
        )
    values = _given(data, "overrides", overrides)
    if not isinstance(values, t.Mapping):
        evidence = f"the variables are a {type(values).__name__}"
        findings.append(
            Finding("nccl_setting_invalid", "error", name, SOURCE, evidence, "a mapping of names to values")
        )
        values = {}
    names = data.get("library_names")
    node = Node(
        name=name,
        version=version or parse_version(catalogue.newest),
        version_known=version is not None,
        hcas=data.get("hcas"),
        selected=data.get("selected"),
        addresses=data.get("addresses") or {},
        role=str(data.get("role") or "compute"),
        site=dict(data.get("site") or {}),
        traffic_class=data.get("traffic_class"),
        overrides=dict(values),
        library_names=frozenset(names) if names else None,
    )
    return node, findings


def _versions(fleet: t.Sequence[Node], catalogue: Catalogue) -> list[Finding]:
    """Unknown, mixed and too new NCCL versions."""
    findings = []
    computing = [node for node in fleet if node.role == "compute"]
    unknown = [node.name for node in computing if not node.version_known]
    if unknown:
        findings.append(
            Finding(
                id="nccl_version_unknown",
                severity="notice",
                node=unknown[0] if len(unknown) == 1 else "",
                subject="libnccl.so.2",
                evidence=f"no libnccl.so.2 was found on {listed(unknown, NAMED_NODES)}, and nccl_env_nccl_version is not set; "
                f"resolved for NCCL {catalogue.newest}",
                expected="the version that ranks load, which may be inside a container image",
                fix="nccl_env_nccl_version: '2.28.9'",
            )
        )
    by_version: dict[Version, list[str]] = collections.defaultdict(list)
    for node in computing:
        if node.version_known:
            by_version[node.version].append(node.name)
    if len(by_version) > 1:
        said = "; ".join(
            f"{'.'.join(map(str, v))} on {listed(names, NAMED_NODES)}" for v, names in sorted(by_version.items())
        )
        findings.append(
            Finding(
                id="nccl_versions_differ",
                severity="warning",
                node="",
                subject="libnccl.so.2",
                evidence=f"the nodes load different NCCL versions: {said}",
                expected="one version for all ranks of a job",
                cause="ranks of different versions hang or fail while they connect",
                fix="install one version, or set nccl_env_nccl_version to that of the image that ranks run in",
            )
        )
    newest = max(by_version, default=())
    if newest > parse_version(catalogue.newest):
        findings.append(
            Finding(
                id="nccl_catalogue_older",
                severity="warning",
                node="",
                subject="libnccl.so.2",
                evidence=f"the ranks load NCCL {'.'.join(map(str, newest))}; the catalogue ends with {catalogue.newest}",
                expected="a catalogue that knows this release",
                cause="new variables cannot be checked, and defaults may have changed",
                fix="ansible-galaxy collection install --upgrade gpufabric.cluster",
            )
        )
    return findings


def _differing(fleet: t.Sequence[Node], resolved: t.Mapping[str, NodeEnv], catalogue: Catalogue) -> list[Finding]:
    """Values that differ although hardware and NCCL are the same: a warning where all ranks should agree on them."""
    groups: dict[tuple[t.Any, ...], list[Node]] = collections.defaultdict(list)
    for node in fleet:
        if node.role == "compute":
            groups[(resolved[node.name].transport, node.version)].append(node)
    findings = []
    for members in groups.values():
        values: dict[str, dict[str | None, list[str]]] = collections.defaultdict(lambda: collections.defaultdict(list))
        names = {name for node in members for name in resolved[node.name].variables}
        for name in sorted(names):
            variable = catalogue.variables.get(name)
            if variable is not None and variable.reach == "node":
                continue
            for node in members:
                entry = resolved[node.name].variables.get(name)
                values[name][entry.value if entry else None].append(node.name)
        for name, by_value in values.items():
            if len(by_value) > 1:
                known = catalogue.variables.get(name)
                findings.append(_differs(name, by_value, known is not None and known.reach == "same"))
    return findings


def _differs(name: str, by_value: t.Mapping[str | None, t.Sequence[str]], matters: bool) -> Finding:
    ordered = sorted(by_value.items(), key=lambda item: len(item[1]), reverse=True)
    said = "; ".join(
        f"{'unset' if value is None else value} on {listed(names, NAMED_NODES)}" for value, names in ordered
    )
    return Finding(
        id="nccl_values_differ",
        severity="warning" if matters else "notice",
        node="",
        subject=name,
        evidence=f"{name} differs between nodes of the same hardware and NCCL: {said}",
        expected=f"one value on all nodes, such as {ordered[0][0]}" if ordered[0][0] is not None else "no node with it",
        cause="ranks that disagree on it hang, fail or run at the pace of the slowest"
        if matters
        else "nodes that are alike should be set alike, so that a fault of one stands out",
        fix=f"set {name} in one place, in the group's nccl_env_variables",
    )


def _scope(fleet: t.Sequence[Node], resolved: t.Mapping[str, NodeEnv], catalogue: Catalogue) -> None:
    """Only what is the same on all compute nodes may enter environments, which srun carries from node to node.

    Nodes that are not written, for errors of their own, have no say in what the others share.
    """
    shared = [resolved[node.name] for node in fleet if node.role == "compute"]
    computing = [env.variables for env in shared if env.writable] or [env.variables for env in shared]
    counted = collections.Counter((name, entry.value) for variables in computing for name, entry in variables.items())
    for env in resolved.values():
        for name, entry in env.variables.items():
            variable = catalogue.variables.get(name)
            bound = entry.origin == "site" or (variable is not None and variable.reach == "node")
            if bound or counted[(name, entry.value)] != len(computing):
                env.variables[name] = dataclasses.replace(entry, scope="node")
    for node in fleet:
        if node.role != "compute":
            resolved[node.name].keep_uniform_only()
