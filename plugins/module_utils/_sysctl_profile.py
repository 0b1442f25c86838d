# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A whole profile on one node: modules, keys, files, limits, and what the next boot makes of them. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._boot_sysctl import SYSCTL_CONF, BootSysctl
from ansible_collections.gpufabric.cluster.plugins.module_utils._kernel_modules import (
    KernelModules,
    ModuleState,
    modules_load_file,
)
from ansible_collections.gpufabric.cluster.plugins.module_utils._marked_block import MarkedBlock
from ansible_collections.gpufabric.cluster.plugins.module_utils._memlock import (
    limit_files,
    reload_manager,
    service_limit,
)
from ansible_collections.gpufabric.cluster.plugins.module_utils._owned_file import MARK, Outcome, OwnedFile, OwnedFiles
from ansible_collections.gpufabric.cluster.plugins.module_utils._platform_state import observe_platform
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_interfaces import rdma_interfaces
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._sysctl import (
    CANNOT,
    CONGESTION_CONTROL,
    RDMA_INTERFACE,
    KeyState,
    Setting,
    Sysctl,
    settings_of,
)
from ansible_collections.gpufabric.cluster.plugins.module_utils._sysctl_conf import key_name, render
from ansible_collections.gpufabric.cluster.plugins.module_utils._tcp_sockets import move_sockets

#: stands for "whatever carries RoCE on this node"
AUTO = "auto"

_SYSTEMD = "/etc/systemd/"


@dataclasses.dataclass(frozen=True)
class Profile:
    """What is wanted. entries: [{key, value, reason?}]; home: the file for the keys; memlock: as normal_limit() returns it."""

    entries: t.Sequence[t.Mapping[str, t.Any]]
    home: str
    modules: t.Sequence[str] = ()
    interfaces: t.Sequence[str] = (AUTO,)
    memlock: str = ""


@dataclasses.dataclass(frozen=True)
class Result:
    """What was found and done; `changed` says whether anything was (in check mode: would be)."""

    keys: list[KeyState]
    modules: list[ModuleState]
    files: list[Outcome]
    observed: dict[str, t.Any]
    #: of an earlier apply() and no longer wanted
    keys_given_back: list[KeyState] = dataclasses.field(default_factory=list)
    modules_given_back: list[ModuleState] = dataclasses.field(default_factory=list)

    @property
    def changed(self) -> bool:
        return bool(self._changed_keys or self._moved_modules) or any(file.changed for file in self.files)

    @property
    def _changed_keys(self) -> list[KeyState]:
        return [key for key in self.keys + self.keys_given_back if key.changed]

    @property
    def _moved_modules(self) -> list[ModuleState]:
        return [module for module in self.modules + self.modules_given_back if module.moved]

    def as_dict(self) -> dict[str, t.Any]:
        return {
            "keys": [key.as_dict() for key in self.keys],
            "modules": [module.as_dict() for module in self.modules],
            "files": [{"path": file.path, "status": file.status} for file in self.files],
            "keys_given_back": [key.as_dict() for key in self.keys_given_back],
            "modules_given_back": [module.as_dict() for module in self.modules_given_back],
            **self.observed,
        }

    def diff(self) -> list[dict[str, str]]:
        """Before and after of everything that changed, as Ansible shows it."""
        keys, moved = self._changed_keys, self._moved_modules
        rows = [
            {
                "before_header": "running kernel",
                "after_header": "running kernel",
                "before": "".join(f"{key.key} = {key.before}\n" for key in keys)
                + "".join(f"module {m.name} {'not loaded' if m.loaded_now else 'loaded'}\n" for m in moved),
                "after": "".join(f"{key.key} = {key.wanted}\n" for key in keys)
                + "".join(f"module {m.name} {'loaded' if m.loaded_now else 'not loaded'}\n" for m in moved),
            }
        ]
        files = [file for file in self.files if file.changed]
        return (rows if keys or moved else []) + [
            {"before": f.before, "after": f.after, "before_header": f.path, "after_header": f.path} for f in files
        ]


