# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Puts one line of a run into a user's authorized_keys and takes exactly that line out again. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import os
import time
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Account
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

#: how often a file that somebody else replaced in the same moment is written again
ATTEMPTS = 5


@contextlib.contextmanager
def acting_as(account: Account) -> t.Iterator[None]:
    """Touch files as the user: a home on NFS with root_squash refuses root, and new files belong to the user at once."""
    if os.geteuid() != 0 or account.uid == 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups(list(account.groups))
    os.setegid(account.gid)
    os.seteuid(account.uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def comment(run_id: str) -> str:
    """The last word of the run's line, by which it is found again."""
    return f"gpufabric-run-{run_id}"


def line(public_key: str, sources: t.Sequence[str], expires_at: float, run_id: str) -> str:
    """One line of authorized_keys, sshd(8): no forwarding, no terminal, no user rc; from *sources* only; until *expires_at*.

    expires_at: seconds since the epoch. It is written in the node's own time zone: the suffix Z came with OpenSSH 9.1 only,
    and an older sshd refuses a key whose time it cannot read.
    """
    kind, key = public_key.split()[:2]
    expiry = time.strftime("%Y%m%d%H%M%S", time.localtime(expires_at))
    return f'restrict,from="{",".join(sources)}",expiry-time="{expiry}" {kind} {key} {comment(run_id)}'


class AuthorizedKeys:
    """The authorized_keys file of one user below *fs*."""

    def __init__(self, fs: RootedFs, account: Account, path: str = "") -> None:
        self._fs = fs
        self._account = account
        self.path = path or f"{account.home}/.ssh/authorized_keys"

    def _read(self) -> str | None:
        try:
            return self._fs.read_bytes(self.path).decode("utf-8", errors="surrogateescape")
        except FileNotFoundError:
            return None

    def before(self) -> dict[str, t.Any]:
        """What take_out() needs to know about the time before put_in(): noted first, so that a crash loses nothing."""
        with acting_as(self._account):
            text = self._read()
            return {
                "path": self.path,
                "user": self._account.name,
                "absent": text is None,
                "no_newline": bool(text) and not str(text).endswith("\n"),
                "made": self._fs.missing_parents(self.path),
            }

    def put_in(self, new: str) -> bool:
        """Append *new* unless it is there; True if the file changed. Every other byte stays."""
        with acting_as(self._account):
            for directory in self._fs.missing_parents(self.path):
                os.mkdir(self._fs.host_path(directory), 0o700)

            def added(text: str) -> str:
                return text + ("\n" if text and not text.endswith("\n") else "") + new + "\n"

            return self._rewrite(lambda text: text if new in text.splitlines() else added(text))

    def take_out(self, run_id: str, before: t.Mapping[str, t.Any]) -> bool:
        """Remove the lines of *run_id*, and the file and directory if this run made them; True if something was removed."""
        mark = " " + comment(run_id)

        def without(text: str) -> str:
            kept = "".join(entry for entry in text.splitlines(keepends=True) if not entry.rstrip().endswith(mark))
            unchanged = kept == text
            return kept[:-1] if before.get("no_newline") and not unchanged and kept.endswith("\n") else kept

        with acting_as(self._account):
            if self._read() is None:
                return False
            changed = self._rewrite(without)
            if before.get("absent") and self._read() == "":
                self._fs.remove(self.path)
                for directory in reversed(before.get("made", [])):
                    self._fs.remove_empty_dir(directory)
            return changed

    def _rewrite(self, edit: t.Callable[[str], str]) -> bool:
        """Replace the file by edit(text). With a home shared by many nodes others write too: read back, and try again."""
        changed = False
        for attempt in range(ATTEMPTS):
            text = self._read()
            new = edit(text or "")
            if new == (text or "") and text is not None:
                return changed
            mode, owner = 0o600, None
            if text is not None:
                status = self._fs.stat(self.path)
                mode, owner = status.st_mode & 0o777, (status.st_uid, status.st_gid)
            if owner is None and os.geteuid() == 0:
                owner = (self._account.uid, self._account.gid)
            content = new.encode("utf-8", errors="surrogateescape")
            self._fs.write_atomic(self.path, content, mode, owner)
            changed = True
            if self._read() == new:
                return True
            time.sleep(0.05 * (attempt + 1))
        raise OSError(f"{self.path} is being rewritten by somebody else; it was tried {ATTEMPTS} times")
