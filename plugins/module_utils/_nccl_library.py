# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which libnccl.so.2 ranks will load, its version, and the variables it knows, without running it. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import mmap
import os
import re
import struct
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

SONAME = "libnccl.so.2"

#: where distributions, CUDA, HPC-X and Python keep the library besides the linker's cache
DIRECTORIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/nccl/lib",
    "/usr/local/nccl2/lib",
    "/usr/local/cuda/lib64",
    "/opt/nccl/build/lib",
)

CONDAS = ("conda", "miniconda3", "miniforge3", "anaconda3")

#: directories below which Pythons and their environments keep packages
PYTHON_ROOTS = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/venv/lib", *(f"/opt/{c}/lib" for c in CONDAS))
WHEEL_DIRECTORY = "nvidia/nccl/lib"

_BANNER = re.compile(rb"NCCL version (\d+\.\d+\.\d+)([^\0\n+]*)\+cuda(\d+\.\d+)")

#: a name that ends a string; prose that ends with one has a word and a blank before it, data may have anything
_NAME = re.compile(rb"(?<![!-~] )(NCCL_[A-Z0-9_]+)(?=\0)")


@dataclasses.dataclass(frozen=True)
class Library:
    """A libnccl.so.2.

    path: as ranks would name it; real_path: with links followed; source: LD_LIBRARY_PATH, linker cache, directory or
    wheel; version: e.g. "2.28.9", "" if the file does not tell; cuda: the CUDA it was built for; problem: one sentence,
    "" where all could be read.
    """

    path: str
    real_path: str
    source: str
    version: str = ""
    cuda: str = ""
    problem: str = ""

    def as_dict(self) -> dict[str, str]:
        return dataclasses.asdict(self)


class NotAnElfError(ValueError):
    """The file is no 64-bit little-endian ELF object."""


def candidates(
    fs: RootedFs,
    tools: Tools,
    environment: t.Mapping[str, str] | None = None,
    extra: t.Sequence[str] = (),
    home: str = "",
) -> tuple[list[Library], list[dict[str, str]]]:
    """Every libnccl.so.2 of the node, the one that a rank would load first, and what could not be read.

    environment: a rank's (LD_LIBRARY_PATH, VIRTUAL_ENV, CONDA_PREFIX count); extra: files or directories that the user
    names, which come before all; home: the rank's, for packages of its own.
    The order is ld.so(8)'s: LD_LIBRARY_PATH, then the cache, then the default directories. Wheels come last: a Python
    framework finds its own by RPATH, and nothing else does.
    """
    own = environment or {}
    places: list[tuple[str, str]] = [(path if _is_file(path) else f"{path}/{SONAME}", "named") for path in extra]
    places += [
        (f"{directory}/{SONAME}", "LD_LIBRARY_PATH")
        for directory in own.get("LD_LIBRARY_PATH", "").split(":")
        if directory
    ]
    cached, problems = _linker_cache(tools)
    places += [(path, "linker cache") for path in cached]
    places += [(f"{directory}/{SONAME}", "directory") for directory in DIRECTORIES]
    places += [(path, "wheel") for path in _wheels(fs, own, home)]
    found: dict[str, Library] = {}
    for path, source in places:
        if path.startswith("/") and fs.is_file(path):
            real = fs.resolve(path)
            if real not in found:
                found[real] = describe(fs, path, source)
    return list(found.values()), problems


def describe(fs: RootedFs, path: str, source: str) -> Library:
    """Version and CUDA of the library at *path*, from the banner that it would print itself."""
    real = fs.resolve(path)
    try:
        rodata = read_rodata(fs.host_path(path))
    except (OSError, NotAnElfError, struct.error) as error:
        return Library(path, real, source, problem=f"{path} cannot be read as a library: {error}")
    banner = _BANNER.search(rodata)
    if banner is None:
        return Library(path, real, source, problem=f"{path} holds no NCCL version")
    version, _suffix, cuda = (part.decode() for part in banner.groups())
    return Library(path, real, source, version, cuda)


def variable_names(host_path: str) -> list[str]:
    """The NCCL_* names that the library at *host_path* holds as whole strings: those that it can ask the environment for."""
    return sorted({match.decode() for match in _NAME.findall(read_rodata(host_path))})


def read_rodata(host_path: str) -> bytes:
    """The section .rodata of an ELF file, some 200 kB of several hundred MB.

    Raises NotAnElfError for another file or one without the section, OSError, struct.error for a truncated one.
    Source: elf(5), Elf64_Ehdr and Elf64_Shdr.
    """
    with open(host_path, "rb") as file:
        if os.fstat(file.fileno()).st_size < 64:
            raise NotAnElfError("too short for an ELF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:6] != b"\x7fELF\x02\x01":
                raise NotAnElfError("no 64-bit little-endian ELF file")
            table, size, count, names_index = _section_table(data)
            names = struct.unpack_from("<IIQQQQ", data, table + names_index * size)[4]
            for index in range(count):
                name, _unused, _unused, _unused, offset, length = struct.unpack_from(
                    "<IIQQQQ", data, table + index * size
                )
                if data[names + name : names + name + 8] == b".rodata\0":
                    return data[offset : offset + length]
    raise NotAnElfError("an ELF file without .rodata")


def _section_table(data: mmap.mmap) -> tuple[int, int, int, int]:
    """Offset, entry size, entries, and index of the names' section, of the section header table."""
    (offset,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    return offset, size, count, names_index


def _is_file(path: str) -> bool:
    return ".so" in path.rpartition("/")[2]


def _linker_cache(tools: Tools) -> tuple[list[str], list[dict[str, str]]]:
    """Paths of the library in the linker's cache, in the cache's order (ldconfig -p)."""
    done = tools.run(["ldconfig", "-p"], timeout=10)
    if done.problem:
        return [], [{"id": "linker_cache_unreadable", "subject": "ldconfig -p", "evidence": done.problem}]
    lines = (line.split("=>") for line in done.stdout.splitlines() if line.strip().startswith(f"{SONAME} "))
    return [parts[1].strip() for parts in lines if len(parts) == 2], []


def _wheels(fs: RootedFs, environment: t.Mapping[str, str], home: str) -> list[str]:
    """Libraries that pip or conda put into a Python's package directory, an active environment's first."""
    active = [
        f"{environment[n]}/lib" for n in ("VIRTUAL_ENV", "CONDA_PREFIX") if environment.get(n, "").startswith("/")
    ]
    own = [f"{home}/{place}/lib" for place in (".local", *CONDAS, ".venv", "venv")] if home.startswith("/") else []
    bases = [*(f"/opt/{conda}" for conda in CONDAS), *(f"{home}/{conda}" for conda in CONDAS if home.startswith("/"))]
    environments = [f"{path}/lib" for base in bases for path in fs.glob(f"{base}/envs", "*")]
    return [
        f"{packages}/{WHEEL_DIRECTORY}/{SONAME}"
        for root in (*active, *PYTHON_ROOTS, *own, *environments)
        for python in fs.glob(root, "python3*")
        for packages in (f"{python}/dist-packages", f"{python}/site-packages")
    ]
