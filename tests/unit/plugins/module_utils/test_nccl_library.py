# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions and names out of library files, in the order in which a rank would find them."""

from __future__ import annotations

import pathlib
import struct

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_library import (
    NotAnElfError,
    candidates,
    describe,
    read_rodata,
    variable_names,
)
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs


def elf(rodata: bytes, section: bytes = b".rodata") -> bytes:
    """A 64-bit little-endian ELF object with one section besides the table of names."""
    names = b"\0" + section + b"\0.shstrtab\0"
    header = 64
    table = header + len(rodata) + len(names)

    def entry(name: int, offset: int, size: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, offset, size, 0, 0, 1, 0)

    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    fields = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 2)
    sections = bytes(64) + entry(1, header, len(rodata)) + entry(2 + len(section), header + len(rodata), len(names))
    return ident + fields + rodata + names + sections


def library(version: str = "2.28.9", cuda: str = "12.9", names: bytes = b"") -> bytes:
    return elf(b"\0junk\0NCCL version %s+cuda%s\0" % (version.encode(), cuda.encode()) + names)


def put(root: pathlib.Path, path: str, content: bytes) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def tool(root: pathlib.Path, name: str, output: str) -> None:
    put(root, f"/usr/bin/{name}", f"#!/bin/sh\ncat <<'END'\n{output}END\n".encode())
    (root / "usr/bin" / name).chmod(0o755)


def found(root: pathlib.Path, library_path: str = "", extra: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    fs = RootedFs(str(root))
    libraries, _problems = candidates(fs, Tools(fs), {"LD_LIBRARY_PATH": library_path}, extra, "/home/ops")
    return [(x.path, x.source, x.version) for x in libraries]


@pytest.mark.parametrize(
    ("content", "version", "cuda"),
    [
        (library(), "2.28.9", "12.9"),
        (library("2.18.1", "11.0"), "2.18.1", "11.0"),
        (library("2.27.0-rc1"), "", ""),
        (elf(b"\0NCCL version 2.31.0dev+cuda13.0\0"), "2.31.0", "13.0"),
        (elf(b"\0NCCL version mismatch with peer\0"), "", ""),
        (elf(b"x", b".other0"), "", ""),
        (b"\x7fELF\x01\x01" + bytes(100), "", ""),
        (b"#!/bin/sh\n" * 20, "", ""),
        (b"", "", ""),
        (library()[:90], "", ""),
    ],
)
def test_version_of_a_file(tmp_path: pathlib.Path, content: bytes, version: str, cuda: str) -> None:
    put(tmp_path, "/lib/libnccl.so.2", content)
    told = describe(RootedFs(str(tmp_path)), "/lib/libnccl.so.2", "named")
    if "rc1" not in content.decode(errors="replace"):
        assert (told.version, told.cuda) == (version, cuda)
        assert bool(told.problem) == (not version)


def test_names_are_whole_strings_and_no_prose(tmp_path: pathlib.Path) -> None:
    text = b"\0NCCL_ALGO\0NCCL_PROTO\0set NCCL_DEBUG=INFO\0not initialized via NCCL_CONFIG_INITIALIZER\0"
    put(tmp_path, "/x", elf(text + b"\x40\x3dNCCL_NTHREADS\0NCCL_lower\0NCCL_TAIL"))
    assert variable_names(str(tmp_path / "x")) == ["NCCL_ALGO", "NCCL_NTHREADS", "NCCL_PROTO"]


def test_no_elf_file_raises(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "/x", b"x" * 100)
    with pytest.raises(NotAnElfError):
        read_rodata(str(tmp_path / "x"))


def test_the_order_is_the_linkers(tmp_path: pathlib.Path) -> None:
    places = {
        "/opt/mine/libnccl.so.2": "2.30.7",
        "/opt/hpcx/lib/libnccl.so.2": "2.27.7",
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2": "2.26.2",
        "/usr/local/cuda/lib64/libnccl.so.2": "2.25.1",
        "/usr/local/lib/python3.11/dist-packages/nvidia/nccl/lib/libnccl.so.2": "2.28.9",
    }
    for path, version in places.items():
        put(tmp_path, path, library(version))
    tool(
        tmp_path,
        "ldconfig",
        "2 libs found in cache `/etc/ld.so.cache'\n"
        "\tlibnccl.so.2 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnccl.so.2\n"
        "\tlibnccl-net.so (libc6,x86-64) => /usr/lib/libnccl-net.so\n",
    )
    assert found(tmp_path, "/opt/hpcx/lib:/absent::", ("/opt/mine",)) == [
        ("/opt/mine/libnccl.so.2", "named", "2.30.7"),
        ("/opt/hpcx/lib/libnccl.so.2", "LD_LIBRARY_PATH", "2.27.7"),
        ("/usr/lib/x86_64-linux-gnu/libnccl.so.2", "linker cache", "2.26.2"),
        ("/usr/local/cuda/lib64/libnccl.so.2", "directory", "2.25.1"),
        ("/usr/local/lib/python3.11/dist-packages/nvidia/nccl/lib/libnccl.so.2", "wheel", "2.28.9"),
    ]


def test_one_file_under_two_names_is_one(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.9", library())
    (tmp_path / "usr/lib/x86_64-linux-gnu/libnccl.so.2").symlink_to("libnccl.so.2.28.9")
    assert len(found(tmp_path, "/usr/lib/x86_64-linux-gnu")) == 1


def test_a_library_can_be_named_by_its_file(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "/opt/x/libnccl.so.2.20.5", library("2.20.5"))
    assert found(tmp_path, extra=("/opt/x/libnccl.so.2.20.5",)) == [("/opt/x/libnccl.so.2.20.5", "named", "2.20.5")]


def test_nothing_there(tmp_path: pathlib.Path) -> None:
    fs = RootedFs(str(tmp_path))
    libraries, problems = candidates(fs, Tools(fs))
    assert libraries == [] and [p["id"] for p in problems] == ["linker_cache_unreadable"]


@pytest.mark.parametrize(
    "packages",
    [
        "/usr/local/lib/python3.11/dist-packages",
        "/opt/conda/lib/python3.12/site-packages",
        "/opt/miniforge3/envs/train/lib/python3.10/site-packages",
        "/home/ops/.local/lib/python3.11/site-packages",
        "/home/ops/miniconda3/envs/lora/lib/python3.11/site-packages",
    ],
)
def test_wheels_of_many_kinds_of_python(tmp_path: pathlib.Path, packages: str) -> None:
    put(tmp_path, f"{packages}/nvidia/nccl/lib/libnccl.so.2", library())
    assert [(source, version) for _path, source, version in found(tmp_path)] == [("wheel", "2.28.9")]


def test_an_active_environment_comes_before_other_wheels(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "/usr/local/lib/python3.11/dist-packages/nvidia/nccl/lib/libnccl.so.2", library("2.20.5"))
    put(tmp_path, "/srv/venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2", library("2.28.9"))
    fs = RootedFs(str(tmp_path))
    libraries, _problems = candidates(fs, Tools(fs), {"VIRTUAL_ENV": "/srv/venv"})
    assert [x.version for x in libraries] == ["2.28.9", "2.20.5"]
