# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What was there before the collection's first change, kept until rollback. PRIVATE to the collection."""

from __future__ import annotations

import json
import os
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

DIRECTORY = "/var/lib/gpufabric/prior"


class CorruptStateError(Exception):
    """The recorded prior state cannot be read; nothing may be restored or overwritten on a guess."""


class PriorState:
    """The first value seen of each (kind, name) of one role: never overwritten until forget().

    Kept in /var/lib/gpufabric/prior/<owner>.json (mode 0600: it may hold a vendor's configuration).
    """

    def __init__(self, fs: RootedFs, owner: str) -> None:
        self._fs = fs
        self.path = f"{DIRECTORY}/{owner}.json"
        self._kept = self._load()

    def _load(self) -> dict[str, dict[str, t.Any]]:
        try:
            kept = json.loads(self._fs.read_text(self.path))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise CorruptStateError(f"{self.path} cannot be read ({error}); move it away to start anew") from error
        if not isinstance(kept, dict) or not all(isinstance(section, dict) for section in kept.values()):
            raise CorruptStateError(f"{self.path} holds no table of prior values; move it away to start anew")
        return kept

    def remember(self, kind: str, values: t.Mapping[str, t.Any]) -> None:
        """Keep each value that is not kept already. Call it before the change, so that a crash loses nothing."""
        section = self._kept.setdefault(kind, {})
        new = {name: value for name, value in values.items() if name not in section}
        if new:
            section.update(new)
            self._save()

    def recall(self, kind: str) -> dict[str, t.Any]:
        """{name: value before the first change} of *kind*."""
        return dict(self._kept.get(kind, {}))

    def forget(self, kind: str, names: t.Iterable[str] | None = None) -> None:
        """Drop what was restored; the file goes with its last entry."""
        section = self._kept.get(kind, {})
        for name in list(section) if names is None else names:
            section.pop(name, None)
        if not section:
            self._kept.pop(kind, None)
        self._save()

    def _save(self) -> None:
        if self._kept:
            self._fs.write_atomic(
                self.path, (json.dumps(self._kept, indent=1, sort_keys=True) + "\n").encode(), mode=0o600
            )
        else:
            self._fs.remove(self.path)
            for directory in (DIRECTORY, os.path.dirname(DIRECTORY)):
                self._fs.remove_empty_dir(directory)
