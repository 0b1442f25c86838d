# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Kernel modules: what is loaded, built in, on disk or missing; loaded now and at boot. PRIVATE to the collection.

Sources: modules.dep(5), modprobe(8), modules-load.d(5), Documentation/ABI/testing/sysfs-module.
"""

from __future__ import annotations

import dataclasses
import os
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._owned_file import MARK, OwnedFile
from ansible_collections.gpufabric.cluster.plugins.module_utils._prior_state import PriorState
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

#: statuses under which the module's code is in the running kernel
USABLE = ("loaded", "builtin")

#: the kernel limits a name to MODULE_NAME_LEN (64 - sizeof(long)) bytes; modprobe takes - for _
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,54}$")
_MODULE_FILE = re.compile(r"\.ko(\.(gz|xz|zst))?$")
_PRIOR = "loaded"
_MODPROBE_D = (
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
)


@dataclasses.dataclass(frozen=True)
class ModuleState:
    """One module as it is on this node.

    status: loaded, builtin, available (on disk, not loaded), absent (this kernel has none), blocked (forbidden by
    modprobe.d or the kernel's command line), failed (modprobe refused).
    evidence: what says so; loaded_before: whether it was before the owner's first call, None where not recorded.
    loaded_now, unloaded_now: whether this call did that or, in check mode, would.
    """

    name: str
    status: str
    evidence: str
    loaded_now: bool = False
    unloaded_now: bool = False
    loaded_before: bool | None = None

    @property
    def usable(self) -> bool:
        return self.status in USABLE

    @property
    def moved(self) -> bool:
        return self.loaded_now or self.unloaded_now

    @property
    def obtainable(self) -> bool:
        """Whether it is in the kernel or modprobe would find it."""
        return self.usable or self.status == "available"

    @property
    def persistent(self) -> bool:
        """Whether systemd-modules-load should load it at boot: what is built in needs nobody, what is missing fails."""
        return self.obtainable and self.status != "builtin"

    def as_dict(self) -> dict[str, t.Any]:
        return dataclasses.asdict(self)


def canonical(name: str) -> str:
    """The name as the kernel spells it; ValueError where it cannot be a module's."""
    if not _NAME.match(name):
        raise ValueError(f"modules: {name!r} is no kernel module's name (letters, digits, _ and - are)")
    return name.replace("-", "_")


def modules_load_file(owner: str, names: t.Sequence[str]) -> OwnedFile:
    """The owned file from which systemd-modules-load loads *names* at boot."""
    lines = [f"# {MARK}, role {owner}: loaded at boot", *names]
    return OwnedFile(f"/etc/modules-load.d/gpufabric-{owner}.conf", "\n".join(lines) + "\n")


class KernelModules:
    """The modules of the running kernel of one node (or of the captured tree below the root)."""

    def __init__(self, fs: RootedFs, tools: Tools, owner: str) -> None:
        self._fs = fs
        self._tools = tools
        self._prior = PriorState(fs, f"{owner}-modules")
        self._on_disk: dict[str, str] | None = None
        self._builtin: set[str] | None = None

    @property
    def release(self) -> str:
        """The running kernel's release, "" where nothing says it."""
        found = self._fs.read_value("/proc/sys/kernel/osrelease")
        return found or (os.uname().release if self._fs.is_live else "")

    @property
    def knows_modules(self) -> bool:
        """Whether this node says at all which modules its kernel has (a container often does not)."""
        return self._fs.is_dir(f"/lib/modules/{self.release}")

    def state(self, name: str) -> ModuleState:
        """Observe one module; changes nothing, loads nothing."""
        name = canonical(name)
        loaded_before = self._prior.recall(_PRIOR).get(name)
        status, evidence = self._status(name)
        return ModuleState(name, status, evidence, loaded_before=loaded_before)

    def load(self, names: t.Iterable[str], check: bool = False) -> list[ModuleState]:
        """Load each of *names* that is on disk and not in the kernel, after noting which were loaded before.

        check: only say what is; a module that would be loaded stays "available". Never raises for what modprobe does.
        """
        states = [self.state(name) for name in dict.fromkeys(canonical(name) for name in names)]
        if not check:
            self._prior.remember(_PRIOR, {state.name: state.usable for state in states if state.obtainable})
        states = [self._load_one(state, check) if state.status == "available" else state for state in states]
        return [dataclasses.replace(state, loaded_before=self._before(state.name)) for state in states]

    def give_back(
        self,
        keep: t.Iterable[str] = (),
        unload: bool = False,
        check: bool = False,
        release: t.Callable[[str], object] = lambda name: None,
    ) -> list[ModuleState]:
        """End this owner's interest in all modules but *keep*.

        unload: take those out again that were not loaded before and that nothing uses; one that is in use stays until
        the next boot. release: called with a module's name before that, to make its users let go.
        """
        kept = {canonical(name) for name in keep}
        states = []
        for name, was_loaded in self._prior.recall(_PRIOR).items():
            if name in kept:
                continue
            state = self.state(name)
            if unload and not was_loaded and state.status == "loaded":
                state = self._unload_one(state, check, release)
            states.append(state)
        if not check:
            self._prior.forget(_PRIOR, [state.name for state in states])
        return states

    def _before(self, name: str) -> bool | None:
        return self._prior.recall(_PRIOR).get(name)

    def _load_one(self, state: ModuleState, check: bool) -> ModuleState:
        if check:
            return dataclasses.replace(state, loaded_now=True)
        done = self._tools.run(["modprobe", state.name], timeout=60)
        status, evidence = self._status(state.name)
        if status in USABLE:
            return dataclasses.replace(state, status=status, evidence=evidence, loaded_now=True)
        why = done.problem or f"modprobe {state.name} ended well, but {evidence}"
        return dataclasses.replace(state, status="failed", evidence=why)

    def _unload_one(self, state: ModuleState, check: bool, release: t.Callable[[str], object]) -> ModuleState:
        if check:
            return dataclasses.replace(state, evidence="would be unloaded", unloaded_now=True)
        release(state.name)
        users = self._fs.read_value(f"/sys/module/{state.name}/refcnt") or "0"
        if users != "0":
            return dataclasses.replace(state, evidence=f"in use ({users} references): stays loaded until the next boot")
        done = self._tools.run(["modprobe", "-r", state.name], timeout=60)
        status, evidence = self._status(state.name)
        gone = status != "loaded"
        return dataclasses.replace(state, status=status, evidence=done.problem or evidence, unloaded_now=gone)

    def _status(self, name: str) -> tuple[str, str]:
        if name in self._loaded():
            return "loaded", "/proc/modules"
        if name in self._builtins():
            return "builtin", f"/lib/modules/{self.release}/modules.builtin"
        if self._fs.is_dir(f"/sys/module/{name}") and not self._fs.exists(f"/sys/module/{name}/initstate"):
            return "builtin", f"/sys/module/{name}"
        if not self.knows_modules:
            return "absent", (
                f"/lib/modules/{self.release} does not exist: a container, or the kernel was updated without a reboot"
            )
        path = self._files().get(name)
        if path is None:
            return "absent", f"/lib/modules/{self.release}/modules.dep lists no {name}"
        if not self._fs.exists(path):
            return "absent", f"modules.dep lists {path}, which does not exist"
        blocked = self._block(name)
        return ("blocked", blocked) if blocked else ("available", path)

    def _block(self, name: str) -> str:
        """What keeps modprobe or the kernel from loading *name*, "" where nothing does.

        A plain "blacklist" line of modprobe.d does not: it only hides aliases (modprobe.d(5)).
        """
        for word in (self._fs.read_value("/proc/cmdline") or "").split():
            option, _unused, names = word.partition("=")
            if option == "module_blacklist" and name in names.replace("-", "_").split(","):
                return f"/proc/cmdline: {word}"
        for path in (path for directory in _MODPROBE_D for path in self._fs.glob(directory, "*.conf")):
            for number, line in enumerate(self._fs.read_lines(path), 1):
                words = [*line.split(), "", "", ""][:3]
                refuses = os.path.basename(words[2]) in ("false", "true")
                if words[0] == "install" and words[1].replace("-", "_") == name and refuses:
                    return f"{path}:{number}: {line.strip()}"
        return ""

    def _loaded(self) -> set[str]:
        """Names in /proc/modules whose state is Live (not Loading or Unloading)."""
        rows = (line.split() for line in self._fs.read_lines("/proc/modules"))
        return {row[0] for row in rows if row and (len(row) < 5 or row[4] == "Live")}

    def _builtins(self) -> set[str]:
        if self._builtin is None:
            lines = self._fs.read_lines(f"/lib/modules/{self.release}/modules.builtin")
            self._builtin = {_name_of(line) for line in lines}
        return self._builtin

    def _files(self) -> dict[str, str]:
        """{name: absolute path} of every module that depmod found for the running kernel."""
        if self._on_disk is None:
            base = f"/lib/modules/{self.release}"
            lines = self._fs.read_lines(f"{base}/modules.dep")
            paths = (line.partition(":")[0].strip() for line in lines if ":" in line)
            self._on_disk = {_name_of(path): os.path.join(base, path) for path in paths}
        return self._on_disk


def _name_of(path: str) -> str:
    """kernel/net/ipv4/tcp_bbr.ko.xz -> tcp_bbr."""
    return _MODULE_FILE.sub("", os.path.basename(path.strip())).replace("-", "_")