class ProfileOnNode:
    """Applies, observes or gives back one owner's profile on one node."""

    def __init__(self, fs: RootedFs, tools: Tools, owner: str) -> None:
        self._fs = fs
        self._tools = tools
        self._owner = owner
        self._kernel = KernelModules(fs, tools, owner)
        self._sysctl = Sysctl(fs, self._kernel, owner)
        self._files = OwnedFiles(fs, owner)
        self._block = MarkedBlock(fs, owner)

    def apply(self, profile: Profile, check: bool = False) -> Result:
        """Bring the node to *profile* and read everything back; check: only say what would become of it.

        Raises ValueError for a profile that cannot be one (nothing is changed then), OSError where a file cannot be written.
        """
        interfaces, settings, wanted = self._resolve(profile)
        modules = self._kernel.load(wanted, check)
        keys = self._sysctl.apply(settings, check)
        keys_back = self._sysctl.give_back(keep=[setting.name for setting in settings], check=check)
        modules_back = self._kernel.give_back(wanted, unload=True, check=check, release=self._let_go)
        files = self._apply_files(profile, settings, keys, modules, check)
        problems = [] if check else self._after_files(files)
        observed = self._observe(profile, settings, keys, interfaces, problems)
        return Result(keys, modules, files, observed, keys_back, modules_back)

    def verify(self, profile: Profile) -> Result:
        """Read everything and change nothing. The files' outcomes say what apply() would do with them."""
        interfaces, settings, wanted = self._resolve(profile)
        modules = [self._kernel.state(name) for name in wanted]
        keys = self._sysctl.observe(settings)
        files = self._apply_files(profile, settings, keys, modules, check=True)
        drifted = [dataclasses.replace(file, status=_AS_SEEN.get(file.status, file.status)) for file in files]
        return Result(keys, modules, drifted, self._observe(profile, settings, keys, interfaces, []))

    def rollback(self, check: bool = False) -> Result:
        """Everything back to what it was before the first apply()."""
        keys = self._sysctl.give_back(check=check)
        files = self._block.rollback(check=check) + self._files.rollback(check=check)
        problems = [] if check else self._after_files(files)
        modules = self._kernel.give_back(unload=True, check=check, release=self._let_go)
        return Result([], [], files, {"problems": problems}, keys, modules)

    def _let_go(self, module: str) -> None:
        """Move open TCP sockets off a congestion control that is about to leave, onto the one that is in force again."""
        current = self._sysctl.value(CONGESTION_CONTROL)
        if module.startswith("tcp_") and current and module != f"tcp_{current}":
            move_sockets(self._tools, module[len("tcp_") :], current)

    def _resolve(self, profile: Profile) -> tuple[list[str], list[Setting], list[str]]:
        """The RoCE interfaces (none where no key asks), the settings of this node, and the modules that they need."""
        asks = any(RDMA_INTERFACE in str(entry["key"]) for entry in profile.entries)
        interfaces: list[str] = []
        for name in profile.interfaces if asks else ():
            interfaces += rdma_interfaces(self._fs) if name == AUTO else [name]
        settings = settings_of(profile.entries, interfaces)
        return interfaces, settings, [*profile.modules, *Sysctl.modules_for(settings)]

    def _apply_files(
        self,
        profile: Profile,
        settings: t.Sequence[Setting],
        keys: t.Sequence[KeyState],
        modules: t.Sequence[ModuleState],
        check: bool,
    ) -> list[Outcome]:
        left_out = {key_name(key.key): key.status.replace("_", " ") for key in keys if key.status in CANNOT}
        body = render([(s.name, s.value, s.reason) for s in settings], left_out)
        persistent = [module.name for module in modules if module.persistent]
        owned = [modules_load_file(self._owner, persistent)] if persistent else []
        owned += limit_files(profile.memlock)
        outcomes = []
        if profile.home == SYSCTL_CONF:
            outcomes += [self._block.apply(SYSCTL_CONF, body, check)] if settings else []
        elif settings:
            header = f"# {MARK}, role {self._owner}: what is edited here is overwritten\n"
            owned.insert(0, OwnedFile(profile.home, header + body))
        kept_block = SYSCTL_CONF if profile.home == SYSCTL_CONF and settings else ""
        return outcomes + self._block.rollback(keep=kept_block, check=check) + self._files.apply(owned, check=check)

    def _after_files(self, files: t.Iterable[Outcome]) -> list[dict[str, str]]:
        if not any(file.changed and file.path.startswith(_SYSTEMD) for file in files):
            return []
        problem = reload_manager(self._tools)
        return [{"id": "systemd_not_reloaded", "subject": "systemd", "evidence": problem}] if problem else []

    def _observe(
        self,
        profile: Profile,
        settings: t.Sequence[Setting],
        keys: t.Sequence[KeyState],
        interfaces: t.Sequence[str],
        problems: list[dict[str, str]],
    ) -> dict[str, t.Any]:
        boot = BootSysctl(self._fs)
        persisted = {key_name(key.key) for key in keys if key.status not in CANNOT}
        verdicts = boot.verdicts([s for s in settings if s.name in persisted], profile.home)
        problems = problems + _unplaced(profile, interfaces)
        unread = [{"id": "sysctl_file_unreadable", "subject": "boot", "evidence": said} for said in boot.problems]
        return {
            "home": profile.home,
            "boot": {
                "by": "systemd-sysctl" if boot.by_systemd else "sysctl --system",
                "masked_by": boot.masked_by,
                "reads_sysctl_conf": boot.reads_sysctl_conf,
                "keys": [verdict.as_dict() for verdict in verdicts],
            },
            "interfaces": list(interfaces),
            "memlock": {"wanted": profile.memlock, **service_limit(self._fs, self._tools)} if profile.memlock else {},
            "platform": observe_platform(self._fs),
            "problems": problems + unread,
        }


def _unplaced(profile: Profile, interfaces: t.Sequence[str]) -> list[dict[str, str]]:
    """That keys for RDMA interfaces found none to be set on."""
    keys = [str(entry["key"]) for entry in profile.entries if RDMA_INTERFACE in str(entry["key"])]
    if not keys or interfaces:
        return []
    evidence = f"no RDMA device has an Ethernet port with an interface, so {', '.join(keys)} were set nowhere"
    return [{"id": "no_rdma_interface", "subject": RDMA_INTERFACE, "evidence": evidence}]


#: how verify() words what apply() would do
_AS_SEEN = {"written": "differs", "restored": "left_over", "removed": "left_over"}
