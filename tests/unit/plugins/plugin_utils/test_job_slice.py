# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A slice of a job is told from a job, from a workflow's job and from no job at all."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.job_slice import slice_refusal

JOB = {"awx_job_id": 7, "awx_job_launch_type": "manual", "awx_job_template_name": "GPU fabric: site"}


@pytest.mark.parametrize(
    "variables",
    [
        {},
        JOB,
        {**JOB, "awx_workflow_job_name": "GPU fabric: prove", "awx_workflow_job_id": 6},
        {"awx_job_slice_count": 1},
        {"awx_job_slice_count": "1"},
        {"tower_job_slice_count": 0},
    ],
)
def test_a_whole_job_passes(variables: dict[str, t.Any]) -> None:
    assert slice_refusal(variables) == ""


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({**JOB, "awx_workflow_job_name": "GPU fabric: site"}, "'GPU fabric: site'"),
        ({"tower_job_template_name": "x", "tower_workflow_job_name": "x"}, "'x'"),
        ({"awx_job_slice_count": 2}, "awx_job_slice_count is 2"),
        ({"tower_job_slice_count": "3"}, "tower_job_slice_count is 3"),
        ({"awx_job_slice_count": "many"}, "awx_job_slice_count is many"),
    ],
)
def test_a_slice_is_refused_in_one_sentence(variables: dict[str, t.Any], named: str) -> None:
    said = slice_refusal(variables)
    assert named in said and said.endswith("set its slices to 1.") and said.count(". ") == 0
