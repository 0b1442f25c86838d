# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whole files that a role owns: written atomically, foreign ones left alone, prior state restored. PRIVATE to the collection."""

from __future__ import annotations

import base64
import dataclasses
import os
import stat
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._prior_state import PriorState
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

#: what a file's first lines must hold to be taken for this collection's own
MARK = "Managed by gpufabric.cluster"

#: how many lines may stand before the mark (a shebang, a licence line)
MARK_WITHIN_LINES = 5

_FILES = "files"
_DIRECTORIES = "directories"


@dataclasses.dataclass(frozen=True)
class OwnedFile:
    """A file as it should be. path: absolute; content: whole text; mode: permission bits."""

    path: str
    content: str
    mode: int = 0o644


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was or would be done with one file.

    status: written, unchanged, foreign (somebody else's, left alone), restored, removed, changed_since (edited by
    somebody after us, left alone at rollback).
    before, after: text content, "" where there is no file.
    """

    path: str
    status: str
    before: str = ""
    after: str = ""

    @property
    def changed(self) -> bool:
        return self.status in ("written", "restored", "removed")

    def as_dict(self) -> dict[str, t.Any]:
        return dataclasses.asdict(self)


def is_ours(text: str) -> bool:
    """Whether a file's text carries this collection's mark in its header."""
    return any(MARK in line for line in text.splitlines()[:MARK_WITHIN_LINES])


def prior_text(fs: RootedFs, owner: str, path: str) -> str | None:
    """What lay at *path* before *owner* first wrote it, None where nothing did or the owner never wrote it.

    Raises CorruptStateError where the record cannot be read.
    """
    prior = PriorState(fs, owner).recall(_FILES).get(path)
    if not prior:
        return None
    if "link" in prior:
        try:
            return fs.read_text(os.path.join(os.path.dirname(path), prior["link"]))
        except OSError:
            return ""
    return base64.b64decode(prior["content"]).decode("utf-8", errors="replace")


class OwnedFiles:
    """All files of one owner (a role's name) on one node."""

    def __init__(self, fs: RootedFs, owner: str) -> None:
        self._fs = fs
        self._prior = PriorState(fs, owner)

    def apply(self, files: t.Sequence[OwnedFile], adopt: bool = False, check: bool = False) -> list[Outcome]:
        """Bring *files* into place, and give back those that this owner wrote earlier and no longer wants.

        adopt: take over a foreign file (kept for rollback). check: only say what would happen.
        Raises ValueError for a content without the mark, OSError where a file cannot be written.
        """
        for file in files:
            if not is_ours(file.content):
                raise ValueError(f"{file.path}: the content lacks the header '{MARK}'")
        wanted = {file.path for file in files}
        retired = [path for path in self._prior.recall(_FILES) if path not in wanted]
        return [self._apply_one(file, adopt, check) for file in files] + self.rollback(retired, check)

    def rollback(self, paths: t.Iterable[str] | None = None, check: bool = False) -> list[Outcome]:
        """Put back what was there before the first apply() of each path (all of them by default)."""
        kept = self._prior.recall(_FILES)
        outcomes = [self._restore_one(path, kept[path], check) for path in (kept if paths is None else paths)]
        if not check:
            self._prior.forget(_FILES, [outcome.path for outcome in outcomes])
            self._remove_our_directories()
        return outcomes

    def _apply_one(self, file: OwnedFile, adopt: bool, check: bool) -> Outcome:
        before = self._text(file.path)
        if before is not None and not is_ours(before) and not adopt:
            return Outcome(file.path, "foreign", before, before)
        if before == file.content and self._fs.mode(file.path) == file.mode:
            return Outcome(file.path, "unchanged", before, before)
        if not check:
            self._prior.remember(_FILES, {file.path: self._snapshot(file.path)})
            self._prior.remember(_DIRECTORIES, {path: None for path in self._fs.missing_parents(file.path)})
            if self._fs.is_link(file.path):
                self._fs.remove(file.path)  # the link was the vendor's; its target is not ours to write
            self._fs.write_atomic(file.path, file.content.encode(), file.mode)
        return Outcome(file.path, "written", before or "", file.content)

    def _restore_one(self, path: str, prior: t.Mapping[str, t.Any] | None, check: bool) -> Outcome:
        before = self._text(path)
        if before is not None and not is_ours(before):
            return Outcome(path, "changed_since", before, before)
        if prior is None:
            if not check:
                self._fs.remove(path)
            return Outcome(path, "removed" if before is not None else "unchanged", before or "", "")
        if not check:
            self._fs.remove(path)
            if "link" in prior:
                self._fs.symlink(prior["link"], path)
            else:
                content = base64.b64decode(prior["content"])
                self._fs.write_atomic(path, content, prior["mode"], (prior["uid"], prior["gid"]))
        after = (
            f"-> {prior['link']}" if "link" in prior else base64.b64decode(prior["content"]).decode(errors="replace")
        )
        return Outcome(path, "restored", before or "", after)

    def _text(self, path: str) -> str | None:
        """Content, "" for a dangling link, None for nothing there."""
        try:
            return self._fs.read_text(path)
        except FileNotFoundError:
            return "" if self._fs.is_link(path) else None

    def _snapshot(self, path: str) -> dict[str, t.Any] | None:
        link = self._fs.readlink(path)
        if link is not None:
            return {"link": link}
        if not self._fs.exists(path):
            return None
        status = self._fs.stat(path)
        return {
            "content": base64.b64encode(self._fs.read_bytes(path)).decode(),
            "mode": stat.S_IMODE(status.st_mode),
            "uid": status.st_uid,
            "gid": status.st_gid,
        }

    def _remove_our_directories(self) -> None:
        """Directories that apply() made go as well, innermost first, once they are empty."""
        made = sorted(self._prior.recall(_DIRECTORIES), key=len, reverse=True)
        self._prior.forget(_DIRECTORIES, [path for path in made if self._fs.remove_empty_dir(path)])
