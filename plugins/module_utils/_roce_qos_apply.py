# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Sets what _roce_qos observes, makes it last over a boot, and gives it back. PRIVATE to the collection.

None of trust, PFC, ECN and traffic class persists by itself: an owned unit runs an owned script at boot.
"""

from __future__ import annotations

import dataclasses
import shlex
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils import _roce_qos
from ansible_collections.gpufabric.cluster.plugins.module_utils._owned_file import MARK, Outcome, OwnedFile, OwnedFiles
from ansible_collections.gpufabric.cluster.plugins.module_utils._prior_state import PriorState
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

OWNER = "roce_qos"
UNIT_NAME = "gpufabric-roce-qos.service"
UNIT = f"/etc/systemd/system/{UNIT_NAME}"
SCRIPT = "/usr/local/sbin/gpufabric-roce-qos"
WANTS = f"/etc/systemd/system/multi-user.target.wants/{UNIT_NAME}"

_KIND = "interfaces"
_DIRECTORIES = "directories"

#: who owns the settings of an interface that the host may not set
OWNERS = {
    "firmware": "the adapter's firmware, which takes the settings from the switch by DCBX",
    "agent": "an LLDP agent on the node (lldpad), which takes them from the switch by DCBX",
}


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What an interface should have; None leaves a setting alone.

    dscp_prio: {DSCP: priority}, added to the adapter's table; ecn: {role: {priority: whether ECN is on}}.
    """

    trust: str | None = None
    pfc: tuple[int, ...] | None = None
    dscp_prio: t.Mapping[int, int] = dataclasses.field(default_factory=dict)
    ecn: t.Mapping[str, t.Mapping[int, bool]] = dataclasses.field(default_factory=dict)
    cnp_dscp: int | None = None
    cnp_priority: int | None = None
    tclass: int | None = None
    cma_tos: int | None = None


@dataclasses.dataclass(frozen=True)
class Step:
    """One setting of one interface: a command (argv), or a value for a file; rdma_cm's needs its directory made first."""

    interface: str
    setting: str
    have: str
    want: str
    argv: tuple[str, ...] = ()
    path: str = ""
    value: str = ""
    cma: tuple[str, int] | None = None

    @property
    def done(self) -> bool:
        return self.have == self.want

    def shell(self) -> str:
        """The step as a line of the boot script."""
        if self.argv:
            return shlex.join(self.argv)
        write = f"printf '%s\\n' {shlex.quote(self.value)} > {shlex.quote(self.path)}"
        if self.cma is None:
            return write
        directory = shlex.quote(f"{_roce_qos.RDMA_CM}/{self.cma[0]}")
        return f"mkdir -p {directory} && {write}; rmdir {directory} 2>/dev/null"


@dataclasses.dataclass(frozen=True)
class Done:
    """What became of one setting. status: applied, already, failed, refused, unsupported, restored."""

    interface: str
    setting: str
    status: str
    before: str = ""
    after: str = ""
    why: str = ""

    @property
    def changed(self) -> bool:
        return self.status in ("applied", "restored")

    def as_dict(self) -> dict[str, str]:
        return dataclasses.asdict(self)


