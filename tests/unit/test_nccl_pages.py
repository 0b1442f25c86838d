# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pages on NCCL's variables and profiles are up to date, and hold what they are for."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import load_catalogue
from ansible_collections.gpufabric.cluster.tests.fixtures.nccl_fleet import GUIDE

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def test_the_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "tools/nccl_pages.py", "--check"], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_variable_has_its_line() -> None:
    page = (REPOSITORY / "docs/nccl_variables.md").read_text()
    known = load_catalogue()
    for name in (*known.variables, *known.never_existed, *known.legacy, *known.read_by_others):
        assert f"| `{name}` |" in page, name


def test_the_tuning_guide_says_something_about_each_setting_of_the_guide() -> None:
    page = (REPOSITORY / "docs/tuning_guide.md").read_text()
    for name in (*GUIDE, "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        assert name in page, name
