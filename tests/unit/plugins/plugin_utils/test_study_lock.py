# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two searches at once are refused, and a killed one's lock is waited for."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.study_lock import StudyBusyError, StudyLock

HOLDER = """
import sys, time, pathlib
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.study_lock import StudyLock
lock = StudyLock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def held(path: pathlib.Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout and process.stdout.readline() == "held\n"
    return process


def test_the_second_is_refused_and_told_who_is_there(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "deep" / "nodes.lock"
    process = held(path)
    try:
        with pytest.raises(StudyBusyError, match=rf"process {process.pid} on .*, since 20\d\d-"):
            StudyLock(path)
    finally:
        process.kill()
        process.wait()
    StudyLock(path).release()


def test_a_holder_without_its_ansible_is_waited_for(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "nodes.lock"
    first = StudyLock(path)
    text = path.read_text()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    path.write_text(text.replace(f'"ansible": {os.getppid()}', f'"ansible": {gone.pid}'))
    threading.Timer(0.4, first.release).start()
    began = time.monotonic()
    second = StudyLock(path)
    assert 0.3 < time.monotonic() - began < 10
    path.write_text(text.replace(f'"ansible": {os.getppid()}', f'"ansible": {gone.pid}'))
    with pytest.raises(StudyBusyError):
        StudyLock(path, orphan_s=0.3)
    second.release()
