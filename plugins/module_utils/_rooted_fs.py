# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files below one root, so that the same code reads a live node, a captured tree or a simulated one. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import stat
import tempfile


class OutsideRootError(ValueError):
    """A path would have left the root."""


class RootedFs:
    """Reads and writes absolute paths as seen by a process whose root directory is *root*.

    Symbolic links are followed as that process would follow them: an absolute target starts at *root* again, and no
    target leaves it (path_resolution(7)).
    """

    #: how many links one path may cross before the kernel, too, gives up (ELOOP, path_resolution(7))
    MAX_LINKS = 40

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.realpath(root)

    @property
    def is_live(self) -> bool:
        """True for the machine's own root: only there may /proc be written and programs be run."""
        return self.root == "/"

    def host_path(self, path: str, follow: bool = True) -> str:
        """Where *path* really lies on this machine; the last component is followed only if *follow*."""
        if not path.startswith("/"):
            raise OutsideRootError(f"a path below the root starts with '/', not {path!r}")
        if self.is_live:
            return os.path.normpath(path)
        return self._walk(path, follow)

    def _walk(self, path: str, follow: bool) -> str:
        todo = [part for part in path.split("/") if part]
        done: list[str] = []
        links = 0
        while todo:
            part = todo.pop(0)
            if part == ".":
                continue
            if part == "..":
                done = done[:-1]
                continue
            here = os.path.join(self.root, *done, part)
            if os.path.islink(here) and (todo or follow):
                links += 1
                if links > self.MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = os.readlink(here)
                if target.startswith("/"):
                    done = []
                todo = [p for p in target.split("/") if p] + todo
            else:
                done.append(part)
        return os.path.join(self.root, *done)

    def exists(self, path: str) -> bool:
        try:
            return os.path.exists(self.host_path(path))
        except OSError:
            return False

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(self.host_path(path))

    def is_file(self, path: str) -> bool:
        return os.path.isfile(self.host_path(path))

    def is_link(self, path: str) -> bool:
        return os.path.islink(self.host_path(path, follow=False))

    def read_bytes(self, path: str) -> bytes:
        """The whole file; OSError where it cannot be read (sysfs attributes answer EINVAL, EOPNOTSUPP and more)."""
        with open(self.host_path(path), "rb") as file:
            return file.read()

    def read_text(self, path: str) -> str:
        """The whole file as UTF-8, a byte that is none replaced: foreign files must not stop an observation."""
        return self.read_bytes(path).decode("utf-8", errors="replace")

    def read_value(self, path: str) -> str | None:
        """One sysfs or procfs attribute without its newline, or None where it is absent or unreadable."""
        try:
            return self.read_text(path).strip()
        except OSError:
            return None

    def read_lines(self, path: str) -> list[str]:
        """The lines of a text file, none where it is absent or unreadable."""
        try:
            return self.read_text(path).splitlines()
        except OSError:
            return []

    def listdir(self, path: str) -> list[str]:
        """Sorted names, empty where there is no such directory."""
        try:
            return sorted(os.listdir(self.host_path(path)))
        except OSError:
            return []

    def glob(self, directory: str, pattern: str) -> list[str]:
        """Sorted absolute paths (below the root) of the names in *directory* that match *pattern*."""
        return [
            f"{directory.rstrip('/')}/{name}" for name in self.listdir(directory) if fnmatch.fnmatchcase(name, pattern)
        ]

    def readlink(self, path: str) -> str | None:
        """The text of a symbolic link, or None where the path is none."""
        try:
            return os.readlink(self.host_path(path, follow=False))
        except OSError:
            return None

    def resolve(self, path: str) -> str:
        """*path* with every link followed, as an absolute path below the root."""
        real = os.path.realpath(path) if self.is_live else self.host_path(path)
        return real if self.is_live else "/" + os.path.relpath(real, self.root)

    def stat(self, path: str, follow: bool = True) -> os.stat_result:
        host = self.host_path(path, follow)
        return os.stat(host) if follow else os.lstat(host)

    def write_value(self, path: str, value: str) -> None:
        """Write one procfs or sysfs attribute in one write(2), as the kernel wants it; OSError as the kernel answers.

        The truncation means nothing to the kernel and makes a recorded tree behave like it.
        """
        descriptor = os.open(self.host_path(path), os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)

    def write_atomic(self, path: str, content: bytes, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
        """Replace the file at *path* as a whole: a reader sees the old content or the new one, also after a crash.

        The directory is made where it is missing. A symbolic link at *path* is written through, not replaced.
        """
        target = self.host_path(path)
        directory = os.path.dirname(target)
        os.makedirs(directory, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=".gpufabric-", dir=directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), mode)
                if owner is not None:
                    os.fchown(file.fileno(), *owner)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        _sync_directory(directory)

    def symlink(self, target: str, path: str) -> None:
        """Make *path* a symbolic link with the text *target*; what was there must be gone."""
        host = self.host_path(path, follow=False)
        os.makedirs(os.path.dirname(host), exist_ok=True)
        os.symlink(target, host)

    def remove(self, path: str) -> bool:
        """Remove the file or link itself; False where there was none."""
        host = self.host_path(path, follow=False)
        try:
            os.unlink(host)
        except FileNotFoundError:
            return False
        _sync_directory(os.path.dirname(host))
        return True

    def missing_parents(self, path: str) -> list[str]:
        """The directories above *path* that do not exist yet, outermost first: what write_atomic() would make."""
        missing = []
        parent = os.path.dirname(path)
        while parent != "/" and not self.exists(parent):
            missing.append(parent)
            parent = os.path.dirname(parent)
        return missing[::-1]

    def remove_empty_dir(self, path: str) -> bool:
        """Remove the directory if nothing is in it; False where it is absent or in use."""
        try:
            os.rmdir(self.host_path(path))
        except OSError:
            return False
        return True

    def mode(self, path: str) -> int:
        return stat.S_IMODE(self.stat(path).st_mode)


def _sync_directory(directory: str) -> None:
    """Make a rename or unlink in *directory* last over a power cut; file systems that cannot do it are left alone."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
