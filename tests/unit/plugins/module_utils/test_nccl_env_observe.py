# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One node's NCCL environment as a whole, on directory trees."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_env_observe import Request, observe_nccl_env
from ansible_collections.gpufabric.cluster.plugins.module_utils._owned_file import OwnedFile, OwnedFiles, prior_text
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

OURS = "# Managed by gpufabric.cluster 1, role nccl_env\nNCCL_DEBUG=WARN\n"
VENDOR = "NCCL_TOPO_FILE=/opt/t.xml\nNCCL_X = 1\n"


@pytest.fixture
def fs(tmp_path: pathlib.Path) -> RootedFs:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("ops:x:1000:1000::/home/ops:/bin/bash\n")
    return RootedFs(str(tmp_path))


def observe(fs: RootedFs, **request: t.Any) -> dict[str, t.Any]:
    return observe_nccl_env(fs, Tools(fs), Request(user="ops", **request))


def test_a_bare_node(fs: RootedFs) -> None:
    seen = observe(fs)
    assert seen["library"] is None and seen["libraries"] == [] and seen["ways"] == {} and seen["asked"] is None
    assert seen["conf"] == {"exists": False, "ours": False, "lines": []}
    assert seen["site"] == {"present": False, "adopted": False, "variables": {}, "secret": False}
    assert (seen["user"], seen["home"]) == ("ops", "/home/ops")
    assert [problem["id"] for problem in seen["problems"]] == ["linker_cache_unreadable"]


def test_a_vendors_file(fs: RootedFs) -> None:
    fs.write_atomic("/etc/nccl.conf", VENDOR.encode())
    seen = observe(fs)
    assert seen["site"]["present"] and not seen["site"]["adopted"]
    assert seen["site"]["variables"]["NCCL_TOPO_FILE"] == "/opt/t.xml"
    assert [line["oddity"] != "" for line in seen["conf"]["lines"]] == [False, True]


def test_a_vendors_file_that_was_taken_over(fs: RootedFs) -> None:
    fs.write_atomic("/etc/nccl.conf", VENDOR.encode())
    OwnedFiles(fs, "nccl_env").apply([OwnedFile("/etc/nccl.conf", OURS)], adopt=True)
    seen = observe(fs)
    assert seen["conf"]["ours"] and seen["site"]["adopted"]
    assert seen["site"]["variables"]["NCCL_TOPO_FILE"] == "/opt/t.xml"


def test_our_own_file_is_no_site(fs: RootedFs) -> None:
    OwnedFiles(fs, "nccl_env").apply([OwnedFile("/etc/nccl.conf", OURS)])
    assert observe(fs)["site"] == {"present": False, "adopted": False, "variables": {}, "secret": False}


def test_a_broken_record_is_a_problem(fs: RootedFs) -> None:
    fs.write_atomic("/etc/nccl.conf", OURS.encode())
    fs.write_atomic("/var/lib/gpufabric/prior/nccl_env.json", b"{")
    assert "prior_state_corrupt" in {problem["id"] for problem in observe(fs)["problems"]}


def test_an_unknown_user(fs: RootedFs) -> None:
    seen = observe_nccl_env(fs, Tools(fs), Request(user="eve"))
    assert "user_unknown" in {problem["id"] for problem in seen["problems"]}


def test_ways_with_what_nccl_makes_of_them(fs: RootedFs) -> None:
    fs.write_atomic("/etc/nccl.conf", OURS.encode())
    fs.write_atomic("/usr/bin/systemctl", b"#!/bin/sh\necho NCCL_DEBUG=INFO\necho SECRET=1\n", 0o755)
    seen = observe(fs, ways=["systemd", "login"])
    assert seen["ways"]["systemd"]["effective"]["NCCL_DEBUG"] == {"value": "INFO", "source": "environment"}
    assert "SECRET" not in seen["ways"]["systemd"]["environment"]
    assert seen["ways"]["login"]["problem"] and seen["ways"]["login"]["effective"] == {}


def test_ways_that_a_node_does_not_have_are_left_out(fs: RootedFs) -> None:
    assert observe(fs, ways=["ssh", "mpirun", "systemd"])["ways"] == {}


@pytest.mark.parametrize(("link", "text"), [("/opt/real.conf", VENDOR), ("/opt/gone.conf", "")])
def test_the_text_behind_a_link_that_was_replaced(fs: RootedFs, link: str, text: str) -> None:
    fs.write_atomic("/opt/real.conf", VENDOR.encode())
    fs.symlink(link, "/etc/nccl.conf")
    OwnedFiles(fs, "nccl_env").apply([OwnedFile("/etc/nccl.conf", OURS)], adopt=True)
    assert prior_text(fs, "nccl_env", "/etc/nccl.conf") == text


def test_no_prior_text(fs: RootedFs) -> None:
    assert prior_text(fs, "nccl_env", "/etc/nccl.conf") is None


def test_a_key_stays_on_the_node(fs: RootedFs) -> None:
    fs.write_atomic("/etc/nccl.conf", b"NCCL_PSK=s3cret\nNCCL_DEBUG=WARN\n")
    fs.write_atomic("/home/ops/.nccl.conf", b"NCCL_PSK=s3cret\n")
    fs.write_atomic("/etc/environment", b"NCCL_PSK=s3cret\n")
    fs.write_atomic("/usr/bin/systemctl", b"#!/bin/sh\necho NCCL_PSK=s3cret\n", 0o755)
    seen = observe(fs, ways=["systemd"])
    assert "s3cret" not in str(seen) and seen["site"]["secret"]
    assert seen["ways"]["systemd"]["effective"] == {"NCCL_DEBUG": {"value": "WARN", "source": "/etc/nccl.conf"}}
