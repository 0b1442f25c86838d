# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab itself, on virtual machines: GPUFABRIC_LAB=1 pytest -m lab tests/unit/lab."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
import typing as t

import pytest

from lab import process, state
from lab.cluster import Cluster
from lab.errors import LabError
from lab.faults import KINDS, Parameters
from lab.paths import REPOSITORY
from lab.plan import make_plan
from lab.state import Settings

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.environ.get("GPUFABRIC_LAB") != "1", reason="boots virtual machines: set GPUFABRIC_LAB=1"),
]

RELEASES = tuple(os.environ.get("GPUFABRIC_LAB_RELEASES", "bookworm").split(","))
PLAN = make_plan(2, 2, RELEASES)
RAIL = 1
DEVICE = f"mlx5_{RAIL}"
INTERFACE = f"eth{RAIL + 1}"
PEER_ADDRESS = str(PLAN.node("n1").rails[RAIL].address)

# Everything that a fault may change on a node, in a form that two reads of an unchanged node give alike.
SNAPSHOT = (
    "ip -o link show; ip -o -4 address show; rdma link; nft list ruleset; ls /etc/sysctl.d; "
    "readlink -f /usr/bin/python3; modprobe -n -v tcp_bbr"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("lab") / "run") as one:
        one.up(Settings(releases=RELEASES))
        yield one


def output(cluster: Cluster, node: str, command: str) -> str:
    done = cluster.run(node, command)
    return done.output + done.errors


def ping(cluster: Cluster, options: str = "") -> str:
    return output(cluster, "n2", f"ping -q -c 3 -i 0.2 -W 1 {options} {PEER_ADDRESS}")


def round_trip_ms(text: str) -> float:
    return float(text.rpartition("= ")[2].split("/")[0])


def pingpong(cluster: Cluster) -> int:
    """Exit status of a reliable connection over RoCE from n2 to n1: 124 when it hangs."""
    listen = f"nohup timeout 25 ibv_rc_pingpong -d {DEVICE} -g 1 -n 20 >/dev/null 2>&1 & sleep 1"
    assert cluster.run("n1", listen).status == 0
    return cluster.run("n2", f"timeout 10 ibv_rc_pingpong -d {DEVICE} -g 1 -n 20 {PEER_ADDRESS}").status


def connects(cluster: Cluster, port: int) -> bool:
    """Whether n1 gets a TCP connection to n2's port on the control network."""
    address = PLAN.node("n2").control.address
    script = f"import socket; socket.create_connection(('{address}', {port}), 3)"
    serve = f"nohup timeout 20 python3 -m http.server {port} >/dev/null 2>&1 & sleep 2"
    if port != 22:
        cluster.run("n2", serve)
    return cluster.run("n1", f'python3 -c "{script}"').status == 0


def shows(cluster: Cluster, kind: str) -> bool:
    """Whether the fault shows as docs/lab.md says."""
    if kind in ("link-down", "carrier-down"):
        return "state DOWN" in output(cluster, "n2", f"rdma link show {DEVICE}/1")
    if kind == "switch-port-down":
        up = "state ACTIVE" in output(cluster, "n2", f"rdma link show {DEVICE}/1")
        return up and " 100% packet loss" in ping(cluster)
    if kind == "mtu-mismatch":
        return output(cluster, "n2", f"cat /sys/class/net/{INTERFACE}/mtu").strip() == "1500"
    if kind == "mtu-black-hole":
        return " 0% packet loss" in ping(cluster) and " 100% packet loss" in ping(cluster, "-M do -s 8000")
    if kind == "hca-removed":
        return DEVICE not in output(cluster, "n2", "rdma link") and " 0% packet loss" in ping(cluster)
    if kind == "gid-lost":
        return "inet " not in output(cluster, "n2", f"ip -4 address show dev {INTERFACE}")
    if kind == "rails-swapped":
        return PLAN.node("n2").rails[0].cidr in output(cluster, "n2", f"ip -4 address show dev {INTERFACE}")
    if kind == "roce-blocked":
        return " 0% packet loss" in ping(cluster) and pingpong(cluster) != 0
    if kind == "tcp-blocked":
        return connects(cluster, 22) and not connects(cluster, 23456)
    if kind == "rate-limit":
        return round_trip_ms(ping(cluster, "-s 8000")) > 2 * 8000 * 8 / 1e6 * 1000  # at 1 Mbit/s, there and back
    if kind == "loss":
        return " 0% packet loss" not in ping(cluster, "-c 20")
    if kind == "delay":
        return round_trip_ms(ping(cluster)) > 2 * 50
    if kind == "later-drop-in":
        return "99-zz-foreign.conf" in output(cluster, "n2", "ls /etc/sysctl.d")
    if kind == "module-hidden":
        return cluster.run("n2", "modprobe tcp_bbr").status != 0
    if kind == "python-missing":
        return cluster.run("n2", "/usr/bin/python3 -c 1").status == 127
    condition = {one.name: one.condition for one in cluster.status()}["n2"]
    return condition == {"node-stopped": "paused", "power-off": "off"}[kind]


CASES = [(kind, {}) for kind, one in KINDS.items() if not one.simulated] + [("roce-blocked", {"at": "node"})]
PARAMETERS = {"rate-limit": {"rate_mbit": 1.0}, "loss": {"loss_percent": 60.0}, "delay": {"delay_ms": 50.0}}


