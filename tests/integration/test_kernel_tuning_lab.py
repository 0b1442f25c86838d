# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""kernel_tuning on real kernels: a Debian 12 and a Debian 13 node of the embedded cluster.

Opt-in, since it boots virtual machines: GPUFABRIC_LAB=1 pytest -m lab tests/integration/test_kernel_tuning_lab.py
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_kernel import judge_kernel
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.sysctl_profiles import resolve

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.environ.get("GPUFABRIC_LAB") != "1", reason="boots virtual machines: set GPUFABRIC_LAB=1"),
]

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
DROP_IN = "/etc/sysctl.d/99-zz-gpufabric.conf"
SYSCTL_CONF = "/etc/sysctl.conf"
BOOKWORM, TRIXIE = "n1", "n2"
NODES = (BOOKWORM, TRIXIE)

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: gpufabric.cluster.kernel_tuning, tasks_from: "{{ entry }}"}
    - ansible.builtin.copy:
        content: "{{ __kernel_tuning_observed | default(__kernel_tuning_rolled_back, true) | to_json }}"
        dest: "{{ out }}/{{ inventory_hostname }}.json"
        mode: '0644'
      delegate_to: localhost
      vars: {ansible_become: false}
      check_mode: false
      changed_when: false
"""

#: keys that count what the kernel does at the moment, and are no settings
COUNTERS = {
    "fs.dentry-state",
    "fs.file-nr",
    "fs.inode-nr",
    "fs.inode-state",
    "kernel.ns_last_pid",
    "kernel.random.uuid",
}

#: modules that the kernel loads by itself for whoever lists sockets, as the rollback from bbr does
SOCKET_LISTING = {"inet_diag", "tcp_diag"}

#: everything that kernel_tuning might touch, and what it must not
LOOK = """
sysctl -a 2>/dev/null
echo ==
find /etc /var/lib/gpufabric /usr/lib/sysctl.d -xdev -printf '%p %M %u %g %l\\n' 2>/dev/null | sort
find /etc /usr/lib/sysctl.d -xdev -type f -print0 | sort -z | xargs -0 sha256sum
echo ==
cut -d' ' -f1 /proc/modules | sort
"""


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """One node: kernel parameters by key, lines about files, loaded modules."""

    keys: dict[str, str]
    files: frozenset[str]
    modules: frozenset[str]

    def changed_keys(self, other: Snapshot) -> set[str]:
        return {key for key in self.keys.keys() | other.keys.keys() if self.keys.get(key) != other.keys.get(key)}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a play did: the number of changed tasks, and what the module returned, by node."""

    changed: dict[str, int]
    observed: dict[str, dict[str, t.Any]]

    def findings(self, severity: str = "") -> list[Finding]:
        return [f for f in judge_kernel(self.observed, {}) if severity in ("", f.severity)]

    def statuses(self, node: str) -> dict[str, str]:
        return {key["key"]: key["status"] for key in self.observed[node]["keys"]}


