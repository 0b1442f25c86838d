# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where nccl-tests may come from: what is downloaded is pinned by its digest, and what is local needs no network."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import pathlib
import subprocess
import tarfile
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_tests_build import (
    Builder,
    BuildError,
    Toolchain,
    Wanted,
)
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

CHAIN = Toolchain("/cuda", "13.0", "/nccl", "2.28.9", "", "", ("90",))
#: makes what the real Makefile would, in the directory that it is told
MAKEFILE = 'all:\n\tmkdir -p $(BUILDDIR) && printf "#!/bin/sh\\n" > $(BUILDDIR)/all_reduce_perf\n'
URL = "https://mirror.example/nccl-tests-2.19.6.tar.gz"


def archive(text: str = MAKEFILE) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as bundle:
        for name in ("nccl-tests/Makefile", "nccl-tests/src/Makefile"):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            bundle.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def no_network(url: str) -> t.Any:
    raise OSError(f"{url}: the network was asked")


def builder(
    tmp_path: pathlib.Path, source: str, open_url: t.Callable[[str], t.Any] = no_network, **more: t.Any
) -> Builder:
    (tmp_path / "nccl/lib").mkdir(parents=True, exist_ok=True)
    (tmp_path / "nccl/lib/libnccl.so").touch()
    fs = RootedFs("/")
    wanted = Wanted(**{"source": source, "version": "", "directory": str(tmp_path / "built"), **more})
    return Builder(fs, Tools(fs), wanted, open_url)


def build(tmp_path: pathlib.Path, made: Builder) -> None:
    chain = Toolchain(**{**CHAIN.as_dict(), "nccl_home": str(tmp_path / "nccl"), "architectures": ("90",)})
    made.build(chain, made.identity(chain))
    assert (tmp_path / "built/build/all_reduce_perf").exists()


def test_a_download_without_a_digest_is_refused_before_anything_is_fetched(tmp_path: pathlib.Path) -> None:
    for digest in ("", "abc", "G" * 64):
        with pytest.raises(BuildError, match="nccl_tests_sha256"):
            builder(tmp_path, URL, sha256=digest).identity(CHAIN)


def test_a_download_that_is_another_archive_is_not_built(tmp_path: pathlib.Path) -> None:
    wrong = builder(
        tmp_path, URL, lambda url: io.BytesIO(archive("evil:")), sha256=hashlib.sha256(archive()).hexdigest()
    )
    with pytest.raises(BuildError, match="has the SHA-256"):
        build(tmp_path, wrong)
    assert not (tmp_path / "built/build").exists()


def test_the_right_download_is_built(tmp_path: pathlib.Path) -> None:
    content = archive()
    build(tmp_path, builder(tmp_path, URL, lambda url: io.BytesIO(content), sha256=hashlib.sha256(content).hexdigest()))


def test_a_local_archive_needs_neither_network_nor_digest_and_is_held_against_a_given_one(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "nccl-tests.tar.gz"
    file.write_bytes(archive())
    build(tmp_path, builder(tmp_path, str(file)))
    with pytest.raises(BuildError, match="has the SHA-256"):
        builder(tmp_path, str(file), sha256="0" * 64).identity(CHAIN)


def test_a_local_directory_needs_no_network(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "source"
    (source / "src").mkdir(parents=True)
    for name in ("Makefile", "src/Makefile"):
        (source / name).write_text(MAKEFILE)
    build(tmp_path, builder(tmp_path, str(source)))


def repository(path: pathlib.Path) -> list[str]:
    """A git repository with nccl-tests' layout and two commits; their names."""
    (path / "src").mkdir(parents=True)
    commits = []
    for text in (MAKEFILE, MAKEFILE.replace("#!/bin/sh", "second")):
        for name in ("Makefile", "src/Makefile"):
            (path / name).write_text(text)
        for argv in (
            ["init", "-q"],
            ["add", "-A"],
            ["-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-qm", "x"],
        ):
            subprocess.run(["git", "-C", str(path), *argv], check=True)
        done = subprocess.run(["git", "-C", str(path), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
        commits.append(done.stdout.strip())
    return commits


def test_a_repository_is_built_at_its_commit_and_not_at_its_head(tmp_path: pathlib.Path) -> None:
    first, second = repository(tmp_path / "repository")
    for commit, made in ((first, "#!/bin/sh"), (second, "second")):
        build(tmp_path, builder(tmp_path, (tmp_path / "repository").as_uri(), version=commit))
        assert (tmp_path / "built/build/all_reduce_perf").read_text().strip() == made
    with pytest.raises(BuildError, match="nccl_tests_version is empty"):
        builder(tmp_path, (tmp_path / "repository").as_uri()).identity(CHAIN)
    with pytest.raises(BuildError, match="0000000000 cannot be fetched"):
        build(tmp_path, builder(tmp_path, (tmp_path / "repository").as_uri(), version="0000000000"))
    assert (tmp_path / "built/build/all_reduce_perf").exists(), "the earlier one is still there"


def test_a_checkout_without_a_version_is_taken_as_it_lies_there(tmp_path: pathlib.Path) -> None:
    repository(tmp_path / "repository")
    (tmp_path / "repository/src/Makefile").write_text(MAKEFILE.replace("#!/bin/sh", "changed"))
    (tmp_path / "repository/Makefile").write_text(MAKEFILE.replace("#!/bin/sh", "changed"))
    build(tmp_path, builder(tmp_path, str(tmp_path / "repository")))
    assert (tmp_path / "built/build/all_reduce_perf").read_text().strip() == "changed"


@pytest.mark.parametrize(
    "change",
    [
        {"cuda_version": "12.9"}, {"cuda_home": "/cuda-12"}, {"nccl_version": "2.29.1"}, {"nccl_home": "/other"}, {"mpi_home": "/mpi"},
        {"mpi_version": "5.0.7"}, {"architectures": ("90", "100")},
    ],
)  # fmt: skip
def test_it_is_built_again_when_what_it_is_built_with_changes(tmp_path: pathlib.Path, change: dict[str, t.Any]) -> None:
    file = tmp_path / "nccl-tests.tar.gz"
    file.write_bytes(archive())
    made = builder(tmp_path, str(file))
    chain = dataclasses.replace(CHAIN, nccl_home=str(tmp_path / "nccl"))
    made.build(chain, made.identity(chain))
    assert made.is_current(made.identity(chain))
    assert not made.is_current(made.identity(dataclasses.replace(chain, **change)))
    file.write_bytes(archive(MAKEFILE + "# changed\n"))
    assert not made.is_current(made.identity(chain)), "the source changed"


def test_a_program_can_be_run_by_others_than_who_built_it(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "nccl-tests.tar.gz"
    file.write_bytes(archive(MAKEFILE.rstrip() + " && chmod 700 $(BUILDDIR)/all_reduce_perf\n"))
    before = os.umask(0o077)
    try:
        build(tmp_path, builder(tmp_path, str(file)))
    finally:
        os.umask(before)
    for path, mode in (("built", 0o755), ("built/build", 0o755), ("built/build/all_reduce_perf", 0o755)):
        assert (tmp_path / path).stat().st_mode & 0o777 == mode
