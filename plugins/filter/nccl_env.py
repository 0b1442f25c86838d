# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Resolve, check and explain NCCL's environment variables in templates."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import load_catalogue, parse_version
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_ranks import compare_rank_environments
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.explain_env import explain
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.record import judge_section
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_env import resolve_fleet
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.sections import SECTIONS
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.validate_env import MODES, Rules, validate

SECTION = next(section for section in SECTIONS if section.name == "nccl_env")


def _mapping(value: t.Any, what: str) -> t.Mapping[str, t.Any]:
    if not isinstance(value, t.Mapping):
        raise AnsibleFilterError(f"{what} must be a mapping, not {type(value).__name__}")
    return value


def nccl_env_resolve(
    nodes: t.Any, profiles: t.Sequence[str] = ("guide",), variables: t.Any = None, settings: t.Any = None
) -> dict[str, t.Any]:
    """Resolve the environment of all nodes at once; see resolve_env.resolve_fleet()."""
    profiles = [profiles] if isinstance(profiles, str) else list(profiles)
    return resolve_fleet(
        {str(name): _mapping(data, f"node {name}") for name, data in _mapping(nodes, "the nodes").items()},
        profiles,
        _mapping(variables or {}, "the variables"),
        _mapping(settings or {}, "the settings"),
    )


def nccl_env_validate(
    variables: t.Any, version: str = "", mode: str = "strict", production: bool = True, keep_debug: bool = False
) -> dict[str, t.Any]:
    """Hold variables against one NCCL release: {kept, dropped, findings}."""
    if mode not in MODES:
        raise AnsibleFilterError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    try:
        release = parse_version(version or load_catalogue().newest)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error
    checked = validate(_mapping(variables, "the variables"), release, Rules(mode, production, keep_debug))
    return {
        "kept": checked.kept,
        "dropped": [dict(zip(("name", "value", "reason"), entry)) for entry in checked.dropped],
        "findings": [finding.as_dict() for finding in checked.findings],
    }


def nccl_env_explain(resolved: t.Any, node: str = "") -> list[str]:
    """Lines that say for one node which variable has which value, from where and why."""
    return explain(_mapping(resolved, "what was resolved"), node)


def nccl_env_compare_ranks(ranks: t.Any, expected: t.Any) -> list[dict[str, str]]:
    """Findings over what ranks printed of their environments; see compare_ranks.compare_rank_environments()."""
    return [finding.as_dict() for finding in compare_rank_environments(ranks, _mapping(expected, "what is expected"))]


def nccl_env_findings(results: t.Any) -> list[dict[str, str]]:
    """What is wrong with nodes' NCCL environments, by the registered results of nccl_env_info, as the report judges them."""
    nodes = _mapping(results, "the results")
    return [f.as_dict() for f in judge_section(SECTION, nodes, {node: {} for node in nodes})]


def csh_quote(value: t.Any) -> str:
    """A value as one word for csh(1), which replaces ! even between single quotes."""
    text = str(value)
    if "\n" in text or "'" in text:
        raise AnsibleFilterError(f"csh takes no value with a newline or a quote: {text!r}")
    return "'" + text.replace("!", "\\!") + "'"


class FilterModule:
    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {
            "nccl_env_resolve": nccl_env_resolve,
            "nccl_env_validate": nccl_env_validate,
            "nccl_env_explain": nccl_env_explain,
            "nccl_env_findings": nccl_env_findings,
            "nccl_env_compare_ranks": nccl_env_compare_ranks,
            "csh_quote": csh_quote,
        }
