# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filters that bring the tables of awx/ into AWX's own form; each is described in the file of its name beside this one."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import awx_survey


def survey(variables: t.Sequence[str], questions: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    try:
        return awx_survey.survey(variables, questions)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from None


def workflow_nodes(workflow: t.Mapping[str, t.Any], organization: str, prefix: str = "") -> list[dict[str, t.Any]]:
    try:
        return awx_survey.workflow_nodes(workflow, organization, prefix)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from None


class FilterModule:
    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"awx_survey": survey, "awx_workflow_nodes": workflow_nodes}