class Cluster:
    """The lab, with the few things that these tests do to it."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.play = directory.parent / "play.yml"
        self.play.write_text(PLAY)

    def lab(self, *arguments: str, timeout: float = 120) -> str:
        command, *rest = arguments
        argv = [sys.executable, "-m", "lab", command, "--dir", str(self.directory), *rest]
        done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr[-2000:]}"
        return done.stdout

    def on(self, node: str, command: str) -> str:
        return self.lab("ssh", node, command)

    def run(self, entry: str, *arguments: str, **variables: t.Any) -> Outcome:
        out = self.directory.parent / "observed"
        out.mkdir(exist_ok=True)
        for file in out.iterdir():
            file.unlink()
        text = self.ansible(
            "ansible-playbook",
            str(self.play),
            "-e",
            json.dumps({"entry": entry, "out": str(out), **variables}),
            *arguments,
        )
        recap = dict(re.findall(r"^(\S+)\s*: ok=\d+\s+changed=(\d+)", text, re.MULTILINE))
        observed = {file.stem: json.loads(file.read_text()) for file in out.iterdir()}
        assert set(observed) == set(NODES), text
        assert all("files" in result for result in observed.values()), observed
        return Outcome({node: int(recap[node]) for node in NODES}, observed)

    def ansible(self, program: str, *arguments: str) -> str:
        inventory = self.directory / "inventory"
        argv = [str(pathlib.Path(sys.executable).parent / program), "-i", str(inventory), *arguments]
        done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        return done.stdout

    def look(self) -> dict[str, Snapshot]:
        found = {}
        for node in NODES:
            keys, files, modules = self.on(node, LOOK).split("==\n")
            rows = (line.partition(" = ") for line in keys.splitlines())
            found[node] = Snapshot(
                {key: value for key, _, value in rows}, frozenset(files.splitlines()), frozenset(modules.split())
            )
        return found

    def reboot(self) -> None:
        before = {node: self.on(node, "cat /proc/sys/kernel/random/boot_id") for node in NODES}
        for node in NODES:
            self.on(node, "systemd-run --on-active=1 systemctl reboot >/dev/null 2>&1; true")
        deadline = time.monotonic() + 400
        waiting = set(NODES)
        while waiting:
            assert time.monotonic() < deadline, f"{waiting} did not come back"
            time.sleep(3)
            for node in sorted(waiting):
                try:
                    if self.on(node, "cat /proc/sys/kernel/random/boot_id") != before[node]:
                        waiting.remove(node)
                except (AssertionError, subprocess.TimeoutExpired):
                    continue


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("kernel") / "lab")
    found.lab("up", "--nodes", "2", "--release", "bookworm,trixie", timeout=900)
    try:
        yield found
    finally:
        found.lab("down")


@pytest.fixture(scope="module")
def untouched(cluster: Cluster) -> tuple[dict[str, Snapshot], dict[str, set[str]]]:
    """The nodes before anybody tuned them, and the keys that drift by themselves: two snapshots with a module call between."""
    first = cluster.look()
    cluster.ansible("ansible", "all", "-b", "-m", "ansible.builtin.ping")
    second = cluster.look()
    return second, {node: COUNTERS | first[node].changed_keys(second[node]) for node in NODES}


def assert_as_before(
    cluster: Cluster,
    untouched: tuple[dict[str, Snapshot], dict[str, set[str]]],
    keys: t.Collection[str] | None = None,
) -> None:
    """Files, modules and keys are as in the snapshot. keys: which of them, by default all that do not drift by themselves."""
    before, drift = untouched
    after = cluster.look()
    for node in NODES:
        changed = before[node].changed_keys(after[node]) - drift[node]
        assert (changed if keys is None else changed & set(keys)) == set()
        assert before[node].files == after[node].files
        assert before[node].modules ^ after[node].modules <= SOCKET_LISTING


def test_check_mode_says_what_it_would_do_and_does_nothing(cluster: Cluster, untouched: t.Any) -> None:
    outcome = cluster.run("main", "--check", "--diff")
    assert set(outcome.changed.values()) == {1}
    for node in NODES:
        assert set(outcome.statuses(node).values()) == {"applied", "already"}
    assert outcome.findings() == []
    assert_as_before(cluster, untouched)


@pytest.mark.parametrize("home", [DROP_IN, SYSCTL_CONF])
def test_tuned_kept_healed_and_given_back(cluster: Cluster, untouched: t.Any, home: str) -> None:
    wanted = {setting["key"]: setting["value"] for setting in resolve("guide")}
    unread = {TRIXIE: ["sysctl_conf_not_read_at_boot"]} if home == SYSCTL_CONF else {}

    def only_says_what_boot_reads(outcome: Outcome) -> None:
        for node in NODES:
            assert [f.id for f in outcome.findings() if f.node == node] == unread.get(node, [])

    first = cluster.run("main", kernel_tuning_sysctl_file=home)
    assert all(first.changed.values())
    only_says_what_boot_reads(first)
    for node, found in cluster.look().items():
        assert {key: " ".join(found.keys[key].split()) for key in wanted} == wanted
        assert "tcp_bbr" in found.modules
        assert first.observed[node]["memlock"]["soft"] == "unlimited"
        assert first.observed[node]["memlock_session"]["text"].split() == ["unlimited", "unlimited"]

    second = cluster.run("main", kernel_tuning_sysctl_file=home)
    assert set(second.changed.values()) == {0}

    cluster.on(TRIXIE, "sysctl -qw net.ipv4.tcp_fin_timeout=99")
    plant = "net.core.rmem_max = 212992"
    cluster.on(BOOKWORM, f"printf '# vendor\\n{plant}\\n' > /etc/sysctl.d/zz-vendor.conf")
    lost = ("sysctl_lost_at_boot", BOOKWORM, "net.core.rmem_max")
    seen = cluster.run("verify", kernel_tuning_sysctl_file=home)
    assert {(f.id, f.node, f.subject) for f in seen.findings("error")} == {
        ("sysctl_differs", TRIXIE, "net.ipv4.tcp_fin_timeout"),
        lost,
    }
    healed = cluster.run("main", kernel_tuning_sysctl_file=home)
    assert healed.changed == {BOOKWORM: 0, TRIXIE: 1}
    (error,) = healed.findings("error")
    assert (error.id, error.node, error.subject) == lost
    assert "/etc/sysctl.d/zz-vendor.conf:2" in error.evidence
    cluster.on(BOOKWORM, "rm /etc/sysctl.d/zz-vendor.conf")

    cluster.run("rollback")
    assert_as_before(cluster, untouched)


def test_one_remote_call_sets_every_key(cluster: Cluster) -> None:
    settings = json.dumps({"settings": resolve("guide"), "state": "present"})
    text = cluster.ansible("ansible", BOOKWORM, "-b", "-vvv", "-m", "gpufabric.cluster.sysctl_profile", "-a", settings)
    interpreter_known = [line for line in text.splitlines() if "SSH: EXEC" in line]
    assert len(interpreter_known) == 1
    assert '"status": "failed"' not in text
    cluster.run("rollback")


def test_bbr_whose_module_is_hidden_is_not_available(cluster: Cluster, untouched: t.Any) -> None:
    for node in NODES:
        cluster.on(node, "f=$(modinfo -n tcp_bbr) && echo $f > /root/bbr && mv $f /root/hidden")
    try:
        outcome = cluster.run("main")
        for node in NODES:
            assert outcome.statuses(node)["net.ipv4.tcp_congestion_control"] == "value_not_available"
            assert cluster.on(node, f"grep -c '^net.ipv4.tcp_congestion_control' {DROP_IN} || true").strip() == "0"
        assert {(f.id, f.severity) for f in outcome.findings()} == {("sysctl_value_not_available", "warning")}
        assert set(cluster.run("main").changed.values()) == {0}
        cluster.run("rollback")
    finally:
        for node in NODES:
            cluster.on(node, "mv /root/hidden $(cat /root/bbr) && rm /root/bbr")
    assert_as_before(cluster, untouched)


def test_what_is_said_about_the_boot_comes_true_and_rollback_works_afterwards(
    cluster: Cluster, untouched: t.Any
) -> None:
    cluster.run("main", kernel_tuning_profile="tcp_100g", kernel_tuning_qdisc="fq")
    cluster.run("main")
    cluster.on(BOOKWORM, "printf 'net.ipv4.tcp_fin_timeout = 77\\n' > /etc/sysctl.d/zz-vendor.conf")
    said = cluster.run("verify")
    cluster.reboot()
    cluster.on(BOOKWORM, "rm /etc/sysctl.d/zz-vendor.conf")
    after = cluster.look()
    for node in NODES:
        for entry in said.observed[node]["boot"]["keys"]:
            assert " ".join(after[node].keys[entry["key"]].split()) == entry["value"]
    assert after[BOOKWORM].keys["net.ipv4.tcp_fin_timeout"] == "77"
    assert [(f.node, f.subject) for f in cluster.run("verify").findings("error")] == [
        (BOOKWORM, "net.ipv4.tcp_fin_timeout")
    ]
    cluster.run("rollback")
    # what the kernel derives from free memory, and its boot id, differ from boot to boot: ours, and what bbr brings, must not
    ours = {s["key"] for profile in ("guide", "tcp_100g") for s in resolve(profile)} | {"net.core.default_qdisc"}
    ours |= {f"net.ipv4.tcp_{kind}_congestion_control" for kind in ("available", "allowed")}
    assert_as_before(cluster, untouched, ours)
