# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role nccl_env from end to end on directory trees, one playbook run for many kinds of nodes at once."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import typing as t

import pytest
import yaml
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_node import FakeNode
from ansible_collections.gpufabric.cluster.tests.fixtures.nccl_fleet import GUIDE

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENDOR = '# vendor\r\nNCCL_TOPO_FILE=/opt/t.xml\nNCCL_QUOTED="1"\nNCCL_IB_TIMEOUT=21'

#: {node: its variables}; every node is a tree with two RoCE HCAs unless it is called bare
NODES: dict[str, dict[str, t.Any]] = {
    "plain": {},
    "bare": {},
    "vendor": {},
    "adopted": {"nccl_env_adopt": True},
    "strict": {"nccl_env_variables": GUIDE},
    "warned": {"nccl_env_variables": GUIDE, "nccl_env_validation": "warn"},
    "evil": {
        "nccl_env_validation": "warn",
        "nccl_env_variables": {
            "NCCL_DEBUG_FILE": "$(touch /tmp/gpufabric-evil)",
            "NCCL_IB_TIMEOUT": "22\nNCCL_ALGO=Tree",
            "NCCL_HOSTID": "'; reboot; '",
            "NCCL_SOCKET_MAGIC": "１",
            "NCCL-DEBUG": 1,
            "NCCL_TOPO_FILE": "/" + "x" * 2048,
        },
    },
    "files": {
        "nccl_env_environment_d": True,
        "nccl_env_slurm_task_prolog": "/etc/slurm/prolog.d/nccl.sh",
        "nccl_env_enroot_mount": True,
        "nccl_env_profiles": ["roce", "lora"],
    },
}


@dataclasses.dataclass
class Fleet:
    directory: pathlib.Path
    variables: dict[str, dict[str, t.Any]]

    def path(self, node: str, path: str) -> pathlib.Path:
        return self.directory / node / path.lstrip("/")

    def read(self, node: str, path: str = "/etc/nccl.conf") -> str:
        return self.path(node, path).read_text() if self.path(node, path).exists() else ""

    def tree(self, node: str) -> dict[str, bytes]:
        root = self.directory / node
        files = (p for p in sorted(root.rglob("*")) if p.is_file() and not p.is_symlink())
        return {
            name: p.read_bytes()
            for p in files
            if not (name := str(p.relative_to(root))).startswith((".tools", "tool-calls"))
        }

    def play(self, *arguments: str, entry: str = "main", hosts: str = "all", **said: t.Any) -> dict[str, t.Any]:
        """Run one entry point of the role, and return {changed: {node: bool}, observed: {node: nccl_env_info's}, out}.

        said: variables of the play itself.
        """
        inventory = {
            "all": {"hosts": {n: {"gpufabric_root": str(self.directory / n), **v} for n, v in self.variables.items()}}
        }
        inventory["all"]["vars"] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "nccl_env_become": False,
            "nccl_env_nccl_version": "2.28.9",
            "nccl_env_proof": [],
            "rdma_allowed_drivers": ["mlx5_core"],
        }
        (self.directory / "hosts.yml").write_text(yaml.safe_dump(inventory))
        play = {
            "hosts": hosts,
            "gather_facts": False,
            "ignore_unreachable": True,
            "vars": said,
            "tasks": [
                {"include_role": {"name": "gpufabric.cluster.nccl_env", "tasks_from": entry}},
                {
                    "copy": {
                        "dest": f"{self.directory}/seen.{{{{ inventory_hostname }}}}.json",
                        "content": "{{ {'written': __nccl_env_written | default({}), "
                        "'observed': __nccl_env_observed.observed | default({})} | to_json }}",
                    },
                    "check_mode": False,
                    "changed_when": False,
                },
            ],
        }
        (self.directory / "play.yml").write_text(yaml.safe_dump([play]))
        done = subprocess.run(
            [f"{pathlib.Path(sys.executable).parent}/ansible-playbook", "-i", "hosts.yml", "play.yml", *arguments],
            cwd=self.directory,
            env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
                 "ANSIBLE_HOME": str(self.directory / "home")},
            capture_output=True,
            text=True,
            timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        seen = {p.name.split(".")[1]: json.loads(p.read_text()) for p in self.directory.glob("seen.*.json")}
        return {"seen": seen, "out": done.stdout}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    directory = tmp_path_factory.mktemp("fleet")
    for number, node in enumerate(NODES, 1):
        tree = FakeNode(directory / node)
        if node != "bare":
            for rail in (0, 1):
                tree.add_hca(f"mlx5_{rail}", netdev=f"eth{rail + 1}", ipv4=f"10.20.{rail}.{number}/24")
        if node in ("vendor", "adopted"):
            tree.write("/etc/nccl.conf", "")
            tree.path("/etc/nccl.conf").write_bytes(VENDOR.encode())
            tree.path("/etc/nccl.conf").chmod(0o640)
    return Fleet(directory, NODES)