class RoceQos:
    """The settings of one node's RoCE interfaces."""

    def __init__(self, fs: RootedFs, tools: Tools) -> None:
        self._fs = fs
        self._tools = tools
        self._prior = PriorState(fs, OWNER)
        self._files = OwnedFiles(fs, f"{OWNER}-boot")

    def apply(
        self, interfaces: t.Sequence[t.Mapping[str, t.Any]], wanted: Wanted, check: bool = False
    ) -> tuple[list[Done], list[Outcome]]:
        """Set *wanted* on the observed *interfaces* (see _roce_qos.observe()); what is so already is left alone.

        An interface whose settings are not the host's is refused whole. Prior values are kept before the first change.
        Returns what became of each setting, and of the boot files.
        """
        done: list[Done] = []
        script: list[Step] = []
        for seen in interfaces:
            if seen["dcbx"] in OWNERS:
                done.append(Done(str(seen["interface"]), "all", "refused", why=f"owned by {OWNERS[seen['dcbx']]}"))
                continue
            steps = plan(seen, wanted)
            done += _unsupported(seen, wanted, steps)
            if any(not step.done for step in steps) and not check:
                self._prior.remember(_KIND, {str(seen["interface"]): dict(seen)})
            done += [self._run(step, "applied", check) for step in steps]
            script += steps
        outcomes = self._files.apply(_boot_files(script) if script else [], check=check)
        self._enable(bool(script), check)
        return done, outcomes

    def rollback(self, check: bool = False) -> tuple[list[Done], list[Outcome]]:
        """Give every interface the values that it had before the first apply(), and remove the boot files."""
        done: list[Done] = []
        kept = self._prior.recall(_KIND)
        owned = {name: {"hca": seen["hca"], "port": seen["port"], "pci": seen["pci"]} for name, seen in kept.items()}
        for name, before in kept.items():
            if not self._fs.exists(f"{_roce_qos.NET}/{name}"):
                done.append(Done(name, "all", "failed", why="the interface is gone"))
                continue
            now = _roce_qos.observe_interface(self._fs, self._tools, name, owned[name], before["tool"] or "auto")
            done += [self._run(step, "restored", check) for step in plan_back(now, before) if not step.done]
        self._enable(False, check)
        outcomes = self._files.rollback(check=check)
        if not check:
            failed = {entry.interface for entry in done if entry.status == "failed"}
            self._prior.forget(_KIND, [name for name in kept if name not in failed])
        return done, outcomes

    def _run(self, step: Step, status: str, check: bool) -> Done:
        if step.done:
            return Done(step.interface, step.setting, "already", step.have, step.have)
        why = "" if check else self._execute(step)
        if why:
            return Done(step.interface, step.setting, "failed", step.have, step.have, why)
        return Done(step.interface, step.setting, status, step.have, step.want)

    def _execute(self, step: Step) -> str:
        """Do it; one sentence about why it failed, "" where it did not."""
        if step.argv:
            return self._tools.run(step.argv, timeout=30).problem
        try:
            if step.cma is not None:
                _roce_qos.cma_tos(self._fs, step.cma[0], step.cma[1], int(step.value))
            else:
                self._fs.write_value(step.path, f"{step.value}\n")
        except OSError as error:
            return f"{step.path}: {error.strerror or error}"
        return ""

    def _enable(self, wanted: bool, check: bool) -> None:
        """The link that starts the unit at boot, which is what `systemctl enable` would make."""
        if check or wanted == self._fs.is_link(WANTS):
            return
        if wanted:
            self._prior.remember(_DIRECTORIES, dict.fromkeys(self._fs.missing_parents(WANTS)))
            self._fs.symlink(UNIT, WANTS)
        else:
            self._fs.remove(WANTS)
            made = sorted(self._prior.recall(_DIRECTORIES), key=len, reverse=True)
            self._prior.forget(_DIRECTORIES, [path for path in made if self._fs.remove_empty_dir(path)])
        if self._fs.is_live:
            self._tools.run(["systemctl", "daemon-reload"], timeout=60)


def plan(seen: t.Mapping[str, t.Any], wanted: Wanted) -> list[Step]:
    """The steps that bring one observed interface to *wanted*, in an order that the adapters take; those done included."""
    name, tool = str(seen["interface"]), str(seen["tool"])
    steps: list[Step] = []
    if tool == "mlnx_qos":
        steps += _with_mlnx_qos(name, seen, wanted)
    elif tool == "dcb":
        steps += _with_dcb(name, seen, wanted)
    return steps + _ecn_steps(name, seen, wanted) + _class_steps(name, seen, wanted)


