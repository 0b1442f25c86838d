# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Kernel parameters by way of /proc/sys: read, set, read back, put back. PRIVATE to the collection.

Only the keys asked for are ever read or written, each by itself, so that no other key can make one of them fail.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._kernel_modules import (
    KernelModules,
    ModuleState,
)
from ansible_collections.gpufabric.cluster.plugins.module_utils._prior_state import PriorState
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._sysctl_conf import (
    PROC_SYS,
    dotted,
    key_name,
    same_value,
)

#: stands for every RDMA interface in a key
RDMA_INTERFACE = "<rdma>"

#: statuses of keys that this node cannot have, whatever one types; a boot file must not try
CANNOT = ("unsupported", "value_not_available", "failed")

CONGESTION_CONTROL = "net/ipv4/tcp_congestion_control"

#: keys whose values are names of kernel modules: {key: module name prefix}
_VALUE_MODULES = {CONGESTION_CONTROL: "tcp_", "net/core/default_qdisc": "sch_"}
_AVAILABLE = {CONGESTION_CONTROL: "net/ipv4/tcp_available_congestion_control"}
#: values that have no module of their own (net/sched/sch_generic.c, sch_mq.c; net/ipv4/tcp_cong.c)
_IN_THE_CORE = frozenset({"pfifo_fast", "noqueue", "mq", "noop", "reno"})

#: of these the stricter of "all" and the interface counts (include/linux/inetdevice.h, IN_DEV_MAXCONF)
_MAXIMUM_OF_ALL = frozenset({"rp_filter", "arp_ignore", "arp_announce"})

_PRIOR = "keys"


@dataclasses.dataclass(frozen=True)
class Setting:
    """One key as it should be. name: path below /proc/sys; value: as the kernel takes it; reason: for the file's reader."""

    name: str
    value: str
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class KeyState:
    """One key after (or without) an attempt to set it.

    status: already; applied (set and read back; in check mode, would be); differs (observed only); unsupported (no such
    key here); value_not_available (the kernel has no such value); read_only; failed; restored (at rollback).
    value: as read last, None where unreadable; before: as read first; effective: what counts for the interface where
    that is not the value.
    """

    key: str
    wanted: str
    status: str
    value: str | None
    before: str | None = None
    evidence: str = ""
    effective: str | None = None

    @property
    def changed(self) -> bool:
        return self.status in ("applied", "restored")

    def as_dict(self) -> dict[str, t.Any]:
        return dataclasses.asdict(self)


def normal_value(value: object, where: str) -> str:
    """A value from YAML as the kernel takes it: numbers and text as they are, lists joined by blanks.

    ValueError for a boolean (YAML turns on, off, yes and no into one), for nothing, and for what has no such text.
    """
    if isinstance(value, bool):
        raise ValueError(
            f"{where}: the value is the boolean {str(value).lower()}; YAML reads on, off, yes and no as booleans, "
            f"so write the number or quote the word"
        )
    if isinstance(value, (list, tuple)):
        if not value or any(isinstance(item, (list, tuple)) for item in value):
            raise ValueError(f"{where}: a list must hold the value's parts, such as [4096, 131072, 134217728]")
        return " ".join(normal_value(item, where) for item in value)
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    if isinstance(value, str) and value.strip() and not any(c in value for c in "\n\0"):
        return " ".join(value.split())
    raise ValueError(f"{where}: the value must be a number, one line of text or a list of them, not {value!r}")


def settings_of(entries: t.Iterable[t.Mapping[str, t.Any]], interfaces: t.Sequence[str] = ()) -> list[Setting]:
    """Settings from [{key, value, reason?}], with <rdma> replaced by each of *interfaces*. The last of two wins.

    Raises ValueError with one sentence for a key or value that cannot be one.
    """
    settings: dict[str, Setting] = {}
    for entry in entries:
        key = str(entry["key"])
        value = normal_value(entry["value"], f"settings: {key}")
        # a dot in an interface's name is written as a slash in a dotted key
        names = [key] if RDMA_INTERFACE not in key else [key.replace(RDMA_INTERFACE, dotted(i)) for i in interfaces]
        for name in map(key_name, names):
            settings.pop(name, None)
            settings[name] = Setting(name, value, str(entry.get("reason") or ""))
    return list(settings.values())


