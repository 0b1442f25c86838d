# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A prober and real responders on loopback addresses; ping, getent and the RDMA tools are recorded ones."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import threading
import time
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils import _probe_mesh, _probe_responder
from ansible_collections.gpufabric.cluster.plugins.module_utils._probe_channel import Channel, ChannelError
from ansible_collections.gpufabric.cluster.plugins.module_utils._probe_mesh import Prober
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_node import FakeNode

TOKENS = {"n1": "token-of-n1", "n2": "token-of-n2"}

PING = """PING 127.0.0.2 (127.0.0.2) 56(84) bytes of data.

--- 127.0.0.2 ping statistics ---
3 packets transmitted, 3 received, 0% packet loss, time 402ms
rtt min/avg/max/mdev = 0.042/0.095/0.142/0.023 ms
"""
NO_ANSWER = """
--- 127.0.0.2 ping statistics ---
3 packets transmitted, 0 received, 100% packet loss, time 402ms

"""
TOO_LONG = """
--- 127.0.0.2 ping statistics ---
3 packets transmitted, 0 received, +3 errors, 100% packet loss, time 205ms

"""

#: a server that listens where it is told to until somebody connects, and a client that connects and prints its result
RDMA_TOOL = """#!/usr/bin/env python3
import socket, sys
words = sys.argv[1:]
port = int(words[words.index("-p") + 1])
if words[-1].count("."):
    with socket.create_connection((words[-1], port), 5) as opened:
        opened.recv(1)
    print({result!r})
else:
    with socket.create_server(("0.0.0.0", port)) as listener:
        opened, _ = listener.accept()
        opened.sendall(b"x")
"""
PINGPONG_RESULT = "204800 bytes in 0.00 seconds = 1000.00 Mbit/sec\n30 iters in 0.00 seconds = 12.50 usec/iter"
WRITE_RESULT = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n 65536      20  2.20   2.00   0.000381"


def rail(address: str) -> dict[str, t.Any]:
    return {"device": "mlx5_0", "port": 1, "gid_index": 3, "netdev": "", "address": address, "mtu": 9000, "up": True}


def plan(port: int, peer_port: int, **peer: t.Any) -> dict[str, t.Any]:
    there = {
        "node": "n2", "hostname": "n2", "port": peer_port, "control": {"address": "127.0.0.2", "netdev": ""},
        "rails": {"mlx5_0": rail("127.0.0.2")}, "rdma": True, "load": True,
    }  # fmt: skip
    return {
        "node": "n1", "hostname": "n1", "port": port, "control": {"address": "127.0.0.1", "netdev": "lo"},
        "rails": {"mlx5_0": rail("127.0.0.1")}, "rdma": True, "passes": 1, "peers": [{**there, **peer}],
    }  # fmt: skip


@pytest.fixture
def node(tmp_path: pathlib.Path) -> FakeNode:
    fake = FakeNode(tmp_path / "n1")
    fake.write("/sys/class/net/lo/mtu", "1500\n")
    fake.add_tool("ping", PING)
    fake.add_tool("getent", "127.0.0.2 STREAM n2\n127.0.0.2 DGRAM\n")
    fake.add_tool("getent", "127.0.0.2 n2 n2.cluster\n", when="hosts *")
    fake.add_program("ibv_rc_pingpong", RDMA_TOOL.format(result=PINGPONG_RESULT))
    fake.add_program("ib_write_bw", RDMA_TOOL.format(result=WRITE_RESULT))
    return fake


