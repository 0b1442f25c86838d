# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where nccl-tests may come from: what is downloaded is pinned by its digest, and what is local needs no network."""

from __future__ import annotations

import hashlib
import io
import pathlib
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
    return Builder(fs, Tools(fs), Wanted(source, "", str(tmp_path / "built"), **more), open_url)


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