@pytest.fixture(scope="module")
def before(fleet: Fleet) -> dict[str, dict[str, bytes]]:
    return {node: fleet.tree(node) for node in NODES}


@pytest.fixture(scope="module")
def checked(fleet: Fleet, before: dict[str, dict[str, bytes]]) -> dict[str, t.Any]:
    result = fleet.play("--check", "--diff")
    assert {node: fleet.tree(node) for node in NODES} == before, "check mode wrote something"
    return result


@pytest.fixture(scope="module")
def applied(fleet: Fleet, checked: dict[str, t.Any]) -> dict[str, t.Any]:
    return fleet.play()


def values(fleet: Fleet, node: str) -> dict[str, str]:
    lines = [line for line in fleet.read(node).splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def findings(result: dict[str, t.Any], node: str) -> list[dict[str, str]]:
    return list(result["seen"][node]["observed"]["resolved"]["findings"])


def test_check_mode_says_what_it_would_do(checked: dict[str, t.Any]) -> None:
    assert checked["seen"]["plain"]["written"]["changed"]
    assert "+NCCL_IB_HCA==mlx5_0:1,mlx5_1:1" in checked["out"]


def test_a_plain_node(fleet: Fleet, applied: dict[str, t.Any]) -> None:
    assert values(fleet, "plain") == {
        "NCCL_DEBUG": "WARN",
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
        "NCCL_IB_TIMEOUT": "22",
        "NCCL_IB_QPS_PER_CONNECTION": "4",
    }
    assert "NCCL_IB_HCA" not in fleet.read("plain", "/etc/profile.d/nccl.sh")
    assert "NCCL_DEBUG" in fleet.read("plain", "/etc/profile.d/nccl.csh")
    assert fleet.path("plain", "/etc/nccl.conf").stat().st_mode & 0o777 == 0o644


def test_what_a_play_says_stands_above_what_nodes_say(fleet: Fleet, applied: dict[str, t.Any]) -> None:
    result = fleet.play(entry="verify", hosts="plain:warned", nccl_env_variables={"NCCL_IB_TIMEOUT": "19"})
    for node in ("plain", "warned"):
        resolved = {v["name"]: v["value"] for v in result["seen"][node]["observed"]["resolved"]["variables"]}
        assert resolved["NCCL_IB_TIMEOUT"] == "19"
        assert "NCCL_BUFFSIZE" not in resolved


def test_a_node_without_hcas(fleet: Fleet, applied: dict[str, t.Any]) -> None:
    assert values(fleet, "bare")["NCCL_SOCKET_NTHREADS"] == "2"
    assert "nccl_no_hca" in {f["id"] for f in findings(applied, "bare")}


def test_a_vendors_file_stays(fleet: Fleet, applied: dict[str, t.Any]) -> None:
    assert fleet.path("vendor", "/etc/nccl.conf").read_bytes() == VENDOR.encode()
    outcomes = {o["path"]: o["status"] for o in applied["seen"]["vendor"]["written"]["outcomes"]}
    assert outcomes["/etc/nccl.conf"] == "foreign" and outcomes["/etc/profile.d/nccl.sh"] == "written"


def test_a_vendors_file_that_was_taken_over_keeps_its_variables(fleet: Fleet, applied: dict[str, t.Any]) -> None:
    assert values(fleet, "adopted")["NCCL_TOPO_FILE"] == "/opt/t.xml"
    assert values(fleet, "adopted")["NCCL_IB_TIMEOUT"] == "21"
    assert values(fleet, "adopted")["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"


def test_strict_writes_nothing(fleet: Fleet, before: dict[str, dict[str, bytes]], applied: dict[str, t.Any]) -> None:
    assert fleet.tree("strict") == before["strict"]
    never = [
        f for f in findings(applied, "strict") if f["id"] == "nccl_variable_never_existed" and f["node"] == "strict"
    ]
    assert [f["severity"] for f in never] == ["error"] * 5


def test_warn_writes_what_is_right(fleet: Fleet, applied: dict[str, t.Any]) -> None:
    given = values(fleet, "warned")
    assert given["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1" and "NCCL_NCHANNELS" not in given and "NCCL_ALGO" not in given


def test_no_evil_value_reaches_a_file(fleet: Fleet, applied: dict[str, t.Any]) -> None:
    everything = b"".join(content for path, content in fleet.tree("evil").items() if "nccl" in path)
    for trace in (b"touch", b"reboot", b"Tree", b"xxxx", "１".encode()):
        assert trace not in everything
    assert not pathlib.Path("/tmp/gpufabric-evil").exists()
    assert len([f for f in findings(applied, "evil") if f["node"] == "evil"]) >= 6


def test_all_files(fleet: Fleet, applied: dict[str, t.Any]) -> None:
    assert 'NCCL_DEBUG="WARN"' in fleet.read("files", "/etc/environment.d/90-gpufabric-nccl.conf")
    assert os.access(fleet.path("files", "/etc/slurm/prolog.d/nccl.sh"), os.X_OK)
    assert "/etc/nccl.conf /etc/nccl.conf none" in fleet.read("files", "/etc/enroot/mounts.d/60-gpufabric-nccl.fstab")
    assert "NCCL_IB_QPS_PER_CONNECTION" not in values(fleet, "files")


def test_second_run_verify_explain_and_rollback(
    fleet: Fleet, before: dict[str, dict[str, bytes]], applied: dict[str, t.Any]
) -> None:
    after = {node: fleet.tree(node) for node in NODES}
    again = fleet.play()
    assert not any(node["written"].get("changed") for node in again["seen"].values())
    assert {node: fleet.tree(node) for node in NODES} == after
    told = fleet.play(entry="explain", hosts="plain")["out"]
    assert "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1" in told and "left out:" in told and "profile guide" in told
    fleet.play(entry="rollback")
    assert {node: fleet.tree(node) for node in NODES} == before
    assert fleet.path("adopted", "/etc/nccl.conf").stat().st_mode & 0o777 == 0o640


def test_files_that_are_no_longer_wanted_go(fleet: Fleet, before: dict[str, dict[str, bytes]]) -> None:
    fleet.play(hosts="files")
    assert fleet.read("files", "/etc/environment.d/90-gpufabric-nccl.conf")
    fleet.play("-e", "nccl_env_environment_d=false", "-e", "nccl_env_profile_d=false", hosts="files")
    assert not fleet.read("files", "/etc/environment.d/90-gpufabric-nccl.conf")
    assert not fleet.read("files", "/etc/profile.d/nccl.sh") and fleet.read("files")
    fleet.play(entry="rollback", hosts="files")
    assert fleet.tree("files") == before["files"]