def plan_back(now: t.Mapping[str, t.Any], before: t.Mapping[str, t.Any]) -> list[Step]:
    """The steps from what an interface has *now* to what it had *before*."""
    ecn = before["ecn"]
    table = {int(dscp): prio for dscp, prio in before["dscp_prio"].items()}
    wanted = Wanted(
        trust=before["trust"],
        pfc=None if before["pfc"] is None else tuple(before["pfc"]),
        dscp_prio=table,
        ecn={role: {int(prio): on for prio, on in ecn[role].items()} for role in _roce_qos.ECN_ROLES},
        cnp_dscp=ecn["cnp_dscp"],
        cnp_priority=ecn["cnp_priority"],
        tclass=before["tclass"] if before["tclass"] is not None else (0 if now["tclass"] else None),
        cma_tos=before["cma_tos"],
    )
    steps = plan(now, wanted)
    if now["tool"] == "dcb" and _table(now["dscp_prio"]) != _table(table):
        steps = [step for step in steps if step.setting != "dscp_prio"]
        steps = [*_dcb_table(str(now["interface"]), now["dscp_prio"], table), *steps]
    return steps


# ---- trust, DSCP and PFC


def _with_mlnx_qos(name: str, seen: t.Mapping[str, t.Any], wanted: Wanted) -> list[Step]:
    base = ("mlnx_qos", "-i", name)
    steps = []
    if wanted.trust is not None:
        steps.append(Step(name, "trust", str(seen["trust"]), wanted.trust, (*base, "--trust", wanted.trust)))
    if wanted.trust != "pcp":  # the table exists only while DSCP is trusted
        for dscp, prio in wanted.dscp_prio.items():
            have = str(seen["dscp_prio"].get(str(dscp)))
            steps.append(Step(name, f"dscp {dscp}", have, str(prio), (*base, "--dscp2prio", f"set,{dscp},{prio}")))
    if wanted.pfc is not None:
        bits = ",".join(str(int(prio in wanted.pfc)) for prio in _roce_qos.PRIORITIES)
        steps.append(Step(name, "pfc", _priorities(seen["pfc"]), _priorities(wanted.pfc), (*base, "--pfc", bits)))
    return steps


def _with_dcb(name: str, seen: t.Mapping[str, t.Any], wanted: Wanted) -> list[Step]:
    """With dcb the first DSCP entry switches trust to DSCP and the last one's removal back to PCP (mlx5's dcbnl)."""
    steps = []
    if wanted.dscp_prio and wanted.trust != "pcp":
        pairs = [f"{dscp}:{prio}" for dscp, prio in wanted.dscp_prio.items()]
        have = {dscp: seen["dscp_prio"].get(str(dscp)) for dscp in wanted.dscp_prio}
        argv = ("dcb", "app", "replace", "dev", name, "dscp-prio", *pairs)
        steps.append(Step(name, "dscp_prio", _table(have), _table(wanted.dscp_prio), argv))
    if wanted.pfc is not None:
        words = ["all:off", *(f"{prio}:on" for prio in wanted.pfc)]
        argv = ("dcb", "pfc", "set", "dev", name, "prio-pfc", *words)
        steps.append(Step(name, "pfc", _priorities(seen["pfc"]), _priorities(wanted.pfc), argv))
    return steps


def _dcb_table(name: str, have: t.Mapping[str, int], want: t.Mapping[int, int]) -> list[Step]:
    """The whole DSCP table as it was: emptied, then filled with what was in it."""
    pairs = [f"{dscp}:{prio}" for dscp, prio in want.items()]
    emptied = Step(name, "dscp_prio", _table(have), "", ("dcb", "app", "flush", "dev", name, "dscp-prio"))
    filled = Step(name, "dscp_prio", "", _table(want), ("dcb", "app", "add", "dev", name, "dscp-prio", *pairs))
    return [emptied, *([filled] if pairs else [])]


def _table(table: t.Mapping[t.Any, int | None]) -> str:
    return " ".join(f"{dscp}:{prio}" for dscp, prio in sorted((int(d), p) for d, p in table.items()))


def _priorities(priorities: t.Iterable[int] | None) -> str:
    return "unknown" if priorities is None else ",".join(map(str, sorted(priorities))) or "none"


# ---- ECN and traffic classes


