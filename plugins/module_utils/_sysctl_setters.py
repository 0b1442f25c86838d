# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What sets kernel parameters after systemd-sysctl has: tuned, openibd, ufw, network hooks, boot scripts. PRIVATE to the collection.

Sources: tuned's tuned-main.conf and plugin_sysctl.py, openibd and sysctl_perf_tuning of MLNX_OFED, ufw's /etc/default/ufw,
NetworkManager-dispatcher(8), interfaces(5), systemd.network(5).
"""

from __future__ import annotations

import configparser
import dataclasses
import os
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._sysctl_conf import (
    Assignment,
    name_matches,
    parse,
    proc_name,
)

#: directories of scripts that run when an interface comes up, or at the end of the boot
_HOOKS = (
    ("NetworkManager dispatcher", "/usr/lib/NetworkManager/dispatcher.d"),
    ("NetworkManager dispatcher", "/etc/NetworkManager/dispatcher.d"),
    ("NetworkManager dispatcher", "/etc/NetworkManager/dispatcher.d/pre-up.d"),
    ("networkd-dispatcher", "/etc/networkd-dispatcher/routable.d"),
    ("ifupdown", "/etc/network/if-pre-up.d"),
    ("ifupdown", "/etc/network/if-up.d"),
)
_NETWORKD_DIRECTORIES = (
    "/etc/systemd/network",
    "/run/systemd/network",
    "/usr/local/lib/systemd/network",
    "/usr/lib/systemd/network",
)
#: what IPv4ReversePathFilter= says, as a number of rp_filter (systemd.network(5), since version 255)
_REVERSE_PATH = {"no": "0", "strict": "1", "loose": "2"}
_TUNED_DIRECTORIES = ("/etc/tuned/profiles", "/etc/tuned", "/usr/lib/tuned/profiles", "/usr/lib/tuned")

_SYSCTL_CALL = re.compile(r"(?:^|[\s;&|(/\"'=@-])sysctl\s+(?P<arguments>[^;&|\n]*)")
_ARGUMENT = re.compile(
    r"""(?P<quote>["']?)(?P<name>[A-Za-z0-9_]+(?:[./][A-Za-z0-9_*:@-]+)+)=(?P<value>"[^"]*"|'[^']*'|[^"'\s]*)(?P=quote)"""
)
_QUOTED_ARGUMENT = re.compile(r"""(["'])(?P<name>[A-Za-z0-9_]+(?:[./][A-Za-z0-9_*:@-]+)+)\s*=\s*(?P<value>[^"']*)\1""")
_ECHO = re.compile(r"""echo\s+(?:-n\s+)?(["']?)(?P<value>[^"'>|;&]*?)\1\s*>+\s*(?P<path>/proc/sys/[A-Za-z0-9_./-]+)""")
_BRANCH = re.compile(r"^\s*(?:function\s+)?([A-Za-z_][\w-]*)\s*(?:\(\s*\)|\))")
_UNDO = re.compile(r"(un_?load|stop|down|reset|restore|disable)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Setter:
    """Somebody who sets keys after systemd-sysctl.

    assignments: in order, a name possibly a pattern; spares: whether it leaves alone (by setting them again) the keys of
    a file at this path.
    """

    name: str
    assignments: tuple[Assignment, ...]
    spares: t.Callable[[str], bool] = lambda home: False

    def last(self, name: str, home: str) -> Assignment | None:
        """The line by which it has the last word about a key that *home* sets, None where it has none."""
        found = [assignment for assignment in self.assignments if name_matches(name, assignment.name)]
        return found[-1] if found and found[-1].value is not None and not self.spares(home) else None


def setters_after_boot(fs: RootedFs) -> list[Setter]:
    """Everybody who sets something, in the order in which a boot runs them. Unreadable files count as absent."""
    found = [_openibd(fs), _networkd(fs), *_hooks(fs), _ufw(fs), *_units(fs), _rc_local(fs), *_tuned(fs)]
    return [setter for setter in found if setter.assignments]


def script_assignments(lines: t.Iterable[str], path: str) -> list[Assignment]:
    """What a shell script sets by sysctl or by writing to /proc/sys, as far as it says so in plain words.

    Branches and functions that undo (stop, unload, restore) are left out: they do not run at boot.
    """
    assignments = []
    undoing = False
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if line.startswith("#"):
            continue
        branch = _BRANCH.match(raw)
        if branch:
            undoing = bool(_UNDO.search(branch.group(1)))
        if undoing:
            continue
        for name, value in _in_line(line):
            if "$" not in value and "$" not in name:
                assignments.append(Assignment(proc_name(name), value.strip(), path, number))
    return assignments


def _in_line(line: str) -> t.Iterator[tuple[str, str]]:
    for call in _SYSCTL_CALL.finditer(line):
        arguments = call.group("arguments")
        quoted = list(_QUOTED_ARGUMENT.finditer(arguments))
        for match in quoted or _ARGUMENT.finditer(arguments):
            yield match.group("name"), match.group("value").strip("\"'")
    for match in _ECHO.finditer(line):
        yield match.group("path"), match.group("value")


def _openibd(fs: RootedFs) -> Setter:
    """openibd runs sysctl_perf_tuning at boot where /etc/infiniband/openib.conf says RUN_SYSCTL=yes."""
    script = "/sbin/sysctl_perf_tuning"
    if _shell_value(fs, "/etc/infiniband/openib.conf", "RUN_SYSCTL").lower() != "yes":
        return Setter("openibd", ())
    return Setter("openibd", tuple(script_assignments(fs.read_lines(script), script)))


def _networkd(fs: RootedFs) -> Setter:
    """IPv4ReversePathFilter= of .network files; the first file that matches an interface is the only one for it."""
    chosen: dict[str, str] = {}
    for directory in _NETWORKD_DIRECTORIES:
        for path in fs.glob(directory, "*.network"):
            chosen.setdefault(os.path.basename(path), path)
    found: list[Assignment] = []
    for path in (chosen[name] for name in sorted(chosen, reverse=True)):
        section, interfaces, line, value = "", [], 0, None
        for number, raw in enumerate(fs.read_lines(path), 1):
            option, _unused, said = (part.strip() for part in raw.partition("="))
            if option.startswith("["):
                section = option.strip("[]")
            elif section == "Match" and option == "Name":
                interfaces += said.split()
            elif section == "Network" and option == "IPv4ReversePathFilter":
                line, value = number, _REVERSE_PATH.get(said)
        # one that says nothing keeps the files after it from saying something
        found += [Assignment(f"net/ipv4/conf/{name}/rp_filter", value, path, line) for name in interfaces]
    return Setter("systemd-networkd", tuple(found))


def _ufw(fs: RootedFs) -> Setter:
    """ufw applies the file that IPT_SYSCTL names whenever it is enabled."""
    if _shell_value(fs, "/etc/ufw/ufw.conf", "ENABLED").lower() != "yes":
        return Setter("ufw", ())
    path = _shell_value(fs, "/etc/default/ufw", "IPT_SYSCTL")
    return Setter("ufw", tuple(parse(fs.read_lines(path), path)[0]) if path.startswith("/") else ())


def _hooks(fs: RootedFs) -> list[Setter]:
    setters = []
    for name, directory in _HOOKS:
        for path in fs.glob(directory, "*"):
            if fs.is_file(path) and fs.mode(path) & 0o111:
                setters.append(Setter(name, tuple(script_assignments(fs.read_lines(path), path))))
    path = "/etc/network/interfaces"
    files = [path, *fs.glob("/etc/network/interfaces.d", "*")]
    return setters + [Setter("ifupdown", tuple(script_assignments(fs.read_lines(p), p))) for p in files]


def _rc_local(fs: RootedFs) -> Setter:
    for path in ("/etc/rc.local", "/etc/rc.d/rc.local"):
        if fs.is_file(path) and fs.mode(path) & 0o111:
            return Setter("rc.local", tuple(script_assignments(fs.read_lines(path), path)))
    return Setter("rc.local", ())


def _units(fs: RootedFs) -> list[Setter]:
    """Units of the administrator that call sysctl themselves, if something wants them at boot."""
    setters = []
    for wants in ("multi-user.target.wants", "sysinit.target.wants", "network-online.target.wants"):
        for link in fs.glob(f"/etc/systemd/system/{wants}", "*.service"):
            kept = [line if line.lstrip().startswith("ExecStart") else "" for line in fs.read_lines(link)]
            found = script_assignments(kept, fs.resolve(link))
            setters.append(Setter(os.path.basename(link), tuple(found)))
    return setters


def _tuned(fs: RootedFs) -> list[Setter]:
    """The active profile's [sysctl] sections, those included first; then what tuned applies again by itself.

    With reapply_sysctl (the default) tuned sets /run/sysctl.d, /etc/sysctl.d and last /etc/sysctl.conf once more.
    """
    if not fs.glob("/etc/systemd/system/multi-user.target.wants", "tuned.service"):
        return []
    profiles = (fs.read_value("/etc/tuned/active_profile") or "").split()
    assignments = [a for profile in profiles for a in _tuned_profile(fs, profile, set())]
    reapply = _shell_value(fs, "/etc/tuned/tuned-main.conf", "reapply_sysctl").lower() not in ("0", "false", "no", "n")
    if not reapply:
        return [Setter("tuned", tuple(assignments))]
    again = parse(fs.read_lines("/etc/sysctl.conf"), "/etc/sysctl.conf")[0]
    return [
        Setter("tuned", tuple(assignments), _is_reapplied),
        Setter("tuned (reapply_sysctl)", tuple(a for a in again if a.value is not None)),
    ]


def _is_reapplied(home: str) -> bool:
    return home.startswith(("/etc/sysctl.d/", "/run/sysctl.d/")) or home == "/etc/sysctl.conf"


def _tuned_profile(fs: RootedFs, profile: str, seen: set[str]) -> list[Assignment]:
    path = next((p for d in _TUNED_DIRECTORIES for p in [f"{d}/{profile}/tuned.conf"] if fs.is_file(p)), "")
    if not path or profile in seen:
        return []
    seen.add(profile)
    lines = fs.read_lines(path)
    parser = configparser.RawConfigParser(
        strict=False, allow_no_value=True, delimiters=("=",), comment_prefixes=("#", ";")
    )
    try:
        parser.read_string("\n".join(lines))
    except configparser.Error:
        return []
    included = re.split(r"[\s,]+", parser.get("main", "include", fallback="") or "")
    assignments = [a for name in included if name for a in _tuned_profile(fs, name, seen)]
    return assignments + _tuned_section(lines, path)


def _tuned_section(lines: t.Iterable[str], path: str) -> list[Assignment]:
    """Assignments of [sysctl] with their lines, which configparser does not tell. Values with variables are left out.

    A leading > or < asks for at least or at most that value; what it comes to is taken as the value itself.
    """
    section = ""
    found = []
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if line.startswith("["):
            section = line.strip("[]").strip().lower()
        elif section == "sysctl" and "=" in line and line[0] not in "#;":
            name, _unused, value = line.partition("=")
            value = value.strip().strip("\"'").lstrip("<>=").strip()
            if value and "$" not in value and name.strip() not in ("type", "devices", "replace", "enabled"):
                found.append(Assignment(proc_name(name), value, path, number))
    return found


def _shell_value(fs: RootedFs, path: str, name: str) -> str:
    """The last NAME=value of a file in shell syntax, "" where there is none."""
    value = ""
    for line in fs.read_lines(path):
        left, equals, right = line.partition("=")
        if equals and left.strip() == name:
            value = right.split("#")[0].strip().strip("\"'")
    return value