class Sysctl:
    """The kernel parameters of one node, and what they were before *owner* first set them."""

    def __init__(self, fs: RootedFs, kernel: KernelModules, owner: str) -> None:
        self._fs = fs
        self._kernel = kernel
        self._prior = PriorState(fs, f"{owner}-keys")

    def observe(self, settings: t.Iterable[Setting]) -> list[KeyState]:
        """Every key as it is; one that could be set and is not is "differs"."""
        return [self._judge(setting, "differs") for setting in settings]

    def apply(self, settings: t.Sequence[Setting], check: bool = False) -> list[KeyState]:
        """Set and read back every key, after noting what each was. check: only say what would become of it."""
        if check:
            return [self._judge(setting, "applied") for setting in settings]
        first = {setting.name: self._read(setting.name)[0] for setting in settings}
        self._prior.remember(_PRIOR, {name: value for name, value in first.items() if value is not None})
        return [self._set(setting) for setting in settings]

    def give_back(self, keep: t.Iterable[str] = (), check: bool = False) -> list[KeyState]:
        """Give every key that was ever set, but those named in *keep*, the value that it had before the first apply().

        What could not be put back stays on record for the next attempt.
        """
        kept = set(keep)
        prior = self._prior.recall(_PRIOR)
        states = [self._restore(name, prior[name], check) for name in reversed(list(prior)) if name not in kept]
        if not check:
            self._prior.forget(
                _PRIOR, [key_name(s.key) for s in states if s.status in ("restored", "already", "unsupported")]
            )
        return states

    def _read(self, name: str) -> tuple[str | None, str]:
        """Value with single blanks between its parts, or None and why not."""
        try:
            return " ".join(self._fs.read_text(f"{PROC_SYS}/{name}").split()), ""
        except FileNotFoundError:
            return None, f"{PROC_SYS}/{name} does not exist"
        except OSError as error:
            return None, f"{PROC_SYS}/{name} cannot be read: {error.strerror}"

    def _judge(self, setting: Setting, if_settable: str) -> KeyState:
        """What is or would become of a key, without writing it."""
        value, problem = self._read(setting.name)
        state = KeyState(dotted(setting.name), setting.value, if_settable, value, value, problem)
        if value is None:
            missing = not self._fs.exists(f"{PROC_SYS}/{setting.name}")
            return dataclasses.replace(state, status="unsupported" if missing else "failed")
        if same_value(value, setting.value):
            return dataclasses.replace(state, status="already", effective=self._effective(setting.name, value))
        unavailable = self._unavailable(setting)
        if unavailable:
            return dataclasses.replace(state, status="value_not_available", evidence=unavailable)
        if not self._fs.mode(f"{PROC_SYS}/{setting.name}") & 0o222:
            return dataclasses.replace(
                state, status="read_only", evidence=f"{PROC_SYS}/{setting.name} has no write bit"
            )
        if self._fs.is_live and self._is_read_only_mount(setting.name):
            return dataclasses.replace(state, status="read_only", evidence=f"{PROC_SYS} is mounted read-only")
        return dataclasses.replace(state, evidence=f"{PROC_SYS}/{setting.name} holds {value}")

    def _set(self, setting: Setting) -> KeyState:
        state = self._judge(setting, "applied")
        if state.status != "applied":
            return state
        try:
            self._fs.write_value(f"{PROC_SYS}/{setting.name}", setting.value)
        except OSError as error:
            return self._refused(setting, state, error)
        value, problem = self._read(setting.name)
        if value is None or not same_value(value, setting.value):
            return dataclasses.replace(
                state,
                status="failed",
                value=value,
                evidence=problem or f"{setting.value} was written, and {PROC_SYS}/{setting.name} holds {value}",
            )
        return dataclasses.replace(state, value=value, evidence="", effective=self._effective(setting.name, value))

    def _refused(self, setting: Setting, state: KeyState, error: OSError) -> KeyState:
        evidence = f"writing {setting.value} to {PROC_SYS}/{setting.name}: {error.strerror}"
        if error.errno == errno.EROFS:
            status = "read_only"
        elif error.errno in (errno.EACCES, errno.EPERM):
            # root that may not is in a container; anybody else lacks privileges, which is not the node's fault
            status = "read_only" if os.geteuid() == 0 else "failed"
            evidence += "" if status == "read_only" else " (not root)"
        elif error.errno == errno.ENOENT and setting.name in _VALUE_MODULES:
            status = "value_not_available"
            evidence += f"; {self._module_of(setting).evidence}"
        else:
            status = "failed"
        return dataclasses.replace(state, status=status, evidence=evidence)

    def _restore(self, name: str, prior: str, check: bool) -> KeyState:
        value, problem = self._read(name)
        state = KeyState(dotted(name), prior, "restored", value, value, problem)
        if value is None:
            return dataclasses.replace(state, status="unsupported")
        if same_value(value, prior):
            return dataclasses.replace(state, status="already")
        if check:
            return state
        done = self._set(Setting(name, prior))
        return dataclasses.replace(done, before=value, status="restored" if done.status == "applied" else done.status)

    def _unavailable(self, setting: Setting) -> str:
        """Why the kernel has no such value, "" where it has it or nothing can be said before trying."""
        if setting.name not in _VALUE_MODULES or setting.value in _IN_THE_CORE:
            return ""
        offered = self._read(_AVAILABLE[setting.name])[0] if setting.name in _AVAILABLE else None
        if offered and setting.value in offered.split():
            return ""
        try:
            module = self._module_of(setting)
        except ValueError:
            return f"{setting.value!r} is no name of a kernel module"
        if module.obtainable or (offered is None and not self._kernel.knows_modules):
            return ""
        said = f"available are: {offered}; " if offered else ""
        return f"{said}kernel module {module.name} is {module.status}: {module.evidence}"

    def value(self, name: str) -> str | None:
        """A key's value now, None where it cannot be read."""
        return self._read(name)[0]

    @staticmethod
    def modules_for(settings: t.Iterable[Setting]) -> list[str]:
        """The kernel modules without which the kernel lacks these values."""
        return [
            _VALUE_MODULES[setting.name] + setting.value
            for setting in settings
            if setting.name in _VALUE_MODULES and setting.value not in _IN_THE_CORE
        ]

    def _module_of(self, setting: Setting) -> ModuleState:
        return self._kernel.state(_VALUE_MODULES[setting.name] + setting.value)

    def _effective(self, name: str, value: str) -> str | None:
        """What counts for an interface where net.ipv4.conf.all says more than its own key, else None."""
        parts = name.split("/")
        if len(parts) != 5 or parts[:3] != ["net", "ipv4", "conf"] or parts[3] in ("all", "default"):
            return None
        if parts[4] not in _MAXIMUM_OF_ALL:
            return None
        of_all, _unused = self._read("/".join([*parts[:3], "all", parts[4]]))
        try:
            return of_all if of_all is not None and int(of_all) > int(value) else None
        except ValueError:
            return None

    def _is_read_only_mount(self, name: str) -> bool:
        try:
            return bool(os.statvfs(f"{PROC_SYS}/{name}").f_flag & os.ST_RDONLY)
        except OSError:
            return False
