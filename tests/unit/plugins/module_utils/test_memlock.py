# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The limit on locked memory: what is written, and what is measured in a service."""

from __future__ import annotations

import pathlib

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._memlock import (
    limit_files,
    limits_in,
    normal_limit,
    reload_manager,
    service_limit,
)
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs


def tools(root: pathlib.Path, **programs: str) -> tuple[RootedFs, Tools]:
    for name, script in programs.items():
        file = root / "usr/bin" / name.replace("_", "-")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
    fs = RootedFs(str(root))
    return fs, Tools(fs)


@pytest.mark.parametrize("limit", ["infinity", "-1", "0", "64M", "unlimited ", "1 2"])
def test_no_limit_gets_one_sentence(limit: str) -> None:
    with pytest.raises(ValueError, match="memlock: "):
        normal_limit(limit)


@pytest.mark.parametrize(
    ("limit", "session", "manager"), [("unlimited", "unlimited", "infinity"), ("65536", "65536", "65536K")]
)
def test_sessions_count_in_kib_and_systemd_says_so(limit: str, session: str, manager: str) -> None:
    sessions, services = limit_files(normal_limit(limit))
    assert f"* hard memlock {session}\n" in sessions.content
    assert f"root soft memlock {session}\n" in sessions.content
    assert services.content.endswith(f"[Manager]\nDefaultLimitMEMLOCK={manager}\n")


def test_an_empty_limit_writes_nothing() -> None:
    assert limit_files(normal_limit("")) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("unlimited\n8192\n", {"hard": "unlimited", "soft": "8192"}),
        ("Welcome\nunlimited\nunlimited\n", {"hard": "unlimited", "soft": "unlimited"}),
        ("8192\n", {}),
        ("", {}),
        ("sh: ulimit: bad\n", {}),
    ],
)
def test_reads_what_a_shell_prints(text: str, found: dict[str, str]) -> None:
    assert limits_in(text) == found


def test_a_service_is_asked_and_not_a_file(tmp_path: pathlib.Path) -> None:
    # the stand-in runs the command in the way of the real one, under a limit that no file mentions
    found = service_limit(
        *tools(tmp_path, systemd_run='while [ "$1" != /bin/sh ]; do shift; done; ulimit -S -l 64; exec "$@"')
    )
    assert found["soft"] == "64"


def test_no_systemd_is_said(tmp_path: pathlib.Path) -> None:
    assert service_limit(*tools(tmp_path))["evidence"] == "systemd-run is not installed"
    found = service_limit(*tools(tmp_path, systemd_run="echo no bus >&2; exit 1"))
    assert found["hard"] == "" and "no bus" in found["evidence"]


def test_a_failed_reload_is_said(tmp_path: pathlib.Path) -> None:
    assert reload_manager(tools(tmp_path)[1]) == ""
    assert "refused" in reload_manager(tools(tmp_path, systemctl="echo refused >&2; exit 4")[1])
