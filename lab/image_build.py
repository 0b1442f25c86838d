# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds an image: the root file system, kernel and initial RAM disk of a release and a variant.

What is in this file, in lab/image/ and in lab/vmlinux.py decides what is in an image: together they are its key.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import typing as t

from lab import tools, vmlinux
from lab.errors import LabError
from lab.paths import IMAGE_SOURCES

COMMON = "base"
ROOT, KERNEL, RAMDISK = "root.img", "vmlinux", "initrd.cpio"

_BUILDERS = (pathlib.Path(__file__), pathlib.Path(vmlinux.__file__))
_BUILD_TIMEOUT_S = 1800
_FREE_MIB = 768
_MKE2FS_OPTIONS = (
    *("-t", "ext4", "-L", "lab", "-m", "0", "-J", "size=16", "-N", "65536"),
    # Checksums and lazy initialisation cost an emulated processor more than they are worth on a disk that lives an hour.
    *("-O", "^metadata_csum", "-E", "lazy_itable_init=1,lazy_journal_init=1"),
)


def packages(variant: str) -> list[str]:
    """The Debian packages of a variant: the common ones and its own."""
    return [
        name
        for directory in _directories(variant)
        if (directory / "packages.txt").exists()
        for name in (directory / "packages.txt").read_text("ascii").split()
    ]


def image_key(release: str, variant: str) -> str:
    """A name that changes whenever what builds the image does: its sources, the release, the variant, this file."""
    digest = hashlib.sha256(f"{release}\0{variant}\0".encode())
    for name, path in [*_sources(variant), *((path.name, path) for path in _BUILDERS)]:
        digest.update(f"{name}\0{path.stat().st_mode & 0o111}\0".encode() + path.read_bytes())
    return f"{release}-{variant}-{digest.hexdigest()[:16]}"


def build(cache: pathlib.Path, release: str, variant: str, mirror: str | None) -> None:
    """Build into cache under the image's key. Its caller sees to it that nobody else builds the same.

    Works in a directory of its own beside the final one, and renames it last: a killed build leaves no half image.
    """
    key = image_key(release, variant)
    for stale in cache.glob(f"{key}.build-*"):
        shutil.rmtree(stale, ignore_errors=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix=f"{key}.build-", dir=cache))
    try:
        work.chmod(0o755)
        archive = work / "root.tar"
        _make_root_archive(work, archive, release, variant, mirror)
        done = work / "done"
        done.mkdir()
        with tarfile.open(archive) as tar:
            (done / KERNEL).write_bytes(vmlinux.extract(_member(tar, "./boot/vmlinuz")))
            (done / RAMDISK).write_bytes(_member(tar, "./boot/initrd.cpio"))
        _make_file_system(work, archive, done / ROOT)
        done.rename(cache / key)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _directories(variant: str) -> list[pathlib.Path]:
    """Where the sources of a variant lie: the common ones first, its own upon them."""
    return [IMAGE_SOURCES / name for name in dict.fromkeys((COMMON, variant))]


def _sources(variant: str) -> list[tuple[str, pathlib.Path]]:
    """Every file that makes the image of a variant, with its place in the image's root while that is built."""
    found = []
    for directory in _directories(variant):
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                inside = path.relative_to(directory)
                below_root = inside.parts[0] == "rootfs"
                place = (
                    inside.relative_to("rootfs")
                    if below_root
                    else pathlib.PurePath("lab-build", directory.name, inside)
                )
                found.append((str(place), path))
    return found


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    stream = archive.extractfile(name)
    if stream is None:
        raise LabError(f"the image holds no {name}: its build is broken")
    return stream.read()


def _make_root_archive(
    work: pathlib.Path, archive: pathlib.Path, release: str, variant: str, mirror: str | None
) -> None:
    """Run mmdebstrap: as root in its root mode, otherwise in a user namespace (`unshare` mode)."""
    overlay = work / "overlay.tar"
    overlay.write_bytes(_overlay(variant))
    command = [
        "mmdebstrap",
        f"--mode={'root' if os.geteuid() == 0 else 'unshare'}",
        "--variant=minbase",
        "--aptopt=Acquire::Retries 3",
        f"--include={','.join(packages(variant))}",
        f"--customize-hook=tar-in {overlay} /",
        f'--customize-hook=sh "$1/lab-build/{COMMON}/customize.sh" "$1"',
        release,
        str(archive),
    ]
    if mirror:
        command.append(mirror)
    environment = {**os.environ, "PATH": tools.search_path(), "LC_ALL": "C.UTF-8"}
    if os.geteuid() == 0:
        # In root mode mmdebstrap mounts /proc, /sys and more. Nothing of a killed build must stay mounted, nor lie outside
        # its own directory. (Other users have mmdebstrap's own namespace, from which that directory cannot be reached.)
        command = ["unshare", "--mount", *command]
        environment["TMPDIR"] = str(work)
    _run(command, work, environment)


def _overlay(variant: str) -> bytes:
    """The files that every node shares and the build's own scripts, owned by root whoever has checked them out."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for place, path in _sources(variant):
            entry = archive.gettarinfo(path, f"./{place}")
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = "root"
            entry.mode = 0o755 if entry.mode & 0o100 else 0o644
            with path.open("rb") as stream:
                archive.addfile(entry, stream)
    return buffer.getvalue()


def _make_file_system(work: pathlib.Path, archive: pathlib.Path, target: pathlib.Path) -> None:
    """Turn the archive into a sparse ext4 image. Only a user other than root needs fakeroot, to keep the files' owners."""
    script = (
        'set -e; mkdir tree; tar -x -f "$1" -C tree; rm -f tree/boot/*; '
        'size=$(du -s -m tree | cut -f 1); truncate -s "$((size * 115 / 100 + $2))M" "$3"; shift 3; '
        'mke2fs -q -d tree "$@"'
    )
    command = ["sh", "-c", script, "sh", str(archive), str(_FREE_MIB), str(target), *_MKE2FS_OPTIONS, str(target)]
    if os.geteuid() != 0:
        command.insert(0, "fakeroot")
    _run(command, work, {**os.environ, "PATH": tools.search_path()})


def _run(command: t.Sequence[str], work: pathlib.Path, environment: t.Mapping[str, str]) -> None:
    log = work / "build.log"
    with log.open("ab") as stream:
        process = subprocess.Popen(
            command, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
        )
        try:
            status = process.wait(_BUILD_TIMEOUT_S)
        except BaseException:
            # mmdebstrap unmounts and removes what it has made when it is asked to end.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()
            raise
    if status != 0:
        tail = "\n  ".join(log.read_text("utf-8", "replace").splitlines()[-12:])
        raise LabError(f"the image was not built: {command[0]} ended with status {status}; it said last:\n  {tail}")
