# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a job is one slice of several, each with its own part of the inventory."""

from __future__ import annotations

import typing as t

#: prefixes of the variables by which a controller tells a job about itself
PREFIXES = ("awx", "tower")


def slice_refusal(variables: t.Mapping[str, t.Any]) -> str:
    """The sentence that refuses a sliced job, empty for any other one.

    AWX 24.6.1 tells a slice nothing of being one. It starts slices from a workflow that bears the job template's own name,
    though, which no other workflow's jobs see. A count, where a controller gives one, is taken at its word.
    """
    for prefix in PREFIXES:
        template = variables.get(f"{prefix}_job_template_name")
        if template and variables.get(f"{prefix}_workflow_job_name") == template:
            return _sentence(f"this job is a slice of the job template '{template}'")
        count = str(variables.get(f"{prefix}_job_slice_count", 1)).strip()
        if not count.isdigit() or int(count) > 1:
            return _sentence(f"{prefix}_job_slice_count is {count}")
    return ""


def _sentence(why: str) -> str:
    return f"Job slicing is refused, because nodes are measured together and compared with each other: {why}, so set its slices to 1."
