# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What must not outlive a run, and the node's own guard that takes it back when nobody renews the lease. PRIVATE to the collection.

Ansible runs no clean-up on SIGINT, on SIGKILL or when the network is gone. So each node is given a lease before anything
is put on it. While the run lives its lease is renewed; when the renewals stop, the guard (a transient systemd timer,
or a detached process where there is no systemd) ends the run's processes and removes its key and files.
A note below /var/lib survives a reboot: the next call on that node takes back what it names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import sys
import time
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils import _run_processes
from ansible_collections.gpufabric.cluster.plugins.module_utils._authorized_keys import AuthorizedKeys
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Account, Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._run_lock import RUN, RunLock

#: root's leases: in memory (tmpfs) and gone after a reboot, file-hierarchy(7)
DIRECTORY = "/run/gpufabric"
#: the notes on them: on disk, so that a node which lost its power in mid-run is still cleaned by the next call
NOTES = "/var/lib/gpufabric/leases"
#: also a part of unit and file names
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{3,63}")
#: between two looks of the guard, in seconds
TICK_S = 3.0
#: how long arming may take on a slow node, in seconds
ARMING_S = 60.0
#: an Ansible directory that no process uses is left alone until it is this old: another run may be filling it
ANSIBLE_TMP_AGE_S = 60.0


class LeaseError(Exception):
    """The lease could not be armed; nothing was or may be installed."""


@dataclasses.dataclass(frozen=True)
class Released:
    """What release() took back. left: what it could not, one sentence each."""

    processes: tuple[int, ...] = ()
    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, t.Any]:
        return {"processes": list(self.processes), "removed": list(self.removed), "left": list(self.left)}


def default_base() -> str:
    """Where this user's leases lie: who is not root has no directory below /run that outlives a session."""
    return DIRECTORY if os.geteuid() == 0 else f"/dev/shm/gpufabric-{os.geteuid()}"


def notes_of(base: str) -> str:
    """Where the notes on the leases below *base* lie."""
    return NOTES if base == DIRECTORY else os.path.expanduser("~/.local/state/gpufabric/leases")


