# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every place on a node that sets an NCCL variable, and whatever rewrites /etc/nccl.conf. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils import _nccl_conf
from ansible_collections.gpufabric.cluster.plugins.module_utils._owned_file import is_ours
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

#: {kind: files and patterns} that reach a rank's environment; ~ is the rank's home
PLACES: dict[str, tuple[str, ...]] = {
    "PAM": ("/etc/environment", "/etc/security/pam_env.conf"),
    "login shell": (
        "/etc/profile",
        "/etc/profile.d/*.sh",
        "/etc/zsh/zprofile",
        "/etc/zprofile",
        "~/.profile",
        "~/.bash_profile",
        "~/.bash_login",
        "~/.zprofile",
    ),
    "csh": ("/etc/csh.login", "/etc/csh.cshrc", "/etc/profile.d/*.csh", "~/.login", "~/.cshrc", "~/.tcshrc"),
    "shell": ("/etc/bash.bashrc", "/etc/bashrc", "/etc/zsh/zshenv", "/etc/zshenv", "~/.bashrc", "~/.zshenv"),
    "SSH": ("~/.ssh/environment", "/etc/ssh/sshd_config", "/etc/ssh/sshd_config.d/*.conf"),
    "systemd": (
        "/etc/environment.d/*.conf",
        "/usr/lib/environment.d/*.conf",
        "~/.config/environment.d/*.conf",
        "/etc/systemd/system.conf",
        "/etc/systemd/system.conf.d/*.conf",
        "/etc/systemd/user.conf",
        "/etc/systemd/user.conf.d/*.conf",
        "/etc/systemd/system/*.service",
        "/etc/systemd/system/*.service.d/*.conf",
    ),
    "Slurm": ("/etc/default/slurmd", "/etc/sysconfig/slurmd", "/etc/slurm/*prolog*", "/etc/slurm/*prolog*.d/*"),
    "Open MPI": ("/etc/openmpi/openmpi-mca-params.conf", "~/.openmpi/mca-params.conf"),
}

#: where scripts lie that vendors run at boot
SCRIPTS = (
    "/etc/rc.local",
    "/etc/rc.d/rc.local",
    "/etc/init.d/*",
    "/etc/systemd/system/*.service",
    "/etc/cron.d/*",
    "/etc/cron.hourly/*",
    "/etc/cron.daily/*",
    "/etc/profile.d/*",
    "/etc/tmpfiles.d/*.conf",
    "/etc/udev/rules.d/*.rules",
    "/var/lib/cloud/scripts/per-boot/*",
    "/var/lib/cloud/scripts/per-instance/*",
    "/usr/local/bin/*",
    "/usr/local/sbin/*",
    "/opt/*/*.sh",
    "/opt/*/*/*.sh",
)

#: larger files are programs or data, and no configuration
LARGEST = 256 * 1024

#: settings listed of one node: enough to find the culprit
MOST = 64

_VALUE = r"(\"[^\"]*\"|'[^']*'|[^\s;\"'}]+)"
_SETS = re.compile(
    rf"(?<![\w#$])(NCCL_[A-Z0-9_]+)(?::?=|\s*=\s*|\s+DEFAULT=){_VALUE}|\bsetenv\s+(NCCL_[A-Z0-9_]+)\s+{_VALUE}"
)
_WRITES = re.compile(r">|\btee\b|\bcp\b|\bmv\b|\bln\b|\binstall\b|\bsed\s+-i|\brsync\b|^[fFCL]\+?\s")
_EXECUTED = re.compile(r"^\s*Exec\w*=[-@:+!]*(/\S+)", re.MULTILINE)


