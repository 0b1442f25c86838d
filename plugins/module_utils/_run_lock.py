# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One run at a time on a node: who holds it, whether that run still lives, and taking and giving it back. PRIVATE to the collection.

A run has no one that could say goodbye for it: Ansible runs nothing on SIGINT or SIGKILL. So the lock ends by itself. A
run shows life by renewing the lock whenever one of its modules works on the node, by a process of it that is still there
(the variable RUN in its environment, so that a package manager or a compiler counts, too), or by a lease that is renewed.
Without any of these for TTL_S seconds the lock is dead, and the next run takes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import time
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

#: the environment variable by which the modules of a run, and what they start, know to which run they belong
RUN = "GPUFABRIC_RUN"

#: without a sign of life for so long, in seconds, a lock is dead
TTL_S = 120.0

#: root's, which everybody can read: in memory, so that no lock outlives a boot
DIRECTORY = "/run/gpufabric"
NAME = "run_lock.json"

#: how often to look again where the directory went away between making and locking it
ATTEMPTS = 20


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who runs. user, host: on the controller; controller, process: what tells that run's process from all others there."""

    run_id: str
    user: str = ""
    host: str = ""
    controller: str = ""
    process: str = ""
    since: str = ""

    @classmethod
    def from_dict(cls, data: t.Mapping[str, t.Any]) -> Holder:
        return cls(**{field.name: str(data.get(field.name, "")) for field in dataclasses.fields(cls)})


class RunLock:
    """The lock of the node below *fs*'s root. base: where it lies, for who cannot write where root's lies."""

    def __init__(self, fs: RootedFs, base: str = "") -> None:
        self._fs = fs
        self._base = base or _own_base(fs)
        self._places = list(dict.fromkeys([self._base, DIRECTORY]))

    # -- looking

    def holder(self) -> tuple[Holder, float] | None:
        """The living run that holds the node, and how many seconds ago it last renewed the lock; None where nobody does."""
        for place in self._places:
            found = self._read(place)
            if found is not None and (found[1] < TTL_S or self._shows_life(found[0])):
                return found
        return None

    def _read(self, place: str) -> tuple[Holder, float] | None:
        try:
            noted = json.loads(self._fs.read_text(f"{place}/{NAME}"))
            # The monotonic clock of a boot: a step of the time of day neither ends nor prolongs a lock.
            age = time.monotonic() - float(noted["renewed"])
            return Holder.from_dict(noted), age if age >= 0.0 else TTL_S
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _shows_life(self, holder: Holder) -> bool:
        return self.has_process(holder.run_id) or self._has_lease()

    def has_process(self, run_id: str) -> bool:
        """Whether the node still runs something of that run, such as a module that its controller no longer waits for."""
        mark = f"{RUN}={run_id}".encode()
        for pid in filter(str.isdigit, self._fs.listdir("/proc")):
            with contextlib.suppress(OSError):
                if mark in self._fs.read_bytes(f"/proc/{pid}/environ").split(b"\0"):
                    return True
        return False

    def _has_lease(self) -> bool:
        """Whether some lease is renewed: only the run that holds the node can have made one since."""
        for place in self._places:
            for lease in self._fs.glob(place, "*"):
                with contextlib.suppress(OSError, ValueError):
                    path = f"{lease}/alive"
                    if time.time() - self._fs.stat(path).st_mtime < float(self._fs.read_text(path).strip() or 0):
                        return True
        return False

    # -- holding

    def take(self, mine: Holder, replaces: str = "") -> tuple[Holder, float] | None:
        """Take the node for *mine*; or leave it, and return who holds it. replaces: a run whose lock does not count.

        A run that holds the node already renews it. OSError where the lock cannot be written.
        """
        with self._alone():
            found = self.holder()
            if found is not None and found[0].run_id not in (mine.run_id, replaces):
                return found
            self._write(mine)
            return None

    def renew(self, run_id: str) -> bool:
        """Show life; False where that run does not hold the node (any more)."""
        with self._alone(make=False) as there:
            found = self._read(self._base) if there else None
            if found is None or found[0].run_id != run_id:
                return False
            self._write(found[0])
            return True

    def give_back(self, run_id: str) -> bool:
        """Free the node if that run holds it."""
        with self._alone(make=False) as there:
            found = self._read(self._base) if there else None
            if found is None or found[0].run_id != run_id:
                return False
            self._fs.remove(f"{self._base}/{NAME}")
        self._fs.remove_empty_dir(self._base)
        return True

    def _write(self, holder: Holder) -> None:
        noted = {**dataclasses.asdict(holder), "renewed": time.monotonic()}
        self._fs.write_atomic(f"{self._base}/{NAME}", (json.dumps(noted, sort_keys=True) + "\n").encode(), 0o644)

    @contextlib.contextmanager
    def _alone(self, make: bool = True) -> t.Iterator[bool]:
        """Between two modules on one node only one may look and write. The directory is locked: it leaves no file behind."""
        host = self._fs.host_path(self._base)
        for _unused in range(ATTEMPTS):
            if make:
                os.makedirs(host, 0o755, exist_ok=True)
            try:
                descriptor = os.open(host, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                if make:
                    continue
                yield False
                return
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if _still_there(descriptor, host):
                    yield True
                    return
            finally:
                os.close(descriptor)
        raise OSError(f"{self._base} is removed as often as it is made")


def _still_there(descriptor: int, path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def _own_base(fs: RootedFs) -> str:
    return DIRECTORY if os.geteuid() == 0 or not fs.is_live else f"/dev/shm/gpufabric-{os.geteuid()}"


def show_life(fs: RootedFs) -> None:
    """Renew the lock of the run that this module belongs to. Modules that work on nodes call it; it never fails them."""
    run_id = os.environ.get(RUN, "")
    if run_id:
        with contextlib.suppress(OSError):
            RunLock(fs).renew(run_id)
