# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The environment that a rank gets, by the way in which it is started. PRIVATE to the collection.

login: a login shell, as for sbatch --export=NONE or su -l. ssh: a command over SSH without a terminal, as launchers start
their daemons; read from the very session that this process belongs to. mpirun: a local rank. systemd: a service.
"""

from __future__ import annotations

import os
import pwd
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_conf import is_nccl
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

WAYS = ("login", "ssh", "mpirun", "systemd")

#: programs that hand on an environment other than the one they were given
CHANGES_USER = ("sudo", "su", "runuser", "doas", "pbrun", "dzdo", "pfexec")

#: login shells that take -l and -c together; another one is replaced by bash
SHELLS = ("bash", "sh", "dash", "zsh", "ksh")

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: variables kept besides NCCL_*: they decide which library and which files count
KEPT = ("LD_LIBRARY_PATH", "LD_PRELOAD", "HOME")

Environment = dict[str, str]


class User(t.NamedTuple):
    """name: login name; home: home directory; shell: path of the login shell."""

    name: str
    home: str
    shell: str


def find_user(fs: RootedFs, name: str) -> User | None:
    """The account *name* (of this process, if empty) from the node's /etc/passwd, else from the name service."""
    wanted = name or _own_name()
    for line in (fs.read_value("/etc/passwd") or "").splitlines():
        fields = line.split(":")
        if len(fields) >= 7 and fields[0] == wanted:
            return User(wanted, fields[5], fields[6])
    if not fs.is_live:
        return None
    try:
        entry = pwd.getpwnam(wanted)
    except KeyError:
        return None
    return User(wanted, entry.pw_dir, entry.pw_shell)


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def session(fs: RootedFs, pid: int | None = None) -> tuple[Environment, bool]:
    """The environment with which this process's SSH session runs commands, and whether it is an SSH session.

    Where a program such as sudo stands between, its own initial environment is the session's (proc(5), environ); root
    may read it. pid: whose session, this process by default.
    """
    own = dict(os.environ) if pid is None else _environ(fs, pid)
    over_ssh = False
    for ancestor, command in _ancestors(fs, os.getpid() if pid is None else pid):
        if command in CHANGES_USER:
            own = _environ(fs, ancestor) or own
        over_ssh = over_ssh or command.startswith("sshd")
    return own, over_ssh


def _ancestors(fs: RootedFs, pid: int) -> t.Iterator[tuple[int, str]]:
    while pid > 1:
        status = fs.read_value(f"/proc/{pid}/status") or ""
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        yield pid, fields.get("Name", "").strip()
        parent = fields.get("PPid", "").strip()
        pid = int(parent) if parent.isdigit() else 0


def _environ(fs: RootedFs, pid: int) -> Environment:
    try:
        return parse_environment(fs.read_bytes(f"/proc/{pid}/environ").decode("utf-8", errors="replace"))
    except OSError:
        return {}


def parse_environment(text: str) -> Environment:
    """NUL-separated NAME=VALUE (env -0, /proc/PID/environ), or lines where no NUL is in it."""
    entries = text.split("\0") if "\0" in text else text.splitlines()
    pairs = (entry.lstrip("\n").partition("=") for entry in entries)
    return {name: value for name, equals, value in pairs if equals and re.match(r"[A-Za-z_]\w*$", name)}


def login(tools: Tools, user: User, timeout: float) -> tuple[Environment, str]:
    """What a login shell of *user* has, and one sentence if it could not be asked."""
    base = {**pam_environment(tools.fs), **_identity(user)}
    shell = user.shell if user.shell.rpartition("/")[2] in SHELLS else "bash"
    return _ask(tools, user, base, [shell, "-l", "-c", "env -0"], timeout)


def mpirun(tools: Tools, user: User, session_environment: Environment, timeout: float) -> tuple[Environment, str]:
    """What one local rank has that mpirun starts out of the SSH session, and a sentence if it cannot be asked."""
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    base = {"PATH": PATH, **session_environment, **_identity(user), **allowed}
    return _ask(tools, user, base, ["mpirun", "-np", "1", "env", "-0"], timeout)


def systemd(tools: Tools, timeout: float) -> tuple[Environment, str]:
    """What the system manager hands to services that set nothing themselves."""
    done = tools.run(["systemctl", "show-environment"], timeout=timeout)
    return ({}, done.problem) if done.problem else (parse_environment(done.stdout), "")


def _identity(user: User) -> Environment:
    return {
        "HOME": user.home,
        "USER": user.name,
        "LOGNAME": user.name,
        "SHELL": user.shell or "/bin/sh",
        "TERM": "dumb",
    }


def _ask(
    tools: Tools, user: User, environment: Environment, argv: t.Sequence[str], timeout: float
) -> tuple[Environment, str]:
    """Run *argv* as *user* with exactly this environment, and parse what it prints."""
    environment = {"PATH": PATH, **environment}
    prefix = [] if user.name == _own_name() else ["runuser", "-u", user.name, "--"]
    pairs = [f"{name}={value}" for name, value in environment.items()]
    done = tools.run([*prefix, "env", "-i", *pairs, *argv], timeout=timeout)
    answer = parse_environment(done.stdout)
    if answer:
        return answer, ""
    return {}, done.problem or f"{argv[0]} printed no environment"


def pam_environment(fs: RootedFs) -> Environment:
    """What pam_env(8) takes from /etc/environment: NAME=VALUE, perhaps quoted or behind `export`."""
    found = {}
    for line in (fs.read_value("/etc/environment") or "").splitlines():
        name, equals, value = line.strip().partition("=")
        name = name[len("export ") :].strip() if name.startswith("export ") else name
        if equals and re.match(r"[A-Za-z_]\w*$", name):
            bare = value.strip()
            quoted = len(bare) >= 2 and bare[0] in "\"'" and bare[0] == bare[-1]
            found[name] = bare[1:-1] if quoted else bare
    return found


def relevant(environment: t.Mapping[str, str]) -> Environment:
    """The part of an environment that concerns NCCL: nothing else leaves the node, since the rest may hold secrets."""
    return {n: v for n, v in sorted(environment.items()) if is_nccl(n) or n in KEPT}