def settings(fs: RootedFs, home: str) -> list[dict[str, t.Any]]:
    """[{path, kind, line, name, value}] of every line that sets NCCL_* outside the files of this collection."""
    found: list[dict[str, t.Any]] = []
    for kind, patterns in PLACES.items():
        for path in _expand(fs, patterns, home):
            text = _text(fs, path)
            if "NCCL_" not in text or is_ours(text):
                continue
            for number, line in enumerate(text.splitlines(), 1):
                for name, value in _assignments(line):
                    found.append({"path": path, "kind": kind, "line": number, "name": name, "value": value})
    return found[:MOST]


def _assignments(line: str) -> t.Iterator[tuple[str, str]]:
    """(name, value) of what a shell-like line sets, as far as it can be told without a shell."""
    if line.lstrip().startswith(("#", "unset")):
        return
    for match in _SETS.finditer(line):
        name, value = match.group(1) or match.group(3), match.group(2) or match.group(4)
        if _nccl_conf.is_nccl(name):
            yield name, value[1:-1] if value[0] in "\"'" else value


def user_files(fs: RootedFs, home: str, version: _nccl_conf.Version) -> list[dict[str, t.Any]]:
    """[{path, variables}] of every ~/.nccl.conf on the node, the rank's own first: each beats /etc/nccl.conf."""
    homes = [home, "/root", *(f"/home/{name}" for name in fs.listdir("/home"))]
    homes += [fields[5] for fields in _accounts(fs)]
    found = []
    for directory in dict.fromkeys(h.rstrip("/") for h in homes if h.startswith("/")):
        path = f"{directory}/{_nccl_conf.USER_FILE}"
        if fs.is_file(path):
            given = _nccl_conf.variables(_text(fs, path), version)
            found.append({"path": path, "variables": {n: v for n, v in given.items() if _nccl_conf.is_nccl(n)}})
    return found


def _accounts(fs: RootedFs) -> t.Iterator[list[str]]:
    for line in (fs.read_value("/etc/passwd") or "").splitlines():
        fields = line.split(":")
        if len(fields) >= 7 and not fields[6].endswith(("nologin", "false")):
            yield fields


def writers(fs: RootedFs) -> list[dict[str, t.Any]]:
    """[{path, line, text}] of scripts and units that write /etc/nccl.conf, also those that a unit starts."""
    paths = list(_expand(fs, SCRIPTS, ""))
    for path in [path for path in paths if path.endswith(".service")]:
        paths += [program for program in _EXECUTED.findall(_text(fs, path)) if fs.is_file(program)]
    found: list[dict[str, t.Any]] = []
    for path in dict.fromkeys(paths):
        text = _text(fs, path)
        if "nccl.conf" not in text or is_ours(text):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if _nccl_conf.SYSTEM_FILE in line and _WRITES.search(line) and not line.lstrip().startswith("#"):
                found.append(
                    {
                        "path": path,
                        "line": number,
                        "text": "(a line with a key)" if _nccl_conf.SECRET in line else line.strip()[:200],
                    }
                )
                break
    return found[:MOST]


def _expand(fs: RootedFs, patterns: t.Iterable[str], home: str) -> t.Iterator[str]:
    """Existing files that the patterns name; a wildcard may stand in any component."""
    for pattern in patterns:
        if pattern.startswith("~"):
            if not home:
                continue
            pattern = home.rstrip("/") + pattern[1:]
        directories = [""]
        *parents, last = pattern.strip("/").split("/")
        for part in parents:
            directories = (
                [path for d in directories for path in fs.glob(d or "/", part) if fs.is_dir(path)]
                if "*" in part
                else [f"{d}/{part}" for d in directories]
            )
        for directory in directories:
            for path in fs.glob(directory, last) if "*" in last else [f"{directory}/{last}"]:
                if fs.is_file(path):
                    yield path


def _text(fs: RootedFs, path: str) -> str:
    """A configuration file's text, "" for one that is too large, binary or unreadable."""
    try:
        if fs.stat(path).st_size > LARGEST:
            return ""
        text = fs.read_text(path)
    except OSError:
        return ""
    return "" if "\0" in text else text
