# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Owned files: foreign ones stay, prior state comes back byte for byte."""

from __future__ import annotations

import os
import pathlib

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._owned_file import OwnedFile, OwnedFiles
from ansible_collections.gpufabric.cluster.plugins.module_utils._prior_state import CorruptStateError
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import OutsideRootError, RootedFs

OURS = "# Managed by gpufabric.cluster, role nccl_env\nA=1\n"
NEWER = "# Managed by gpufabric.cluster, role nccl_env\nA=2\n"


def files(tmp_path: pathlib.Path) -> OwnedFiles:
    return OwnedFiles(RootedFs(str(tmp_path)), "nccl_env")


def tree(root: pathlib.Path) -> dict[str, str]:
    return {
        str(p.relative_to(root)): os.readlink(p) if p.is_symlink() else p.read_text() if p.is_file() else "dir"
        for p in sorted(root.rglob("*"))
    }


def test_writes_once_and_is_then_unchanged(tmp_path: pathlib.Path) -> None:
    wanted = [OwnedFile("/etc/nccl.conf", OURS)]
    assert [o.status for o in files(tmp_path).apply(wanted)] == ["written"]
    assert [o.status for o in files(tmp_path).apply(wanted)] == ["unchanged"]


def test_check_mode_writes_nothing(tmp_path: pathlib.Path) -> None:
    assert files(tmp_path).apply([OwnedFile("/etc/nccl.conf", OURS)], check=True)[0].changed
    assert tree(tmp_path) == {}


def test_a_wrong_mode_is_healed(tmp_path: pathlib.Path) -> None:
    wanted = [OwnedFile("/etc/nccl.conf", OURS)]
    files(tmp_path).apply(wanted)
    (tmp_path / "etc/nccl.conf").chmod(0o600)
    assert files(tmp_path).apply(wanted)[0].status == "written"


@pytest.mark.parametrize("vendor", ["NCCL_TOPO_FILE=/opt/topo.xml", "", "no newline\r\nat end"])
def test_foreign_file_is_left_alone_then_adopted_and_restored(tmp_path: pathlib.Path, vendor: str) -> None:
    path = tmp_path / "etc/nccl.conf"
    path.parent.mkdir()
    path.write_bytes(vendor.encode())
    path.chmod(0o640)
    before = tree(tmp_path)
    wanted = [OwnedFile("/etc/nccl.conf", OURS)]
    assert files(tmp_path).apply(wanted)[0].status == "foreign"
    assert path.read_bytes() == vendor.encode()
    assert files(tmp_path).apply(wanted, adopt=True)[0].status == "written"
    files(tmp_path).apply([OwnedFile("/etc/nccl.conf", NEWER)])
    assert files(tmp_path).rollback()[0].status == "restored"
    assert path.read_bytes() == vendor.encode() and path.stat().st_mode & 0o777 == 0o640
    (tmp_path / "var/lib").rmdir()
    (tmp_path / "var").rmdir()
    assert tree(tmp_path) == before


def test_rollback_removes_what_was_not_there_with_its_directories(tmp_path: pathlib.Path) -> None:
    (tmp_path / "etc").mkdir()
    files(tmp_path).apply([OwnedFile("/etc/enroot/mounts.d/90-nccl.fstab", OURS)])
    files(tmp_path).rollback()
    assert not (tmp_path / "etc/enroot").exists() and (tmp_path / "etc").exists()
    assert not (tmp_path / "var/lib/gpufabric").exists()


def test_a_vendor_link_comes_back_as_a_link(tmp_path: pathlib.Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").symlink_to("/opt/vendor/nccl.conf")
    assert files(tmp_path).apply([OwnedFile("/etc/nccl.conf", OURS)])[0].status == "foreign"
    files(tmp_path).apply([OwnedFile("/etc/nccl.conf", OURS)], adopt=True)
    assert not (tmp_path / "opt").exists()
    files(tmp_path).rollback()
    assert os.readlink(tmp_path / "etc/nccl.conf") == "/opt/vendor/nccl.conf"


def test_a_file_no_longer_wanted_is_given_back(tmp_path: pathlib.Path) -> None:
    files(tmp_path).apply([OwnedFile("/etc/a", OURS), OwnedFile("/etc/b", OURS)])
    outcomes = files(tmp_path).apply([OwnedFile("/etc/a", OURS)])
    assert [(o.path, o.status) for o in outcomes] == [("/etc/a", "unchanged"), ("/etc/b", "removed")]


def test_rollback_leaves_a_file_that_somebody_rewrote(tmp_path: pathlib.Path) -> None:
    files(tmp_path).apply([OwnedFile("/etc/a", OURS)])
    (tmp_path / "etc/a").write_text("mine now\n")
    assert files(tmp_path).rollback()[0].status == "changed_since"
    assert (tmp_path / "etc/a").read_text() == "mine now\n"


def test_content_without_the_mark_is_refused_before_anything_is_written(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="/etc/b"):
        files(tmp_path).apply([OwnedFile("/etc/a", OURS), OwnedFile("/etc/b", "A=1\n")])
    assert tree(tmp_path) == {}


def test_corrupt_prior_state_stops_before_a_guess(tmp_path: pathlib.Path) -> None:
    files(tmp_path).apply([OwnedFile("/etc/a", OURS)])
    (tmp_path / "var/lib/gpufabric/prior/nccl_env.json").write_text('{"files": [')
    with pytest.raises(CorruptStateError, match="prior/nccl_env.json"):
        files(tmp_path).rollback()


def test_no_link_leads_out_of_the_root(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/up").symlink_to("../../../../../outside")
    (root / "etc/abs").symlink_to("/etc/target")
    fs = RootedFs(str(root))
    fs.write_atomic("/etc/up", b"x")
    fs.write_atomic("/etc/abs", b"y")
    assert (root / "outside").read_text() == "x" and (root / "etc/target").read_text() == "y"
    with pytest.raises(OutsideRootError):
        fs.read_text("etc/relative")


def test_a_link_loop_is_an_os_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert RootedFs(str(tmp_path)).read_value("/a") is None
