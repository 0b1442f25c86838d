# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tools: bounded, shell-free, and nothing outlives them."""

from __future__ import annotations

import os
import pathlib
import time

from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs


def recorded(root: pathlib.Path, name: str, script: str) -> Tools:
    path = root / "usr/bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Tools(RootedFs(str(root)))


def test_a_recorded_tool_answers_for_the_node(tmp_path: pathlib.Path) -> None:
    done = recorded(tmp_path, "ibstat", "echo CA; echo bad >&2; exit 3").run(["ibstat", "-l"])
    assert (done.rc, done.stdout, done.problem) == (3, "CA\n", "ibstat ended with exit status 3: bad")


def test_a_missing_tool_is_said_so_and_never_taken_from_the_host(tmp_path: pathlib.Path) -> None:
    done = Tools(RootedFs(str(tmp_path))).run(["sh", "-c", "true"])
    assert done.missing and done.problem == "sh is not installed"


def test_a_hanging_tool_is_ended_with_its_children_and_its_output_kept(tmp_path: pathlib.Path) -> None:
    tools = recorded(tmp_path, "hang", "echo begun; sleep 300 & echo $! ; wait")
    began = time.monotonic()
    done = tools.run(["hang"], timeout=1.0)
    assert done.timed_out and done.rc is None and time.monotonic() - began < 10
    begun, child = done.stdout.split()
    assert begun == "begun" and "did not end within" in done.problem
    stat = pathlib.Path(f"/proc/{child}/stat")
    assert not stat.exists() or stat.read_text().split()[2] == "Z"


def test_a_signal_is_named(tmp_path: pathlib.Path) -> None:
    assert recorded(tmp_path, "die", "kill -SEGV $$").run(["die"]).problem == "die was ended by signal 11"


def test_output_that_is_no_text_does_not_raise(tmp_path: pathlib.Path) -> None:
    assert "�" in recorded(tmp_path, "noise", r"printf '\377\376'").run(["noise"]).stdout


def test_arguments_reach_no_shell(tmp_path: pathlib.Path) -> None:
    marker = tmp_path / "marker"
    recorded(tmp_path, "say", 'echo "$1"').run(["say", f"$(touch {marker})"])
    assert not os.path.exists(marker)