class LiveProc(RootedFs):
    """A fake root whose /proc/net is this machine's: the servers below it really listen."""

    def host_path(self, path: str, follow: bool = True) -> str:
        return path if path.startswith("/proc/net/") else super().host_path(path, follow)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-ins for the RDMA tools are Python programs, which take their time on a busy computer."""
    for name in ("NAME_S", "CONNECT_S", "SERVE_S", "TOOL_S"):
        monkeypatch.setattr(_probe_mesh, name, 60.0)
    monkeypatch.setattr(_probe_responder, "LISTEN_S", 50.0)


@contextlib.contextmanager
def responders(node: FakeNode) -> t.Iterator[dict[str, int]]:
    running = {name: _probe_responder.Responder(LiveProc(node.root), token, 60.0) for name, token in TOKENS.items()}
    threads = [threading.Thread(target=responder.serve) for responder in running.values()]
    for thread in threads:
        thread.start()
    try:
        yield {name: responder.port for name, responder in running.items()}
    finally:
        for responder in running.values():
            responder.end_now()
        for thread in threads:
            thread.join(10)


def probe(node: FakeNode, plan: dict[str, t.Any], budget_s: float = 60.0) -> t.Any:
    return Prober(Tools(RootedFs(node.root)), plan, TOKENS, budget_s).probe()


def test_every_probe_of_a_healthy_pair(node: FakeNode) -> None:
    with responders(node) as ports:
        row = probe(node, plan(ports["n1"], ports["n2"]))
    found = row.peers["n2"]
    assert found["load"] == "" and row.out_of_time == []
    assert found["names"]["addresses"] == ["127.0.0.2"] and found["names"]["reverse"] == ["n2", "n2.cluster"]
    assert abs(found["clock"]["offset_s"]) < 1.0
    control, over_rail = found["paths"]["control"], found["paths"]["mlx5_0"]
    assert control["ping"]["received"] == 3 and control["tcp"]["ok"]
    assert control["mtu"]["packet"] == 1500 and over_rail["mtu"]["packet"] == 9000
    assert over_rail["pingpong"] == {"us": 12.5, "problem": ""}
    assert over_rail["write"]["gbs"] == 0.25
    assert over_rail["stream"]["gbs"] > 0.01 and over_rail["stream"]["retransmits"] is not None
    assert over_rail["loss"]["sent"] == 3 and "loss" not in control


def test_packets_that_are_too_long(node: FakeNode) -> None:
    node.add_tool("ping", TOO_LONG, "ping: local error: message too long, mtu=1500\n", 1, when="*-s 8972*")
    with responders(node) as ports:
        cell = probe(node, plan(ports["n1"], ports["n2"])).peers["n2"]["paths"]["mlx5_0"]
    assert cell["mtu"]["received"] == 0 and cell["mtu"]["mtu"] == 1500
    assert "message too long" in cell["mtu"]["problem"]
    # What packets of full length cannot pass is not measured with them.
    assert "write" not in cell and cell["pingpong"]["us"] == 12.5


def test_nobody_listens(node: FakeNode) -> None:
    node.add_tool("ping", NO_ANSWER, rc=1)
    with responders(node) as ports, socket.socket() as closed:
        closed.bind(("127.0.0.2", 0))
        found = probe(node, plan(ports["n1"], closed.getsockname()[1])).peers["n2"]
    assert found["paths"]["mlx5_0"]["tcp"] == {
        "port": closed_port(found), "ok": False, "ms": None, "problem": "Connection refused"
    }  # fmt: skip
    assert found["paths"]["mlx5_0"]["ping"]["received"] == 0
    assert "no TCP connection" in found["load"]


def closed_port(found: dict[str, t.Any]) -> int:
    return int(found["paths"]["control"]["tcp"]["port"])


def test_rdma_that_gets_no_answer(node: FakeNode) -> None:
    node.add_program(
        "ibv_rc_pingpong",
        RDMA_TOOL.format(result="").replace("print('')", "sys.exit('Failed status transport retry counter')"),
    )
    with responders(node) as ports:
        cell = probe(node, plan(ports["n1"], ports["n2"])).peers["n2"]["paths"]["mlx5_0"]
    assert cell["pingpong"] == {"us": None, "problem": "ibv_rc_pingpong: Failed status transport retry counter"}
    assert "write" not in cell and cell["stream"]["gbs"] > 0.01


def test_a_server_that_does_not_start(node: FakeNode) -> None:
    node.add_tool("ibv_rc_pingpong", "", "no device\n", 1)
    with responders(node) as ports:
        cell = probe(node, plan(ports["n1"], ports["n2"])).peers["n2"]["paths"]["mlx5_0"]
    assert "does not start" in cell["pingpong"]["problem"]


def test_a_rail_that_is_down_is_not_tried(node: FakeNode) -> None:
    with responders(node) as ports:
        there = {**rail("127.0.0.2"), "up": False}
        row = probe(node, plan(ports["n1"], ports["n2"], rails={"mlx5_0": there}))
    assert row.peers["n2"]["paths"]["mlx5_0"] == {"down": "there"}


def test_no_load_where_none_is_wanted(node: FakeNode) -> None:
    with responders(node) as ports:
        cell = probe(node, plan(ports["n1"], ports["n2"], load=False)).peers["n2"]["paths"]["mlx5_0"]
    assert cell["pingpong"]["us"] == 12.5 and not {"loss", "stream", "write"} & cell.keys()


def test_what_has_no_time_is_said(node: FakeNode) -> None:
    with responders(node) as ports:
        row = probe(node, plan(ports["n1"], ports["n2"]), budget_s=0.0)
    assert row.out_of_time[0] == "reach n2" and row.peers["n2"]["paths"]["mlx5_0"] == {}


def test_a_stranger_gets_no_answer(node: FakeNode) -> None:
    with responders(node) as ports:
        with pytest.raises(ChannelError, match="closed the connection"):
            Channel(["127.0.0.1"], ports["n1"], "guessed", 2.0).ask("hello", 2.0)
        # and costs the responder nothing
        assert "time" in Channel(["127.0.0.1"], ports["n1"], TOKENS["n1"], 2.0).ask("hello", 2.0)


def test_only_one_at_a_time_holds_a_node(node: FakeNode) -> None:
    with responders(node) as ports:
        one, other = (Channel(["127.0.0.1"], ports["n1"], TOKENS["n1"], 2.0) for _ in range(2))
        assert one.ask("hold", 5.0, wait_s=1.0)["held"]
        assert not other.ask("hold", 5.0, wait_s=0.2)["held"]
        one.close()
        assert other.ask("hold", 5.0, wait_s=2.0)["held"]


def test_devices_are_names_and_nothing_else(node: FakeNode) -> None:
    with responders(node) as ports, Channel(["127.0.0.1"], ports["n1"], TOKENS["n1"], 2.0) as channel:
        bad = {"device": "mlx5_0; reboot", "port": 1, "gid_index": None}
        with pytest.raises(ChannelError, match="no name of an RDMA device"):
            channel.ask("serve", 5.0, tool="ib_write_bw", rail=bad, size=8, iterations=5)
        with pytest.raises(ChannelError, match="none of"):
            channel.ask("serve", 5.0, tool="sh", rail={**bad, "device": "mlx5_0"}, size=8, iterations=5)


def test_a_responder_outlives_its_starter_and_ends_when_told_or_late() -> None:
    fs = RootedFs("/")
    told = _probe_responder.start(fs, 60.0)
    assert os.getsid(told["pid"]) != os.getsid(0)
    with Channel(["127.0.0.1"], told["port"], told["token"], 2.0) as channel:
        assert abs(channel.ask("hello", 2.0)["time"] - time.time()) < 5.0
    assert not _probe_responder.stop(fs, told["pid"], told["since"] + 1)
    assert _probe_responder.stop(fs, told["pid"], told["since"])
    assert not _probe_responder.stop(fs, told["pid"], told["since"])
    late = _probe_responder.start(fs, 0.5)
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{late['pid']}") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{late['pid']}")


def test_a_lossy_path_is_not_measured_further(node: FakeNode) -> None:
    lossy = PING.replace("3 packets transmitted, 3 received", "100 packets transmitted, 95 received")
    node.add_tool("ping", lossy, when="*-c 100*")
    with responders(node) as ports:
        cell = probe(node, plan(ports["n1"], ports["n2"])).peers["n2"]["paths"]["mlx5_0"]
    assert cell["loss"]["received"] == 95 and not {"stream", "write"} & cell.keys()


def test_a_second_look_keeps_the_better_of_both(node: FakeNode) -> None:
    with responders(node) as ports:
        first = probe(node, plan(ports["n1"], ports["n2"])).peers
        first["n2"]["paths"]["mlx5_0"]["write"]["gbs"] = 0.01
        node.add_program("ib_write_bw", RDMA_TOOL.format(result=WRITE_RESULT.replace("2.00", "1.60")))
        again = plan(ports["n1"], ports["n2"], only=["mlx5_0"])
        row = Prober(Tools(RootedFs(node.root)), again, TOKENS, 60.0).probe_again(first)
    cell = row.peers["n2"]["paths"]["mlx5_0"]
    assert cell["write"]["gbs"] == 0.2 and cell["loss"]["sent"] == 6
    assert row.peers["n2"]["names"]["addresses"] == ["127.0.0.2"]


def test_a_rail_without_an_hca_has_no_rdma_probe(node: FakeNode) -> None:
    with responders(node) as ports:
        bare = plan(ports["n1"], ports["n2"])
        for end in (bare["rails"]["mlx5_0"], bare["peers"][0]["rails"]["mlx5_0"]):
            del end["device"], end["port"], end["gid_index"]
        cell = probe(node, bare).peers["n2"]["paths"]["mlx5_0"]
    assert "pingpong" not in cell and cell["stream"]["gbs"] > 0.01


def test_a_node_whose_own_responder_is_gone_says_so(node: FakeNode) -> None:
    with responders(node) as ports, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        found = probe(node, plan(closed.getsockname()[1], ports["n2"])).peers["n2"]
    assert "Connection refused" in found["load"] and found["paths"]["mlx5_0"]["pingpong"]["us"] == 12.5