def _ecn_steps(name: str, seen: t.Mapping[str, t.Any], wanted: Wanted) -> list[Step]:
    ecn = seen["ecn"]
    steps = []
    base = f"{_roce_qos.NET}/{name}/ecn"
    for role, switches in wanted.ecn.items():
        for prio, on in switches.items():
            enabled = ecn[role].get(str(prio))
            if enabled is not None:
                path, want = f"{base}/roce_{role}/enable/{prio}", str(int(on))
                steps.append(Step(name, f"ecn {role} {prio}", str(int(enabled)), want, path=path, value=want))
    if ecn["source"] == "sysfs":
        paths = {"cnp_dscp": f"{base}/roce_np/cnp_dscp", "cnp_priority": f"{base}/roce_np/cnp_802p_prio"}
    else:
        here = f"{_roce_qos.DEBUGFS}/{seen['pci']}/cc_params"
        paths = {"cnp_dscp": f"{here}/np_cnp_dscp", "cnp_priority": f"{here}/np_cnp_prio"}
    for setting, path in paths.items():
        value = getattr(wanted, setting)
        if value is not None and ecn[setting] is not None:
            steps.append(Step(name, setting, str(ecn[setting]), str(value), path=path, value=str(value)))
    return steps


def _class_steps(name: str, seen: t.Mapping[str, t.Any], wanted: Wanted) -> list[Step]:
    hca, port = str(seen["hca"]), int(seen["port"])
    steps = []
    if wanted.cma_tos is not None and seen["cma_tos"] is not None:
        path = f"{_roce_qos.RDMA_CM}/{hca}/ports/{port}/default_roce_tos"
        value = str(wanted.cma_tos)
        steps.append(Step(name, "cma_tos", str(seen["cma_tos"]), value, path=path, value=value, cma=(hca, port)))
    if wanted.tclass is not None and seen["tclass"] is not None:
        path = _roce_qos.tclass_path(hca, port)
        value = str(wanted.tclass)
        steps.append(Step(name, "tclass", str(seen["tclass"]), value, path=path, value=value))
    return steps


def _unsupported(seen: t.Mapping[str, t.Any], wanted: Wanted, steps: t.Sequence[Step]) -> list[Done]:
    """What was asked for and the interface offers no way to set."""
    name = str(seen["interface"])
    planned = {step.setting for step in steps}
    missing = []
    if not seen["tool"]:
        missing.append(Done(name, "trust and pfc", "unsupported", why=str(seen["problem"])))
    if wanted.ecn and not any(setting.startswith("ecn ") for setting in planned):
        where = (
            "debugfs shows parameters only, the priorities are the firmware's"
            if seen["ecn"]["source"]
            else "no ecn attributes"
        )
        missing.append(Done(name, "ecn", "unsupported", why=where))
    if wanted.cma_tos is not None and "cma_tos" not in planned:
        missing.append(Done(name, "cma_tos", "unsupported", why="configfs is not mounted, or rdma_cm is not loaded"))
    return missing


# ---- boot


def _boot_files(steps: t.Sequence[Step]) -> list[OwnedFile]:
    lines = "\n".join(step.shell() for step in steps)
    script = (
        "#!/bin/sh\n"
        f"# {MARK}, role roce_qos: written by it, run at boot by {UNIT_NAME}.\n"
        "# A line that fails does not keep the others from running.\n"
        f"{lines}\n"
    )
    unit = (
        f"# {MARK}, role roce_qos\n"
        "[Unit]\n"
        "Description=Quality of service of the RoCE interfaces\n"
        "Wants=network.target\n"
        "After=network.target openibd.service sys-kernel-config.mount sys-kernel-debug.mount\n"
        "\n"
        "[Service]\n"
        "Type=oneshot\n"
        "RemainAfterExit=yes\n"
        f"ExecStart={SCRIPT}\n"
        "\n"
        "[Install]\n"
        "WantedBy=multi-user.target\n"
    )
    return [OwnedFile(SCRIPT, script, 0o755), OwnedFile(UNIT, unit)]
