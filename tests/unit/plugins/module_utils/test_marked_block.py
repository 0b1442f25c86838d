# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The marked block: put at the end, replaced in place, taken out to the byte; what others write around it stays."""

from __future__ import annotations

import pathlib

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._marked_block import BEGIN, END, MarkedBlock, with_block
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from hypothesis import given
from hypothesis import strategies as st

PATH = "/etc/sysctl.conf"


def block(root: pathlib.Path) -> MarkedBlock:
    return MarkedBlock(RootedFs(str(root)), "kernel_tuning")


def plant(root: pathlib.Path, content: bytes, mode: int = 0o640) -> pathlib.Path:
    (root / "etc").mkdir(exist_ok=True)
    file = root / "etc/sysctl.conf"
    file.write_bytes(content)
    file.chmod(mode)
    return file


@pytest.mark.parametrize("original", [b"a=1\n", b"a=1", b"", b"\n\n", b"a=1\n\n\n", b"caf\xe9=1\n", b"a=1\r\nb=2\r\n"])
def test_comes_out_to_the_byte(tmp_path: pathlib.Path, original: bytes) -> None:
    file = plant(tmp_path, original)
    assert block(tmp_path).apply(PATH, "k = 1\n").status == "written"
    assert file.read_bytes().startswith(original)
    assert block(tmp_path).apply(PATH, "k = 1\n").status == "unchanged"
    assert block(tmp_path).apply(PATH, "k = 2\n").status == "written"
    assert file.read_bytes().count(BEGIN.encode()) == 1
    assert [o.status for o in block(tmp_path).rollback()] == ["restored"]
    assert file.read_bytes() == original
    assert file.stat().st_mode & 0o777 == 0o640
    assert not (tmp_path / "var/lib/gpufabric").exists()


def test_a_file_that_was_not_there_goes_again(tmp_path: pathlib.Path) -> None:
    block(tmp_path).apply(PATH, "k = 1\n")
    assert [o.status for o in block(tmp_path).rollback()] == ["removed"]
    assert not (tmp_path / "etc/sysctl.conf").exists()


def test_what_others_wrote_since_stays(tmp_path: pathlib.Path) -> None:
    file = plant(tmp_path, b"a=1\n")
    block(tmp_path).apply(PATH, "k = 1\n")
    file.write_text("first=0\n" + file.read_text() + "last=9\n")
    block(tmp_path).rollback()
    assert file.read_text() == "first=0\na=1\nlast=9\n"


def test_a_later_line_of_somebody_is_passed(tmp_path: pathlib.Path) -> None:
    file = plant(tmp_path, b"a=1\n")
    block(tmp_path).apply(PATH, "k = 1\n")
    file.write_text(file.read_text() + "k = 7\n")
    assert block(tmp_path).apply(PATH, "k = 1\n").status == "written"
    assert file.read_text() == f"a=1\nk = 7\n{BEGIN}\nk = 1\n{END}\n"


def test_check_mode_writes_nothing(tmp_path: pathlib.Path) -> None:
    file = plant(tmp_path, b"a=1\n")
    assert block(tmp_path).apply(PATH, "k = 1\n", check=True).changed
    assert file.read_bytes() == b"a=1\n"
    block(tmp_path).apply(PATH, "k = 1\n")
    assert block(tmp_path).rollback(check=True)[0].changed
    assert BEGIN in file.read_text()


def test_writes_through_a_link(tmp_path: pathlib.Path) -> None:
    plant(tmp_path, b"").unlink()
    (tmp_path / "etc/real.conf").write_text("a=1\n")
    (tmp_path / "etc/sysctl.conf").symlink_to("real.conf")
    block(tmp_path).apply(PATH, "k = 1\n")
    assert (tmp_path / "etc/sysctl.conf").is_symlink()
    assert "k = 1" in (tmp_path / "etc/real.conf").read_text()


@pytest.mark.parametrize(
    "text", [f"{BEGIN}\nx=1\n", f"{END}\n", f"{END}\n{BEGIN}\n", f"{BEGIN}\n{END}\n{BEGIN}\n{END}\n"]
)
def test_torn_marks_are_refused_and_left(tmp_path: pathlib.Path, text: str) -> None:
    file = plant(tmp_path, text.encode())
    with pytest.raises(ValueError, match="/etc/sysctl.conf: the lines"):
        block(tmp_path).apply(PATH, "k = 1\n")
    assert file.read_text() == text


@given(st.text(alphabet="ab=# \n", max_size=60), st.text(alphabet="k=1 ", max_size=10))
def test_putting_it_twice_is_putting_it_once(text: str, line: str) -> None:
    once = with_block(text, f"{line}\n", PATH)
    assert with_block(once, f"{line}\n", PATH) == once
