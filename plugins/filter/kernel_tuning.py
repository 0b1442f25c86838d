# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filters for kernel parameters; each is described in the file of its name beside this one."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.record import judge_section
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.sections import SECTIONS
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.sysctl_profiles import resolve

KERNEL = next(section for section in SECTIONS if section.name == "kernel")


def sysctl_settings(
    profile: str,
    overrides: t.Mapping[str, t.Any] | None = None,
    qdisc: str = "",
    link_gbps: float = 0,
    rtt_us: float = 0,
) -> dict[str, t.Any]:
    """{settings, problem}: sysctl_profiles.resolve(), or none and the sentence about what cannot be meant.

    It does not raise: a filter that does takes the host out of the play, and with it out of all that would follow.
    """
    try:
        return {"settings": resolve(profile, overrides, qdisc, link_gbps, rtt_us), "problem": ""}
    except ValueError as error:
        return {"settings": [], "problem": str(error)}


def kernel_findings(results: t.Mapping[str, t.Any]) -> list[dict[str, str]]:
    """Findings over {node: registered result of sysctl_profile}; a result that is no answer is one too."""
    return [finding.as_dict() for finding in judge_section(KERNEL, results, dict.fromkeys(results, {}))]


class FilterModule:
    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"sysctl_settings": sysctl_settings, "kernel_findings": kernel_findings}
