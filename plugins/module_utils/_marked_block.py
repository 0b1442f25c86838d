# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A marked block of ours at the end of somebody else's file, for /etc/sysctl.conf. PRIVATE to the collection."""

from __future__ import annotations

import base64

from ansible_collections.gpufabric.cluster.plugins.module_utils._owned_file import MARK, Outcome
from ansible_collections.gpufabric.cluster.plugins.module_utils._prior_state import PriorState
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

BEGIN = f"# BEGIN {MARK}"
END = f"# END {MARK}"

_BLOCKS = "blocks"


def without_block(text: str, path: str) -> str:
    """*text* without our block; ValueError where only one of its two marks is there, for then its end is a guess."""
    lines = text.splitlines(keepends=True)
    begins = [n for n, line in enumerate(lines) if line.strip() == BEGIN]
    ends = [n for n, line in enumerate(lines) if line.strip() == END]
    if not begins and not ends:
        return text
    if len(begins) != 1 or len(ends) != 1 or ends[0] < begins[0]:
        raise ValueError(f"{path}: the lines '{BEGIN}' and '{END}' must each stand there once, in this order")
    return "".join(lines[: begins[0]] + lines[ends[0] + 1 :])


def with_block(text: str, body: str, path: str) -> str:
    """*text* with our block at its end, where it beats every earlier line of the file."""
    rest = without_block(text, path)
    if rest and not rest.endswith("\n"):
        rest += "\n"
    return f"{rest}{BEGIN}\n{body}{END}\n"


class MarkedBlock:
    """The block of one owner in one file, and the file as it was before."""

    def __init__(self, fs: RootedFs, owner: str) -> None:
        self._fs = fs
        self._prior = PriorState(fs, f"{owner}-blocks")

    def apply(self, path: str, body: str, check: bool = False) -> Outcome:
        """Put *body* into the block of *path*; the rest of the file, its mode and its owner stay."""
        before = self._text(path)
        after = with_block(before or "", body, path)
        if before == after:
            return Outcome(path, "unchanged", after, after)
        if not check:
            kept = None if before is None else base64.b64encode(self._fs.read_bytes(path)).decode()
            self._prior.remember(_BLOCKS, {path: kept})
            self._write(path, after.encode("utf-8", errors="surrogateescape"))
        return Outcome(path, "written", before or "", after)

    def rollback(self, keep: str = "", check: bool = False) -> list[Outcome]:
        """Take the block out of every file but *keep*; what others wrote around it since stays."""
        outcomes = []
        for path, kept in self._prior.recall(_BLOCKS).items():
            if path == keep:
                continue
            outcomes.append(self._take_out(path, kept, check))
            if not check:
                self._prior.forget(_BLOCKS, [path])
        return outcomes

    def _take_out(self, path: str, kept: str | None, check: bool) -> Outcome:
        before = self._text(path)
        if before is None:
            return Outcome(path, "unchanged")
        rest = without_block(before, path)
        original = base64.b64decode(kept) if kept is not None else b""
        # the newline that the block needed before it was not in the original
        after = (
            original if rest.encode("utf-8", errors="surrogateescape").rstrip(b"\n") == original.rstrip(b"\n") else None
        )
        content = rest.encode("utf-8", errors="surrogateescape") if after is None else after
        shown = content.decode("utf-8", errors="surrogateescape")
        if kept is None and not content.strip():
            if not check:
                self._fs.remove(path)
            return Outcome(path, "removed", before, "")
        if shown == before:
            return Outcome(path, "unchanged", before, before)
        if not check:
            self._write(path, content)
        return Outcome(path, "restored", before, shown)

    def _text(self, path: str) -> str | None:
        try:
            return self._fs.read_bytes(path).decode("utf-8", errors="surrogateescape")
        except FileNotFoundError:
            return None

    def _write(self, path: str, content: bytes) -> None:
        if self._fs.exists(path):
            status = self._fs.stat(path)
            self._fs.write_atomic(path, content, self._fs.mode(path), (status.st_uid, status.st_gid))
        else:
            self._fs.write_atomic(path, content)
