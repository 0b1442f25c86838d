# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What else on a node sets NCCL variables, or rewrites its nccl.conf, and so stands against what was resolved."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding

CONF = "/etc/nccl.conf"

#: how the ways of starting a rank are called in a sentence
WAYS = {
    "login": "a login shell",
    "ssh": "a command over SSH",
    "mpirun": "a rank of mpirun",
    "systemd": "a systemd service",
    "library": "the library itself",
}


def said(ways: t.Sequence[str]) -> str:
    """Ways as the subject of a sentence."""
    return " and ".join(WAYS[way] for way in ways)


class Conflicts:
    """Findings about one node. observed: nccl_env_info's; values: {variable: resolved value}."""

    def __init__(self, name: str, observed: t.Mapping[str, t.Any], values: t.Mapping[str, str]) -> None:
        self.name = name
        self.observed = observed
        self.values = values

    def _finding(self, kind: str, severity: str, subject: str, evidence: str, **more: str) -> Finding:
        return Finding(kind, severity, self.name, subject, evidence, **more)

    def findings(self) -> t.Iterator[Finding]:
        yield from self._user_files()
        yield from self._conf_file()
        yield from self._set_elsewhere()
        for writer in self.observed.get("writers", []):
            yield self._finding(
                "nccl_conf_rewritten",
                "warning",
                CONF,
                f"{writer['path']} line {writer['line']} writes {CONF}: {writer['text']}",
                expected="one owner of the file",
                cause="a vendor's script that runs again, as at boot, replaces what this role wrote",
                fix=f"disable {writer['path']}, and set nccl_env_adopt: true so that its variables stay",
            )
        conf = self.observed.get("conf", {})
        for line in conf.get("lines", []) if not conf.get("ours") else []:
            if line["oddity"]:
                yield self._finding(
                    "nccl_conf_line_odd",
                    "warning",
                    f"{CONF} line {line['number']}",
                    f"{line['name']}={line['value']}: {line['oddity']}",
                    expected="NAME=VALUE, nothing else on the line",
                    fix=f"correct line {line['number']} of {CONF}",
                )

    def _user_files(self) -> t.Iterator[Finding]:
        own = f"{self.observed.get('home', '').rstrip('/')}/.nccl.conf"
        for file in self.observed.get("user_files", []):
            given = {name: value for name, value in file["variables"].items() if name.startswith("NCCL_")}
            against = [n for n, v in given.items() if n in self.values and v != self.values[n]]
            listed = ", ".join(f"{n}={v}" for n, v in given.items()) or "nothing"
            yield self._finding(
                "nccl_user_conf",
                "error" if against and file["path"] == own else "warning",
                file["path"],
                f"{file['path']} sets {listed}"
                + (f", against the resolved {', '.join(f'{n}={self.values[n]}' for n in against)}" if against else ""),
                expected=f"no such file: {CONF} is for all ranks",
                cause=f"for its owner's ranks it comes before {CONF}",
                fix=f"rm {file['path']}, after moving what is meant to nccl_env_variables",
            )

    def _conf_file(self) -> t.Iterator[Finding]:
        for way, seen in self.observed.get("ways", {}).items():
            path = seen["environment"].get("NCCL_CONF_FILE")
            if path:
                yield self._finding(
                    "nccl_conf_file_set",
                    "warning",
                    "NCCL_CONF_FILE",
                    f"{said([way])} has NCCL_CONF_FILE={path}",
                    expected="no NCCL_CONF_FILE",
                    cause=f"from NCCL 2.23 on, that file comes before {CONF}, and ~/.nccl.conf is not read",
                    fix="unset NCCL_CONF_FILE where it is exported",
                )
                return

    def _set_elsewhere(self) -> t.Iterator[Finding]:
        for line in self.observed.get("settings", []):
            name, value = line["name"], line["value"]
            same = self.values.get(name) == value
            yield self._finding(
                "nccl_set_elsewhere",
                "notice" if same else "warning",
                f"{line['path']} line {line['line']}",
                f"{line['path']} line {line['line']} ({line['kind']}) sets {name}={value}",
                expected=f"{name}={self.values[name]}" if name in self.values else f"no {name}",
                cause="the same value in two places drifts apart"
                if same
                else f"an export of an earlier time; the environment comes before {CONF}",
                fix=f"remove line {line['line']} of {line['path']}",
            )
