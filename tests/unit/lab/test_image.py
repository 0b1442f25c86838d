# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The image's key, and a build that fails, is killed or runs twice at once."""

from __future__ import annotations

import os
import pathlib
import threading
import time

import pytest

from lab import image, image_build, paths, tools
from lab.errors import LabError
from lab.progress import Progress

QUIET = Progress(quiet=True)


def test_the_key_changes_with_whatever_builds_the_image(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    keys = [image_build.image_key("bookworm", "base"), image_build.image_key("trixie", "base")]
    tools.shutil.copytree(paths.IMAGE_SOURCES, tmp_path / "image")
    monkeypatch.setattr(image_build, "IMAGE_SOURCES", tmp_path / "image")
    assert image_build.image_key("bookworm", "base") == keys[0]
    for change in ("base/packages.txt", "base/customize.sh", "base/rootfs/usr/local/sbin/lab-rdma"):
        with (tmp_path / "image" / change).open("a") as stream:
            stream.write("# more\n")
        keys.append(image_build.image_key("bookworm", "base"))
    (tmp_path / "image" / "base" / "init").chmod(0o644)
    keys.append(image_build.image_key("bookworm", "base"))
    assert len(set(keys)) == len(keys)


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> list[pathlib.Path]:
    """Replaces the making of an image's parts by ones of a few bytes; returns the directories that were worked in."""
    worked: list[pathlib.Path] = []

    def make_archive(work: pathlib.Path, archive: pathlib.Path, *_: object) -> None:
        worked.append(work)
        with image_build.tarfile.open(archive, "w") as tar:
            for name in ("./boot/vmlinuz", "./boot/initrd.cpio"):
                entry = image_build.tarfile.TarInfo(name)
                tar.addfile(entry)

    monkeypatch.setattr(image_build, "_make_root_archive", make_archive)
    monkeypatch.setattr(image_build.vmlinux, "extract", lambda data: b"kernel")
    monkeypatch.setattr(image_build, "_make_file_system", lambda work, archive, target: target.write_bytes(b"root"))
    monkeypatch.setattr(tools, "require", lambda wanted: None)
    return worked


def test_an_image_is_built_once(builder: list[pathlib.Path], tmp_path: pathlib.Path) -> None:
    first = image.ensure(tmp_path, "bookworm", "base", None, QUIET)
    assert first.kernel.read_bytes() == b"kernel"
    assert image.ensure(tmp_path, "bookworm", "base", None, QUIET) == first
    assert len(builder) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [first.key, f"{first.key}.lock"]


def test_two_builds_at_once_make_one_image(
    builder: list[pathlib.Path], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)
    make = image_build._make_file_system

    def slow(work: pathlib.Path, archive: pathlib.Path, target: pathlib.Path) -> None:
        threading.Event().wait(0.3)
        make(work, archive, target)

    monkeypatch.setattr(image_build, "_make_file_system", slow)
    found: list[image.Image] = []

    def build() -> None:
        both.wait(5)
        found.append(image.ensure(tmp_path, "bookworm", "base", None, QUIET))

    threads = [threading.Thread(target=build) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(10)
    assert len(found) == 2
    assert len(builder) == 1


def test_a_build_that_fails_leaves_no_image_and_the_next_one_works(
    builder: list[pathlib.Path], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(image_build, "_run", lambda *_: (_ for _ in ()).throw(LabError("no mirror")))
        broken.setattr(image_build, "_make_file_system", lambda work, *_: image_build._run([], work, {}))
        with pytest.raises(LabError, match="no mirror"):
            image.ensure(tmp_path, "bookworm", "base", None, QUIET)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    assert image.ensure(tmp_path, "bookworm", "base", None, QUIET).root.exists()


def test_what_a_killed_build_has_left_is_removed_by_the_next(
    builder: list[pathlib.Path], tmp_path: pathlib.Path
) -> None:
    key = image_build.image_key("bookworm", "base")
    stale = tmp_path / f"{key}.build-dead"
    stale.mkdir()
    (stale / "root.tar").write_bytes(b"half")
    image.ensure(tmp_path, "bookworm", "base", None, QUIET)
    assert not stale.exists()


def test_a_program_that_fails_is_told_with_its_last_words(tmp_path: pathlib.Path) -> None:
    with pytest.raises(LabError, match="sh ended with status 3; it said last:\n  no space"):
        image_build._run(["sh", "-c", "echo no space; exit 3"], tmp_path, {"PATH": "/usr/bin:/bin"})


def test_an_image_that_was_not_used_for_a_month_goes_when_another_is_built(
    builder: list[pathlib.Path], tmp_path: pathlib.Path
) -> None:
    for name, days in (("bookworm-base-old", 40), ("bookworm-base-used", 20)):
        (tmp_path / name).mkdir()
        (tmp_path / name / image_build.ROOT).touch()
        then = time.time() - days * 24 * 3600
        os.utime(tmp_path / name, (then, then))
    image.ensure(tmp_path, "bookworm", "base", None, QUIET)
    assert not (tmp_path / "bookworm-base-old").exists()
    assert (tmp_path / "bookworm-base-used").exists()
