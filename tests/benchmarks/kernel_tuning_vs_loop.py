#!/usr/bin/env python3
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""25 kernel parameters on the lab's nodes: the role kernel_tuning against a loop of ansible.posix.sysctl.

Both in the same ansible-playbook with the same ansible.cfg (pipelining on), over connections that are open already. Cold: the
nodes have none of the values and no file. Unchanged: the same play once more. After every play each node's values are read
and compared, so that what is timed is work that was done. What is compared are whole plays, from the start of
ansible-playbook to its end. Needs a lab that is up, and an ansible-playbook that finds ansible.posix (the PyPI package
`ansible` brings it):

    python tests/benchmarks/kernel_tuning_vs_loop.py --inventory DIR/inventory --ansible VENV/bin --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import typing as t

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

WHAT = (
    "Seconds and SSH calls to bring every node of the lab to 25 kernel parameters and keep them in a file: the role "
    "kernel_tuning (one call that sets and reads back) against a loop of ansible.posix.sysctl (sysctl_set: true, reload: false)."
)

#: none of these is a fresh kernel's own value
KEYS = {
    "net.core.rmem_max": "134217728",
    "net.core.wmem_max": "134217728",
    "net.core.rmem_default": "1048576",
    "net.core.wmem_default": "1048576",
    "net.core.netdev_max_backlog": "250000",
    "net.core.netdev_budget": "600",
    "net.core.somaxconn": "8192",
    "net.core.optmem_max": "262144",
    "net.ipv4.tcp_rmem": "4096 131072 134217728",
    "net.ipv4.tcp_wmem": "4096 65536 134217728",
    "net.ipv4.tcp_max_syn_backlog": "8192",
    "net.ipv4.tcp_tw_reuse": "1",
    "net.ipv4.tcp_fin_timeout": "30",
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_mtu_probing": "1",
    "net.ipv4.tcp_no_metrics_save": "1",
    "net.ipv4.tcp_keepalive_time": "600",
    "net.ipv4.tcp_keepalive_intvl": "30",
    "net.ipv4.ip_local_port_range": "20000 60999",
    "net.ipv4.neigh.default.gc_thresh1": "4096",
    "net.ipv4.neigh.default.gc_thresh2": "8192",
    "net.ipv4.neigh.default.gc_thresh3": "16384",
    "net.ipv4.conf.all.arp_announce": "2",
    "vm.max_map_count": "262144",
    "vm.swappiness": "10",
}
CONTENDERS, STATES = ("role", "loop"), ("cold", "unchanged")
LOOP_FILE = "/etc/sysctl.d/90-loop.conf"

ROLE_PLAY = """
- hosts: all
  gather_facts: false
  ignore_unreachable: true
  roles:
    - role: gpufabric.cluster.kernel_tuning
"""
LOOP_PLAY = f"""
- hosts: all
  gather_facts: false
  become: true
  tasks:
    - name: Set the key
      ansible.posix.sysctl:
        name: "{{{{ item.key }}}}"
        value: "{{{{ item.value }}}}"
        sysctl_file: {LOOP_FILE}
        sysctl_set: true
        reload: false
      loop: "{{{{ keys | dict2items }}}}"
"""


