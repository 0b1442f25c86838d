# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Builds nccl-tests from a repository, an archive or a directory, only when what matters changed. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
import tarfile
import tempfile
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Completed, Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

STAMP = "gpufabric-build.json"
CUDA_PLACES = ("/usr/local/cuda", "/opt/cuda")
#: where distributions and vendors put the parts of MPI below one directory: {include, lib}
MPI_PLACES = (
    "/usr/lib/x86_64-linux-gnu/openmpi",
    "/usr/lib/aarch64-linux-gnu/openmpi",
    "/usr/lib64/openmpi",
    "/opt/amazon/openmpi",
)
#: NCCL as a Python package has no libnccl.so, which the linker looks for
PYTHON_NCCL = "import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])"
BUILD_TIMEOUT_S = 1800.0


#: opens an URL for reading; Ansible's own, which knows proxies and certificates, is the module's to give
OpenUrl = t.Callable[[str], t.Any]


class BuildError(Exception):
    """nccl-tests cannot be built; the sentence says why and what to set."""


@dataclasses.dataclass(frozen=True)
class Toolchain:
    """What the programs are built with; every field is a part of the build's identity."""

    cuda_home: str
    cuda_version: str
    nccl_home: str
    nccl_version: str
    mpi_home: str
    mpi_version: str
    architectures: tuple[str, ...]

    def as_dict(self) -> dict[str, t.Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """source: URL or path of a git repository, an archive or a directory; version: the commit, tag or branch of a repository.
    A directory that is a repository too is taken as it lies there where no version is given.

    sha256: of an archive; one that is downloaded must have it.
    """

    source: str
    version: str
    directory: str
    sha256: str = ""
    cuda_home: str = ""
    nccl_home: str = ""
    mpi_home: str = ""
    mpi: bool = True
    architectures: tuple[str, ...] = ()
    python: str = ""

    @property
    def is_archive(self) -> bool:
        return self.source.endswith((".tar.gz", ".tgz", ".tar.xz", ".tar"))


class Builder:
    """One build directory: <directory>/build is what programs are run from, <directory>/gpufabric-build.json how it was made."""

    def __init__(self, fs: RootedFs, tools: Tools, wanted: Wanted, open_url: OpenUrl) -> None:
        self._fs = fs
        self._open_url = open_url
        self._tools = tools
        self._wanted = wanted
        self.programs = f"{wanted.directory}/build"

    def toolchain(self) -> Toolchain:
        """Find CUDA, NCCL, MPI and the GPUs' architectures. BuildError names the first that is missing."""
        cuda = self._cuda_home()
        version = re.search(r"release ([\d.]+)", self._tools.run([f"{cuda}/bin/nvcc", "--version"]).stdout)
        nccl = self._nccl_home(cuda)
        mpi, mpi_version = self._mpi() if self._wanted.mpi else ("", "")
        return Toolchain(
            cuda_home=cuda,
            cuda_version=version.group(1) if version else "",
            nccl_home=nccl,
            nccl_version=self._nccl_version(nccl),
            mpi_home=mpi,
            mpi_version=mpi_version,
            architectures=self._wanted.architectures or self._architectures(),
        )

    def _cuda_home(self) -> str:
        places = [self._wanted.cuda_home] if self._wanted.cuda_home else [os.environ.get("CUDA_HOME", ""), *CUDA_PLACES]
        places += [] if self._wanted.cuda_home else self._fs.glob("/usr/local", "cuda-*")[::-1]
        for place in filter(None, places):
            if self._fs.exists(f"{place}/bin/nvcc"):
                return place
        raise BuildError(
            f"nvcc is not below {' or '.join(filter(None, places))}: install the CUDA toolkit, or set nccl_tests_cuda_home"
        )

    def _nccl_home(self, cuda: str) -> str:
        if self._wanted.nccl_home:
            places = [self._wanted.nccl_home]
        else:
            package = (
                self._tools.run([self._wanted.python, "-c", PYTHON_NCCL]).stdout.strip() if self._wanted.python else ""
            )
            places = ["/usr", "/usr/local", cuda, package]
        for place in filter(None, places):
            if self._fs.exists(f"{place}/include/nccl.h"):
                return place
        raise BuildError(
            f"nccl.h is not below {' or '.join(filter(None, places))}: install libnccl-dev, or set nccl_tests_nccl_home"
        )

    def _nccl_version(self, home: str) -> str:
        header = self._fs.read_value(f"{home}/include/nccl.h") or ""
        numbers = [re.search(rf"#define NCCL_{name}\s+(\d+)", header) for name in ("MAJOR", "MINOR", "PATCH")]
        return ".".join(number.group(1) for number in numbers if number)

    def _mpi(self) -> tuple[str, str]:
        places = [self._wanted.mpi_home] if self._wanted.mpi_home else [*MPI_PLACES, *self._mpi_of_hpcx(), "/usr/local"]
        for place in places:
            if self._fs.exists(f"{place}/include/mpi.h"):
                return place, self._mpi_version(place)
        raise BuildError(
            f"mpi.h is not below {' or '.join(places)}: install libopenmpi-dev, set nccl_tests_mpi_home, "
            "or build for one node alone with nccl_tests_build_mpi: false"
        )

    def _mpi_of_hpcx(self) -> list[str]:
        return [f"{place}/ompi" for place in ["/opt/hpcx", *self._fs.glob("/opt", "hpcx-*")]]

    def _mpi_version(self, home: str) -> str:
        header = self._fs.read_value(f"{home}/include/mpi.h") or ""
        numbers = [re.search(rf"#define OMPI_{name}_VERSION\s+(\d+)", header) for name in ("MAJOR", "MINOR", "RELEASE")]
        return ".".join(number.group(1) for number in numbers if number)

    def _architectures(self) -> tuple[str, ...]:
        listed = self._tools.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], timeout=30)
        found = sorted(
            {
                line.strip().replace(".", "")
                for line in listed.stdout.splitlines()
                if re.fullmatch(r"\d+\.\d+", line.strip())
            }
        )
        if not found:
            raise BuildError(
                f"the GPUs' architectures are unknown ({listed.problem or 'no GPU was listed'}): set nccl_tests_architectures"
            )
        return tuple(found)

    # -- identity

    def identity(self, chain: Toolchain) -> dict[str, t.Any]:
        """Everything whose change makes a rebuild necessary."""
        return {"source": self._wanted.source, "version": self._version(), "toolchain": chain.as_dict()}

    def _version(self) -> str:
        """The commit asked for; for an archive or a directory the digest of its content."""
        source = self._wanted.source
        if self._wanted.is_archive:
            return self._pinned_digest() if "://" in source else self._digest_of_archive(self._fs.host_path(source))
        if "://" not in source and not self._is_repository():
            return self._digest_of_tree()
        if not self._wanted.version:
            raise BuildError(f"nccl_tests_version is empty, and {source} is a git repository: set it to a commit")
        return self._wanted.version

    def _pinned_digest(self) -> str:
        """What a download must be. Whoever can answer for that address could otherwise hand in any program."""
        if not re.fullmatch(r"[0-9a-f]{64}", self._wanted.sha256):
            raise BuildError(
                f"nccl_tests_sha256 is {self._wanted.sha256!r}, and the archive {self._wanted.source} is downloaded: set it to the"
                " archive's SHA-256, 64 hexadecimal digits (sha256sum FILE)"
            )
        return self._wanted.sha256

    def _digest_of_archive(self, path: str) -> str:
        """SHA-256 of the archive at *path* of this machine; BuildError where that is not the one asked for."""
        try:
            with open(path, "rb") as file:
                found = hashlib.sha256(file.read()).hexdigest()
        except OSError as error:
            raise BuildError(
                f"the archive {self._wanted.source} cannot be read on this node: {error.strerror}"
            ) from error
        if self._wanted.sha256 not in ("", found):
            raise BuildError(
                f"{self._wanted.source} has the SHA-256 {found}, and nccl_tests_sha256 says {self._wanted.sha256}"
            )
        return found

    def _is_repository(self) -> bool:
        return (
            "://" in self._wanted.source
            or self._wanted.source.endswith(".git")
            or (bool(self._wanted.version) and self._fs.exists(f"{self._wanted.source}/.git"))
        )

    def _digest_of_tree(self) -> str:
        top = self._fs.host_path(self._wanted.source)
        if not os.path.isfile(os.path.join(top, "src", "Makefile")):
            raise BuildError(f"{self._wanted.source} holds no src/Makefile, so it is no source of nccl-tests")
        digest = hashlib.sha256()
        for folder, folders, names in os.walk(top):
            folders[:] = sorted(name for name in folders if name not in (".git", "build"))
            for name in sorted(names):
                path = os.path.join(folder, name)
                digest.update(os.path.relpath(path, top).encode())
                with open(path, "rb") as file:
                    digest.update(file.read())
        return digest.hexdigest()

    def is_current(self, identity: t.Mapping[str, t.Any]) -> bool:
        """Whether what lies in the build directory was made from just this."""
        try:
            kept = json.loads(self._fs.read_text(f"{self._wanted.directory}/{STAMP}"))
        except (OSError, ValueError):
            return False
        return bool(kept == json.loads(json.dumps(identity))) and self._fs.exists(f"{self.programs}/all_reduce_perf")

    # -- building

    def build(self, chain: Toolchain, identity: t.Mapping[str, t.Any]) -> None:
        """Fetch, make, and put the programs in place of the earlier ones. A build that fails leaves those untouched."""
        os.makedirs(self._fs.host_path(self._wanted.directory), exist_ok=True)
        work = tempfile.mkdtemp(prefix=".build-", dir=self._fs.host_path(self._wanted.directory))
        try:
            source = self._fetch(work)
            made = os.path.join(work, "made")
            variables = self._make_variables(chain, work, made)
            done = self._tools.run(
                ["make", "-C", source, f"-j{os.cpu_count() or 1}", *variables], timeout=BUILD_TIMEOUT_S
            )
            if not done.ok or not os.path.exists(os.path.join(made, "all_reduce_perf")):
                raise BuildError(f"make failed: {_why(done)}")
            _let_all_read(made)
            os.chmod(self._fs.host_path(self._wanted.directory), 0o755)
            target = self._fs.host_path(self.programs)
            shutil.rmtree(target, ignore_errors=True)
            os.rename(made, target)
            text = json.dumps(identity, indent=1, sort_keys=True) + "\n"
            self._fs.write_atomic(f"{self._wanted.directory}/{STAMP}", text.encode())
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _fetch(self, work: str) -> str:
        source, target = self._wanted.source, os.path.join(work, "source")
        if self._wanted.is_archive:
            return self._unpack(self._download(work) if "://" in source else self._fs.host_path(source), target)
        if self._is_repository():
            for argv in (
                ["git", "clone", "--quiet", source, target],
                ["git", "-C", target, "checkout", "--quiet", self._wanted.version],
            ):
                done = self._tools.run(argv, timeout=300)
                if not done.ok:
                    raise BuildError(f"{source} at {self._wanted.version} cannot be fetched: {done.problem}")
            return target
        shutil.copytree(self._fs.host_path(source), target, ignore=shutil.ignore_patterns(".git", "build"))
        return target

    def _download(self, work: str) -> str:
        path = os.path.join(work, os.path.basename(self._wanted.source))
        try:
            with contextlib.closing(self._open_url(self._wanted.source)) as answer, open(path, "wb") as file:
                shutil.copyfileobj(answer, file)
        except (ValueError, OSError) as error:  # an URL that is none; and all that a network can answer
            raise BuildError(f"{self._wanted.source} cannot be downloaded: {error}") from error
        self._digest_of_archive(path)
        return path

    def _unpack(self, archive: str, target: str) -> str:
        try:
            with tarfile.open(archive) as bundle:
                safe = [
                    m
                    for m in bundle.getmembers()
                    if (m.isfile() or m.isdir()) and not m.name.startswith("/") and ".." not in m.name.split("/")
                ]
                bundle.extractall(target, members=safe)
        except (tarfile.TarError, OSError) as error:
            raise BuildError(f"{self._wanted.source} is no archive that can be unpacked: {error}") from error
        for folder, folders, _unused in os.walk(target):
            if "src" in folders and os.path.isfile(os.path.join(folder, "src", "Makefile")):
                return folder
        raise BuildError(f"{self._wanted.source} holds no src/Makefile, so it is no source of nccl-tests")

    def _make_variables(self, chain: Toolchain, work: str, made: str) -> list[str]:
        codes = " ".join(f"-gencode=arch=compute_{code},code=sm_{code}" for code in chain.architectures)
        library = self._library_directory(chain.nccl_home)
        nccl = self._linkable_nccl(chain.nccl_home, library, work)
        # The library directory is written into the programs (as RUNPATH: LD_LIBRARY_PATH still beats it), because a
        # NCCL from a Python package or a vendor's directory is in no path that the loader looks at.
        runpaths = [library, *([f"{chain.mpi_home}/lib"] if chain.mpi_home else [])]
        run_path = " ".join(f"-Xlinker -rpath -Xlinker {path}" for path in runpaths)
        variables = [f"BUILDDIR={made}", f"CUDA_HOME={chain.cuda_home}", f"NCCL_HOME={nccl}", f"NVCC_GENCODE={codes}"]
        variables.append(f"CUDARTLIB=cudart {run_path}")
        return (
            [*variables, "MPI=1", f"MPI_HOME={self._linkable_mpi(chain.mpi_home, work)}"]
            if chain.mpi_home
            else variables
        )

    def _library_directory(self, home: str) -> str:
        for place in (f"{home}/lib", f"{home}/lib64", f"{home}/lib/x86_64-linux-gnu", f"{home}/lib/aarch64-linux-gnu"):
            if self._fs.glob(place, "libnccl.so*"):
                return place
        raise BuildError(
            f"libnccl.so is not below {home}: install libnccl2 and libnccl-dev, or set nccl_tests_nccl_home"
        )

    def _linkable_nccl(self, home: str, library: str, work: str) -> str:
        if library == f"{home}/lib" and self._fs.exists(f"{library}/libnccl.so"):
            return home
        return self._links(work, "nccl", f"{home}/include", self._fs.glob(library, "libnccl.so*"), "libnccl.so")

    def _linkable_mpi(self, home: str, work: str) -> str:
        if any(self._fs.exists(f"{home}/{place}/libmpi.so") for place in ("lib", "lib64")):
            return home
        found = self._fs.glob(os.path.dirname(home), "libmpi.so*") + self._fs.glob(f"{home}/lib", "libmpi.so*")
        if not found:
            raise BuildError(
                f"libmpi.so is neither in {home}/lib nor beside {home}: install libopenmpi-dev, or set nccl_tests_mpi_home"
            )
        return self._links(work, "mpi", f"{home}/include", found, "libmpi.so")

    def _links(self, work: str, name: str, include: str, libraries: t.Sequence[str], wanted: str) -> str:
        """A directory {include, lib} of links, as the Makefile wants it, with the name that the linker looks for."""
        home = os.path.join(work, name)
        os.makedirs(os.path.join(home, "lib"))
        os.symlink(self._fs.host_path(include), os.path.join(home, "include"))
        for path in libraries:
            os.symlink(self._fs.host_path(path), os.path.join(home, "lib", os.path.basename(path)))
        if not os.path.lexists(os.path.join(home, "lib", wanted)):
            os.symlink(self._fs.host_path(libraries[0]), os.path.join(home, "lib", wanted))
        return home


def _let_all_read(top: str) -> None:
    """Whoever runs the programs is seldom who built them, and root's umask is 077 on hardened nodes."""
    for folder, _unused, names in os.walk(top):
        os.chmod(folder, 0o755)
        for path in (os.path.join(folder, name) for name in names):
            mode = os.stat(path).st_mode
            os.chmod(path, (mode | 0o444 | (0o111 if mode & 0o100 else 0)) & 0o7777)


def _why(done: Completed) -> str:
    """The compiler's first error, else why make did not run."""
    lines = (done.stderr + "\n" + done.stdout).splitlines()
    error = next(
        (line.strip() for line in lines if re.search(r"\b(fatal )?error\b|No such file", line, re.IGNORECASE)), ""
    )
    return error or done.problem or "it made no program all_reduce_perf"
