# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Runs a tool without a shell, bounded in time, and ends all that it started. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pwd
import signal
import subprocess
import time
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

#: where vendors put their tools besides the usual places
SEARCH_PATH = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/opt/mellanox/bin",
    "/usr/mft/bin",
)

#: how long a process group gets between SIGTERM and SIGKILL, in seconds
GRACE_S = 2.0


@dataclasses.dataclass(frozen=True)
class Completed:
    """What became of one command. rc is None where it never ran (missing) or was ended by the time limit."""

    argv: tuple[str, ...]
    rc: int | None
    stdout: str
    stderr: str
    seconds: float
    missing: bool = False
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return self.rc == 0

    @property
    def problem(self) -> str:
        """One sentence about why this is no good answer, "" where it is one."""
        name = self.argv[0]
        if self.missing:
            return f"{name} is not installed"
        if self.timed_out:
            return f"{name} did not end within {self.seconds:.0f} s and was ended"
        if self.rc:
            last = (self.stderr.strip() or self.stdout.strip()).splitlines()[-1:]
            how = f"was ended by signal {-self.rc}" if self.rc < 0 else f"ended with exit status {self.rc}"
            return f"{name} {how}" + (f": {last[0].strip()}" if last else "")
        return ""


class Tools:
    """The programs of one node: the machine's own, or, for a captured or simulated root, the recorded ones below it."""

    def __init__(self, fs: RootedFs) -> None:
        self.fs = fs

    def find(self, name: str) -> str | None:
        """Where the program lies on this machine, or None. A name with a slash is taken as a path below the root."""
        for candidate in [name] if "/" in name else [f"{directory}/{name}" for directory in SEARCH_PATH]:
            if self.fs.exists(candidate) and os.access(self.fs.host_path(candidate), os.X_OK):
                return self.fs.host_path(candidate)
        return None

    def run(
        self,
        argv: t.Sequence[str],
        timeout: float = 20.0,
        env: t.Mapping[str, str] | None = None,
        stdin: str = "",
        account: Account | None = None,
    ) -> Completed:
        """Run *argv*, at most *timeout* seconds; then its whole process group is ended. Output so far is kept.

        The environment is the caller's with LC_ALL=C, plus *env*. With *account* it runs as that user, in that home. Never raises
        for what the program does.
        """
        program = self.find(argv[0])
        if program is None:
            return Completed(tuple(argv), None, "", "", 0.0, missing=True)
        environment = {**os.environ, "LC_ALL": "C", **(account.environment if account else {}), **(env or {})}
        began = time.monotonic()
        try:
            process = subprocess.Popen(
                [program, *argv[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
                **_as_user(account),
            )
        except OSError as error:
            return Completed(tuple(argv), 126, "", str(error), time.monotonic() - began)
        timed_out = False
        try:
            out, err = process.communicate(stdin.encode(), timeout=timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            end_group(process)
            out, err = process.communicate()
        except BaseException:
            end_group(process)
            raise
        return Completed(
            tuple(argv),
            None if timed_out else process.returncode,
            out.decode("utf-8", errors="replace"),
            err.decode("utf-8", errors="replace"),
            time.monotonic() - began,
            timed_out=timed_out,
        )

    def start(
        self,
        argv: t.Sequence[str],
        env: t.Mapping[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | t.IO[bytes] = subprocess.PIPE,
        stderr: int | t.IO[bytes] = subprocess.PIPE,
        account: Account | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start *argv* as the leader of a process group and leave it running: the caller waits and calls end_group().

        With *account* it runs as that user, in that home. FileNotFoundError names a program that is not installed.
        """
        program = self.find(argv[0])
        if program is None:
            raise FileNotFoundError(f"{argv[0]} is not installed")
        environment = {**os.environ, "LC_ALL": "C", **(account.environment if account else {}), **(env or {})}
        return subprocess.Popen(
            [program, *argv[1:]],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            start_new_session=True,
            **{"cwd": "/", **_as_user(account)},
        )


@dataclasses.dataclass(frozen=True)
class Account:
    """A user of the node, as getpwnam(3) and getgrouplist(3) describe it."""

    name: str
    uid: int
    gid: int
    home: str
    groups: tuple[int, ...] = ()

    @classmethod
    def named(cls, name: str) -> Account:
        """LookupError says which user the node does not have."""
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise LookupError(f"this node has no user {name!r}") from None
        groups = tuple(os.getgrouplist(name, entry.pw_gid))
        return cls(name, entry.pw_uid, entry.pw_gid, entry.pw_dir, groups)

    @classmethod
    def behind(cls, name: str = "") -> Account:
        """The user *name*, or without one the user who became root by sudo, or the user of this process."""
        return cls.named(name or os.environ.get("SUDO_USER") or pwd.getpwuid(os.geteuid()).pw_name)

    @property
    def environment(self) -> dict[str, str]:
        """What login(1) would set for this user."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


def _as_user(account: Account | None) -> dict[str, t.Any]:
    """What of Popen() makes a program run as *account*, in its home; only root can become another user."""
    if account is None:
        return {}
    home = {"cwd": account.home if os.path.isdir(account.home) else "/"}
    if os.geteuid() != 0 or account.uid == 0:
        return home
    return {**home, "user": account.uid, "group": account.gid, "extra_groups": account.groups}


def end_group(process: subprocess.Popen[bytes], grace: float = GRACE_S) -> None:
    """End the process group that *process* leads: SIGTERM, then SIGKILL for what is left after *grace* seconds."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace)
        os.killpg(process.pid, signal.SIGKILL)