class Lease:
    """The lease of one run on this node. base: where it lies, by default where this user's leases lie.

    <directory>/node_tool  the program that the guard runs, owned by root
    <directory>/alive      its modification time is the last renewal, its text the seconds that a renewal lasts
    <directory>/work       the run's own files: key, session directories, logs
    """

    def __init__(self, fs: RootedFs, run_id: str, base: str = "") -> None:
        if not RUN_ID.fullmatch(run_id):
            raise LeaseError(f"a run's name is made of letters, digits, '.' and '-', 4 to 64 of them, not {run_id!r}")
        self._fs = fs
        self.run_id = run_id
        self._base = base or default_base()
        self._notes = notes_of(self._base)
        self.directory = f"{self._base}/{run_id}"
        self.work = f"{self.directory}/work"
        self.tool = f"{self.directory}/node_tool"
        self.alive = f"{self.directory}/alive"
        self.note = f"{self._notes}/{run_id}.json"
        self.unit = f"gpufabric-lease-{run_id}"

    # -- arming

    def arm(self, account: Account, tool: t.Callable[[], bytes], ttl_s: float, max_s: float) -> None:
        """Make the lease for *ttl_s* seconds, never longer than *max_s* however often it is renewed, and start its guard.

        tool: makes the program that the guard runs, if it is not there yet.

        Armed twice it is renewed. LeaseError if the guard cannot be started: then the lease is gone again.
        """
        if self._fs.exists(self.alive):
            self.renew(ttl_s)
            return
        whose = {"run_id": self.run_id, "run": os.environ.get(RUN, ""), "user": account.name}
        self._save_note({**whose, "armed_at": time.time(), "max_s": max_s})
        self._make_directory(self._base, 0o755)
        if self._fs.stat(self._base, follow=False).st_uid != os.geteuid():
            raise LeaseError(f"{self._base} belongs to somebody else: remove it")
        self._make_directory(self.directory, 0o755)
        self._make_directory(self.work, 0o700, account)
        self._fs.write_atomic(self.tool, tool(), 0o755)
        owner = (account.uid, account.gid) if os.geteuid() == 0 else None
        self._fs.write_atomic(self.alive, f"{ttl_s:g}\n".encode(), 0o644, owner)
        try:
            self._start_guard(ttl_s)
        except LeaseError:
            self.release()
            raise

    def _make_directory(self, path: str, mode: int, account: Account | None = None) -> None:
        host = self._fs.host_path(path)
        with contextlib.suppress(FileExistsError):
            os.makedirs(host, mode)
            os.chmod(host, mode)
            if account is not None and os.geteuid() == 0:
                os.chown(host, account.uid, account.gid)

    def _start_guard(self, ttl_s: float) -> None:
        if not self._fs.is_live:
            return
        guard = [sys.executable, self._fs.host_path(self.tool), "guard", self.run_id]
        tools = Tools(self._fs)
        # Only a machine whose first process is systemd has this directory, sd_booted(3).
        if os.geteuid() == 0 and self._fs.is_dir("/run/systemd/system") and tools.find("systemd-run"):
            # A guard that could not do its work is started again; one that could stops its timer.
            again = ["--timer-property=AccuracySec=1s", "--timer-property=OnUnitInactiveSec=10s"]
            timer = ["--unit", self.unit, f"--on-active={ttl_s:g}s", *again]
            done = tools.run(["systemd-run", "--quiet", "--collect", *timer, *guard])
            if done.ok:
                return
        run_detached(guard)

    # -- keeping

    def renew(self, ttl_s: float | None = None) -> bool:
        """Start the lease's time anew; False if there is no lease (any more). *ttl_s* replaces its length."""
        path = self._fs.host_path(self.alive)
        try:
            os.utime(path)
        except OSError:
            return False
        if ttl_s is not None:
            self._write_ttl(path, ttl_s)
        return True

    @staticmethod
    def _write_ttl(path: str, ttl_s: float) -> None:
        """In place, since the run's user may not make files beside it; and never empty, since the guard may look at any moment."""
        content = f"{ttl_s:g}\n".encode()
        handle = os.open(path, os.O_RDWR)
        try:
            if os.pread(handle, len(content) + 1, 0) != content:
                os.pwrite(handle, content, 0)
                os.ftruncate(handle, len(content))
        finally:
            os.close(handle)

    def expire(self) -> None:
        """Let the guard act at its next look."""
        with contextlib.suppress(OSError), open(self._fs.host_path(self.alive), "w", encoding="ascii") as file:
            file.write("0\n")

    def watch(self) -> Watch:
        return Watch(self._fs, self)

    def add_note(self, kind: str, value: t.Any) -> None:
        """Note what is about to be put on the node. Call it before doing so."""
        note = self.read_note()
        if kind not in note:
            self._save_note({**note, kind: value})

    def read_note(self) -> dict[str, t.Any]:
        try:
            note = json.loads(self._fs.read_text(self.note))
        except (OSError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}

    def _save_note(self, note: t.Mapping[str, t.Any]) -> None:
        # Readable by the run's user, whose agent reads it. It names paths and users, no secrets.
        self._fs.write_atomic(self.note, (json.dumps(note, sort_keys=True) + "\n").encode(), 0o644)

    # -- giving back

    def release(self, expired: bool = False) -> Released:
        """End the run's processes and remove its key, files and guard. What this user may not do is left to the guard.

        expired: nobody asked for it, so that a dead Ansible may have left its own temporary directories, too.
        """
        note = self.read_note()
        removed: list[str] = []
        left: list[str] = []
        # The key goes first: nothing new may come in while processes are being ended.
        for entry in [note["authorized_keys"]] if "authorized_keys" in note else []:
            try:
                keys = AuthorizedKeys(self._fs, Account.named(entry["user"]), entry["path"])
                if keys.take_out(self.run_id, entry):
                    removed.append(entry["path"])
            except (OSError, LookupError) as error:
                left.append(f"the run's line in {entry['path']}: {error}")
        ended = _run_processes.end_all(self._fs, self.run_id, self.directory) if self._fs.is_live else []
        if expired and note:
            removed += self._remove_ansible_directories(note)
            RunLock(self._fs).give_back(note.get("run", ""))
        removed += self._remove_shared_memory(note)
        left += self._remove_tree()
        if not left:
            self._fs.remove(self.note)
            for directory in (self._notes, os.path.dirname(self._notes), self._base):
                self._fs.remove_empty_dir(directory)
            self._stop_guard()
        return Released(tuple(ended), tuple(removed), tuple(left))

    def _remove_tree(self) -> list[str]:
        host = self._fs.host_path(self.directory)
        for _unused in range(3):  # a process that is just dying may still write
            shutil.rmtree(host, ignore_errors=True)
            if not os.path.exists(host):
                return []
            if os.geteuid() != 0:
                break
            time.sleep(0.2)
        self.expire()
        return [f"{self.directory}: its guard removes it"]

    def _remove_shared_memory(self, note: t.Mapping[str, t.Any]) -> list[str]:
        """Segments of NCCL and of MPI's shared-memory transport that a killed rank did not unlink, shm_overview(7)."""
        if not note or not self._fs.is_live:
            return []
        removed = []
        names = ("nccl-*", "vader_segment.*", "sm_segment.*", "ucx_shm_*")
        for path in [path for pattern in names for path in self._fs.glob("/dev/shm", pattern)]:
            with contextlib.suppress(OSError, LookupError):
                status = self._fs.stat(path, follow=False)
                recent = status.st_mtime >= float(note["armed_at"])
                if recent and status.st_uid == Account.named(note["user"]).uid and not self._is_mapped(path):
                    self._fs.remove(path)
                    removed.append(path)
        return removed

    def _is_mapped(self, path: str) -> bool:
        for pid in filter(str.isdigit, self._fs.listdir("/proc")):
            with contextlib.suppress(OSError):
                if path in self._fs.read_text(f"/proc/{pid}/maps"):
                    return True
        return False

    def _remove_ansible_directories(self, note: t.Mapping[str, t.Any]) -> list[str]:
        """~/.ansible/tmp/ansible-tmp-<time>-<pid>-<random> of an Ansible that died while a module of this run was on its way."""
        removed = []
        homes = {"/root"}
        with contextlib.suppress(LookupError):
            homes.add(Account.named(note["user"]).home)
        commands = [
            self._fs.read_value(f"/proc/{pid}/cmdline") or "" for pid in self._fs.listdir("/proc") if pid.isdigit()
        ]
        for path in [path for home in homes for path in self._fs.glob(f"{home}/.ansible/tmp", "ansible-tmp-*")]:
            began = re.match(r".*/ansible-tmp-(\d+)", path)
            with contextlib.suppress(OSError):
                idle = time.time() - self._fs.stat(path).st_mtime >= ANSIBLE_TMP_AGE_S
                ours = began is not None and float(began.group(1)) >= float(note["armed_at"]) - ANSIBLE_TMP_AGE_S
                if idle and ours and not any(path in command for command in commands):
                    shutil.rmtree(self._fs.host_path(path), ignore_errors=True)
                    removed.append(path)
        return removed

    def _stop_guard(self) -> None:
        tools = Tools(self._fs)
        if self._fs.is_live and self._fs.is_dir("/run/systemd/system") and tools.find("systemctl"):
            # The guard itself may be calling: it ends by returning, so only the timer is stopped then.
            tools.run(["systemctl", "--quiet", "stop", f"{self.unit}.timer"])


