# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What documentation repeats from data is up to date."""

from __future__ import annotations

import pathlib
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def test_generated_parts_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "tools/generate_docs.py", "--check"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