class Bench:
    """Runs plays on the lab, with a shim before ssh that counts its calls."""

    def __init__(self, inventory: pathlib.Path, programs: pathlib.Path, folder: pathlib.Path) -> None:
        self.inventory = inventory
        self.programs = programs
        self.calls = folder / "calls"
        shim = folder / "ssh"
        shim.write_text(f'#!/bin/sh\necho >> {self.calls}\nexec ssh "$@"\n')
        shim.chmod(0o755)
        self.environment = {**os.environ, "ANSIBLE_SSH_EXECUTABLE": str(shim), "ANSIBLE_NOCOLOR": "1"}
        texts = {"role": ROLE_PLAY, "loop": LOOP_PLAY}
        self.plays = {contender: folder / f"{contender}.yml" for contender in texts}
        for contender, text in texts.items():
            self.plays[contender].write_text(text)
        self.variables = {
            "keys": KEYS,
            "kernel_tuning_profile": "none",
            "kernel_tuning_sysctl": KEYS,
            "kernel_tuning_memlock": "",
        }

    def run(self, program: str, *arguments: str) -> str:
        where = [] if program == "ansible-galaxy" else ["-i", str(self.inventory)]
        argv = [str(self.programs / program), *where, *arguments]
        done = subprocess.run(argv, cwd=REPOSITORY, env=self.environment, capture_output=True, text=True, timeout=900)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv[:6])}: {done.stdout[-3000:]}{done.stderr[-1000:]}")
        return done.stdout

    def shell(self, command: str, hosts: str = "all") -> list[str]:
        """The lines that a command prints on the nodes, one node after the other."""
        text = self.run("ansible", hosts, "-b", "-m", "ansible.builtin.shell", "-a", command)
        return [line for line in text.splitlines() if line.strip() and " | CHANGED | rc=" not in line]

    def timed(self, contender: str) -> dict[str, t.Any]:
        """One play: seconds, calls of ssh over all nodes, changed tasks over all nodes."""
        self.shell("true")  # opens the connections, which is nobody's merit
        self.calls.write_text("")
        began = time.monotonic()
        text = self.run("ansible-playbook", str(self.plays[contender]), "-e", json.dumps(self.variables))
        seconds = time.monotonic() - began
        calls = len(self.calls.read_text().splitlines())
        recap = re.findall(r"^\S+\s*: ok=\d+\s+changed=(\d+)", text, re.MULTILINE)
        return {"seconds": round(seconds, 3), "ssh_calls": calls, "nodes": len(recap), "changed": sum(map(int, recap))}

    def check(self) -> None:
        """Every node holds every value."""
        found = [" ".join(line.split()) for line in self.shell(f"sysctl -n {' '.join(KEYS)}")]
        nodes, rest = divmod(len(found), len(KEYS))
        if rest or not nodes or found != list(KEYS.values()) * nodes:
            raise RuntimeError(f"the nodes do not hold what was set: {found}")

    def original(self) -> dict[str, str]:
        rows = (line.partition(" = ") for line in self.shell(f"sysctl {' '.join(KEYS)}", "all[0]"))
        return {key: " ".join(value.split()) for key, _, value in rows}

    def reset(self, original: t.Mapping[str, str]) -> None:
        """Every node as it was: no files, no record, the kernel's own values."""
        writes = " ".join(f"'{key}={value}'" for key, value in original.items())
        self.shell(f"rm -rf {LOOP_FILE} /etc/sysctl.d/99-zz-gpufabric.conf /var/lib/gpufabric; sysctl -qw {writes}")

    def versions(self) -> dict[str, str]:
        core = self.run("ansible", "--version").splitlines()[0]
        posix = json.loads(self.run("ansible-galaxy", "collection", "list", "ansible.posix", "--format", "json"))
        kernel = self.shell("uname -r; python3 -V")
        return {
            "ansible_core": core,
            "ansible_posix": next(v["version"] for found in posix.values() for v in found.values()),
            "node_kernel": kernel[0].strip(),
            "node_python": kernel[1].strip(),
        }


def figures(record: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Medians over the rounds; seconds of whole plays. `speedup` is the smaller of the two: cold, and unchanged."""

    def median(contender: str, state: str, what: str) -> float:
        return statistics.median(
            row[what] for row in record["rows"] if (row["contender"], row["state"]) == (contender, state)
        )

    derived: dict[str, t.Any] = {}
    for state in STATES:
        for contender in CONTENDERS:
            derived[f"{contender}_{state}_s"] = median(contender, state, "seconds")
            derived[f"{contender}_{state}_calls_a_node"] = median(contender, state, "ssh_calls") / median(
                contender, state, "nodes"
            )
        derived[f"speedup_{state}"] = derived[f"loop_{state}_s"] / derived[f"role_{state}_s"]
    derived["speedup"] = min(derived[f"speedup_{state}"] for state in STATES)
    derived["changed_in_unchanged_role"] = max(
        row["changed"] for row in record["rows"] if (row["contender"], row["state"]) == ("role", "unchanged")
    )
    return derived


def main() -> int:
    import recorded

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inventory", type=pathlib.Path, required=True, help="the lab's inventory")
    parser.add_argument("--ansible", type=pathlib.Path, required=True, help="the directory of ansible-playbook")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows: list[dict[str, t.Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options.inventory.absolute(), options.ansible.absolute(), pathlib.Path(folder))
        versions = bench.versions()
        original = bench.original()
        for number in range(1, options.rounds + 1):
            # who goes first changes from round to round, in case the machine does
            for contender in CONTENDERS if number % 2 else CONTENDERS[::-1]:
                bench.reset(original)
                for state in STATES:
                    row = {"round": number, "contender": contender, "state": state, **bench.timed(contender)}
                    rows.append(row)
                    print(json.dumps(row), flush=True)
                    bench.check()
            # after each round, so that one that is cut short costs only itself
            settings = {"keys": KEYS, "rounds": number, "pipelining": True, "reload": False, "forks": 50}
            host = "the lab: emulated virtual machines"
            path = recorded.write("kernel_tuning_vs_loop", WHAT, settings, rows, versions, host=host)
        bench.reset(original)
    print(json.dumps(json.loads(path.read_text())["figures"], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