class Watch:
    """Tells whether a lease is still renewed. Counts on the monotonic clock, so that a step of the time of day changes nothing."""

    def __init__(self, fs: RootedFs, lease: Lease) -> None:
        self._fs = fs
        self._lease = lease
        self._stamp = -1
        self._since = time.monotonic()
        self._began = time.monotonic()
        self._max_s = float(lease.read_note().get("max_s", 86400.0))
        self._ttl_s = ARMING_S

    def seconds_left(self) -> float | None:
        """Seconds until the lease ends without a renewal, at most 0 when it has ended; None when it was given back."""
        path = self._lease.alive
        try:
            stamp = self._fs.stat(path).st_mtime_ns
            first_line = (
                self._fs.read_text(path).partition("\n")[0].strip()
            )  # what follows is of a longer one, just overwritten
            ttl_s = self._ttl_s = float(first_line) if first_line else self._ttl_s
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return 0.0
        now = time.monotonic()
        if stamp != self._stamp:
            first = self._stamp == -1
            self._stamp = stamp
            age = min(max(time.time() - stamp / 1e9, 0.0), ttl_s) if first else 0.0
            self._since = now - age
        return max(min(self._since + ttl_s, self._began + self._max_s) - now, 0.0)


def guard(lease: Lease) -> int:
    """Wait until the lease is given back or ends, and take back what is left then. The guard's whole life."""
    watch = lease.watch()
    while True:
        left = watch.seconds_left()
        if left is None:
            return 0
        if left <= 0.0:
            break
        time.sleep(min(TICK_S, left))
    released = lease.release(expired=True)
    return 1 if released.left else 0


def sweep(fs: RootedFs) -> dict[str, Released]:
    """Take back what earlier runs left on this node: notes whose lease is gone (a reboot) or has ended without its guard."""
    swept = {}
    for path in fs.glob(notes_of(default_base()), "*.json"):
        run_id = os.path.basename(path)[: -len(".json")]
        if not RUN_ID.fullmatch(run_id):
            continue
        lease = Lease(fs, run_id)
        left = lease.watch().seconds_left()
        # A note comes before its lease: one that is being armed in this moment has no lease yet either.
        age = time.time() - float(lease.read_note().get("armed_at", 0.0))
        if (left is None and not 0.0 <= age <= ARMING_S) or left == 0.0:
            swept[run_id] = lease.release(expired=True)
    return swept


def run_detached(argv: t.Sequence[str], environment: t.Mapping[str, str] | None = None) -> None:
    """Run *argv* as an orphan in a session of its own, without the caller's files: it outlives Ansible's connection."""
    child = os.fork()
    if child:
        _unused, status = os.waitpid(child, 0)
        if status:
            raise LeaseError(f"{argv[0]} could not be started")
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.closerange(3, 256)
        os.chdir("/")
        os.execve(argv[0], list(argv), {**os.environ, **(environment or {})})
    finally:
        os._exit(127)