@pytest.mark.parametrize(("kind", "more"), CASES, ids=[f"{kind}{''.join(more.values())}" for kind, more in CASES])
def test_a_fault_shows_and_is_taken_back(cluster: Cluster, kind: str, more: dict[str, t.Any]) -> None:
    before = output(cluster, "n2", SNAPSHOT)
    assert f"link {DEVICE}/1 state ACTIVE" in before
    fault = cluster.inject(kind, "n2", Parameters(rail=RAIL, **{**PARAMETERS.get(kind, {}), **more}))
    try:
        assert cluster.faults() == [fault]
        assert shows(cluster, kind)
        with pytest.raises(LabError, match="active already"):
            cluster.inject(kind, "n2", Parameters(rail=RAIL))
    finally:
        assert cluster.clear("n2") == [fault]
    assert cluster.faults() == []
    assert output(cluster, "n2", SNAPSHOT) == before
    assert " 0% packet loss" in ping(cluster)


def test_faults_on_top_of_each_other_are_all_taken_back(cluster: Cluster) -> None:
    before = output(cluster, "n2", SNAPSHOT)
    for kind in ("hca-removed", "gid-lost", "mtu-mismatch", "tcp-blocked", "link-down", "loss", "node-stopped"):
        cluster.inject(kind, "n2", Parameters(rail=RAIL))
    assert len(cluster.clear()) == 7
    assert output(cluster, "n2", SNAPSHOT) == before


def test_rdma_works_between_the_nodes(cluster: Cluster) -> None:
    assert pingpong(cluster) == 0


def test_clocks_run_at_the_right_speed(cluster: Cluster) -> None:
    """Bandwidths are measured by them. Each reading costs an SSH connection, whose time is allowed for."""
    readings = []
    for _ in range(2):
        before = time.time()
        node = float(output(cluster, "n1", "date +%s.%N"))
        readings.append((before, node, time.time()))
        time.sleep(10)
    (first_before, first_node, first_after), (last_before, last_node, last_after) = readings
    assert last_before - first_after - 1 < last_node - first_node < last_after - first_before + 1


def test_nodes_are_bare(cluster: Cluster) -> None:
    """What the collection is to do has not been done: no tuning, no RDMA user modules, no trust between nodes."""
    modules = output(cluster, "n1", "lsmod")
    assert "rdma_rxe" in modules
    assert not {"ib_umad", "rdma_ucm", "tcp_bbr", "mlx5_core"} & set(modules.split())
    assert output(cluster, "n1", "cat /proc/sys/net/core/rmem_max").strip() == "212992"
    assert output(cluster, "n1", "ls /root/.ssh").split() == ["authorized_keys"]


def test_nodes_differ_and_know_each_other(cluster: Cluster) -> None:
    seen = {
        name: output(cluster, name, "hostname; cat /etc/machine-id /etc/ssh/*.pub").split("\n") for name in ("n1", "n2")
    }
    assert all(mine != others for mine, others in zip(seen["n1"][:3], seen["n2"][:3], strict=True))
    assert output(cluster, "n1", "getent hosts n2").split()[0] == str(PLAN.node("n2").control.address)


def test_a_node_comes_back_from_a_reboot_as_it_was(cluster: Cluster) -> None:
    boot = output(cluster, "n2", "echo kept > /root/kept; sync; cat /proc/sys/kernel/random/boot_id")
    cluster.run("n2", "systemctl reboot")
    deadline = time.monotonic() + 180
    while True:
        try:
            now = output(cluster, "n2", "cat /root/kept /proc/sys/kernel/random/boot_id; rdma link")
            if boot.strip() not in now and now.count("ACTIVE") == 2:
                break
        except LabError:
            pass
        assert time.monotonic() < deadline
        time.sleep(1)
    assert now.startswith("kept\n")


def test_ansible_reaches_every_node_from_elsewhere_as_root_and_with_become(
    cluster: Cluster, tmp_path: pathlib.Path
) -> None:
    for more in ([], ["-e", "ansible_user=ops", "--become"]):
        done = subprocess.run(
            [sys.executable, "-m", "ansible", "adhoc", "-i", str(cluster.inventory.parent), "all", "-o"]
            + ["-m", "command", "-a", "id -u", *more],
            cwd=tmp_path,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("rc=0 | (stdout) 0") == 2


def test_another_lab_in_the_same_directory_is_refused(cluster: Cluster) -> None:
    with pytest.raises(LabError, match="another lab is up"):
        cluster.up(Settings(nodes=3, releases=RELEASES))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_up_that_is_ended_early_leaves_nothing(tmp_path: pathlib.Path, number: signal.Signals) -> None:
    """What is interrupted takes everything back itself; what is killed leaves it to the next `down`."""
    directory = tmp_path / "run"
    command = [sys.executable, "-m", "lab", "up", "--nodes", "1", "--release", RELEASES[0], "--dir", str(directory)]
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as up:
        deadline = time.monotonic() + 120
        while not (directory / "n1" / "console.log").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        recorded = state.load(directory)
        assert recorded is not None
        assert process.marked(recorded.lab_id)
        up.send_signal(number)
        up.wait(60)
    assert up.returncode == (-number if number == signal.SIGKILL else 128 + number)
    if number == signal.SIGKILL:
        assert process.marked(recorded.lab_id)
        Cluster(directory).down()
    assert process.marked(recorded.lab_id) == []
    assert not directory.exists()
