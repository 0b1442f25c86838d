# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""For tests of autotune.yml: start it, kill it in mid-study, read what its study has by then."""

from __future__ import annotations

import pathlib
import signal
import sqlite3
import subprocess
import time
import typing as t

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def launches_of(results: pathlib.Path) -> int:
    """Launches in the one study below *results*, read while another process may write to it."""
    for path in (results / "autotune").glob("*/study.db"):
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10) as database:
            try:
                query = "select count(*) from trial_user_attributes where key = 'outcome'"
                return int(database.execute(query).fetchone()[0])
            except sqlite3.OperationalError:  # the tables are not there yet
                return 0
    return 0


def kill_in_mid_study(argv: t.Sequence[str], results: pathlib.Path, launches: int, timeout_s: float) -> None:
    """Start ansible-playbook, and SIGKILL it (and it alone) once the study has so many launches."""
    process = subprocess.Popen(
        argv, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + timeout_s
    while launches_of(results) < launches and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.5)
    assert process.poll() is None, "it ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert launches_of(results) >= launches
