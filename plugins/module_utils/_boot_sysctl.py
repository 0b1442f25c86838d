# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the next boot will make of a sysctl key, and by which line of which file. PRIVATE to the collection.

Sources: sysctl.d(5), systemd's src/sysctl/sysctl.c, procps' sysctl(8); for what comes after systemd-sysctl see _sysctl_setters.
"""

from __future__ import annotations

import dataclasses
import os
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._sysctl import Setting
from ansible_collections.gpufabric.cluster.plugins.module_utils._sysctl_conf import (
    Assignment,
    dotted,
    name_matches,
    parse,
    same_value,
)
from ansible_collections.gpufabric.cluster.plugins.module_utils._sysctl_setters import (
    Setter,
    setters_after_boot,
)

SYSCTL_CONF = "/etc/sysctl.conf"

#: a file hides those of the same name in the directories after its own (sysctl.d(5))
DIRECTORIES = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")

_SYSTEMD_SYSCTL = ("/usr/lib/systemd/systemd-sysctl", "/lib/systemd/systemd-sysctl")
_UNIT = "systemd-sysctl.service"


@dataclasses.dataclass(frozen=True)
class BootVerdict:
    """What becomes of one key at the next boot.

    status: kept (it will have the wanted value), lost (something sets another), unset (nothing sets it).
    value, path, line, setter: the last one to set it; path is "" where nothing does.
    """

    key: str
    wanted: str
    status: str
    value: str = ""
    path: str = ""
    line: int = 0
    setter: str = ""

    def as_dict(self) -> dict[str, t.Any]:
        return dataclasses.asdict(self)


class BootSysctl:
    """The files that set kernel parameters at boot, as they lie now."""

    def __init__(self, fs: RootedFs) -> None:
        self._fs = fs
        self.by_systemd = any(fs.exists(path) for path in _SYSTEMD_SYSCTL)
        self.problems: list[str] = []
        self.files = self._files()
        self._table = self._load()

    @property
    def reads_sysctl_conf(self) -> bool:
        """Whether the boot reads /etc/sysctl.conf: with systemd only by way of a link in one of the directories."""
        real = self._fs.resolve(SYSCTL_CONF)
        return any(self._fs.resolve(path) == real for path in self.files)

    @property
    def masked_by(self) -> str:
        """The path that keeps systemd-sysctl from running at all, "" where it runs."""
        for directory in ("/etc/systemd/system", "/run/systemd/system"):
            path = f"{directory}/{_UNIT}"
            if self.by_systemd and self._fs.readlink(path) == "/dev/null":
                return path
        return ""

    def assignment(self, name: str) -> Assignment | None:
        """The line that systemd-sysctl obeys for a path below /proc/sys, None where there is none.

        An explicit line beats every pattern, wherever it stands; of two patterns the later file's wins.
        """
        if self.masked_by:
            return None
        explicit = self._table.get(name)
        if explicit is not None:
            return explicit if explicit.value is not None else None
        patterns = [a for a in self._table.values() if a.is_glob and a.value is not None and name_matches(name, a.name)]
        return patterns[-1] if patterns else None

    def cancelled_by(self, name: str) -> Assignment | None:
        """The line "-name" that makes systemd-sysctl leave the key alone, if one does."""
        explicit = self._table.get(name)
        return explicit if explicit is not None and explicit.value is None else None

    def verdicts(self, settings: t.Iterable[Setting], home: str) -> list[BootVerdict]:
        """Each setting's fate. home: the file in which this collection keeps them.

        Raises nothing: files that cannot be read are in `problems`.
        """
        setters = setters_after_boot(self._fs)
        return [self._verdict(setting, home, setters) for setting in settings]

    def _verdict(self, setting: Setting, home: str, setters: t.Sequence[Setter]) -> BootVerdict:
        key = dotted(setting.name)
        last = self.assignment(setting.name)
        verdict = BootVerdict(key, setting.value, "unset")
        if last is not None and last.value is not None:
            verdict = _by(verdict, last, "systemd-sysctl" if self.by_systemd else "sysctl --system")
        else:
            cancelled = self.cancelled_by(setting.name)
            if cancelled is not None:
                verdict = dataclasses.replace(
                    verdict, path=cancelled.path, line=cancelled.line, setter="systemd-sysctl"
                )
        for setter in setters:
            final = setter.last(setting.name, home)
            if final is not None:
                verdict = _by(verdict, final, setter.name)
        return verdict

    def _files(self) -> list[str]:
        """Paths in the order in which they are read: by name over all directories."""
        chosen: dict[str, str] = {}
        for directory in DIRECTORIES:
            for path in self._fs.glob(directory, "*.conf"):
                chosen.setdefault(os.path.basename(path), path)
        files = [chosen[name] for name in sorted(chosen)]
        if not self.by_systemd and self._fs.exists(SYSCTL_CONF):
            files.append(SYSCTL_CONF)  # procps: always the last
        return files

    def _load(self) -> dict[str, Assignment]:
        """{name or pattern: the line that counts}, in the order in which systemd-sysctl would write them."""
        table: dict[str, Assignment] = {}
        for path in self.files:
            try:
                masked = self._fs.readlink(path) == "/dev/null"
                lines = [] if masked else self._fs.read_text(path).splitlines()
            except OSError as error:
                self.problems.append(f"{path} cannot be read: {error.strerror}")
                continue
            assignments, problems = parse(lines, path)
            self.problems += problems
            for assignment in assignments:
                earlier = table.get(assignment.name)
                if earlier is not None and earlier.value == assignment.value:
                    continue  # it keeps the place of the first
                table.pop(assignment.name, None)
                table[assignment.name] = assignment
        return table


def _by(verdict: BootVerdict, last: Assignment, setter: str) -> BootVerdict:
    value = last.value or ""
    status = "kept" if same_value(value, verdict.wanted) else "lost"
    return dataclasses.replace(verdict, status=status, value=value, path=last.path, line=last.line, setter=setter)
