# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One node's row of the mesh: it probes its peers one after the other, each path on its own. PRIVATE to the collection.

First, with several peers at a time, what needs no quiet: names, ping, the largest packet, a TCP connection, an RDMA
ping-pong. Then what does: loss and bandwidth, each peer for itself, while both nodes are held so that nobody else measures on them.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import secrets
import socket
import struct
import time
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils import _probe_names, _probe_rdma
from ansible_collections.gpufabric.cluster.plugins.module_utils._netdevs import NET
from ansible_collections.gpufabric.cluster.plugins.module_utils._probe_channel import (
    Channel,
    ChannelError,
    LineSocket,
    connect,
    why,
)
from ansible_collections.gpufabric.cluster.plugins.module_utils._probe_ping import ping
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools

#: peers at the same time in the first part
WORKERS = 8
CONTROL = "control"

#: seconds: to resolve a name, to open a TCP connection, for a server to start at the peer, for the tools to come to an end
NAME_S, CONNECT_S, SERVE_S, TOOL_S = 8.0, 4.0, 15.0, 12.0
#: echo requests for loss, and seconds between them; an IP packet of 128 bytes each: 100 kbit/s
LOSS_COUNT, LOSS_INTERVAL_S, LOSS_PACKET = 100, 0.01, 128
#: share of lost echo requests from which bandwidth says nothing more
LOSSY = 0.02
#: seconds of one TCP stream, bytes of its send buffer (bounds what is still on the way at its end)
STREAM_S, STREAM_BUFFER = 0.5, 1 << 20
#: of the ping-pong: bytes, round trips
PINGPONG_SIZE, PINGPONG_COUNT = 4096, 30
#: of the first ib_write_bw: bytes, messages; of a longer one for fabrics that are done with that before it counts
WRITE_SIZE, WRITE_COUNT = 65536, 20
LONG_WRITE_SIZE, LONG_WRITE_S, FAST_GBS = 1 << 20, 0.3, 0.5
#: struct tcp_info of <linux/tcp.h>: tcpi_total_retrans is the 32-bit word at this offset
TOTAL_RETRANS = 100
#: share of this node's best below which a bandwidth is measured once more
DOUBTFUL = 0.75

Plan = t.Mapping[str, t.Any]
Cell = dict[str, t.Any]


@dataclasses.dataclass
class Row:
    """What a node found of its peers: {peer: {names, clock, paths: {path: {probe: result}}}}, and what had no time."""

    peers: dict[str, dict[str, t.Any]] = dataclasses.field(default_factory=dict)
    own_name: dict[str, t.Any] = dataclasses.field(default_factory=dict)
    out_of_time: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


class Prober:
    """Carries out one node's part of the plan (see plugin_utils/mesh_plan.py)."""

    def __init__(self, tools: Tools, plan: Plan, tokens: t.Mapping[str, str], budget_s: float) -> None:
        self._tools = tools
        self._plan = plan
        self._tokens = tokens
        self._began = time.monotonic()
        self._ends = self._began + budget_s
        self._row = Row()

    def probe_again(self, peers_found: dict[str, dict[str, t.Any]]) -> Row:
        """Loss and bandwidth once more, of what the plan names: the better of both looks is kept. *peers_found* is an earlier
        row's ``peers``, and holds what both looks found afterwards."""
        self._row.peers = peers_found
        for turn in range(int(self._plan["passes"])):
            for peer in self._plan["peers"]:
                self._load(peer, turn)
        self._row.seconds = round(time.monotonic() - self._began, 1)
        return self._row

    def probe(self) -> Row:
        """All of it, or what the time allows."""
        peers = list(self._plan["peers"])
        self._row.peers = {
            peer["node"]: {"names": {}, "clock": {}, "load": "", "paths": {path: {} for path in self._paths(peer)}}
            for peer in peers
        }
        self._row.own_name = _probe_names.resolve(self._tools, self._plan["hostname"], NAME_S)
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(self._reach, peers))
        for turn in range(int(self._plan["passes"])):
            for peer in peers:
                if peer["load"] and (turn == 0 or self._is_doubtful(peer)):
                    self._load(peer, turn)
        self._row.seconds = round(time.monotonic() - self._began, 1)
        return self._row

    def _paths(self, peer: Plan) -> list[str]:
        return [CONTROL, *(rail for rail in self._plan["rails"] if rail in peer["rails"])]

    def _left(self) -> float:
        return self._ends - time.monotonic()

    def _has_time(self, what: str) -> bool:
        if self._left() > 0:
            return True
        self._row.out_of_time.append(what)
        return False

    # -- reachability, with other peers at the same time

    def _reach(self, peer: Plan) -> None:
        if not self._has_time(f"reach {peer['node']}"):
            return
        found = self._row.peers[peer["node"]]
        found["names"] = {
            **_probe_names.resolve(self._tools, peer["hostname"], NAME_S),
            "reverse": _probe_names.reverse(self._tools, peer["control"]["address"], NAME_S),
        }
        for path, cell in found["paths"].items():
            mine, theirs = self._ends_of(path, peer)
            down = _down(mine, theirs)
            if down:
                cell["down"] = down
            elif theirs.get("address") and mine.get("address"):
                self._reach_by_ip(peer, path, mine, theirs, cell)
        self._ask_peer(peer, found)

    def _ends_of(self, path: str, peer: Plan) -> tuple[Plan, Plan]:
        if path == CONTROL:
            return self._plan["control"], peer["control"]
        return self._plan["rails"][path], peer["rails"][path]

    def _reach_by_ip(self, peer: Plan, path: str, mine: Plan, theirs: Plan, cell: Cell) -> None:
        cell["ping"] = self._ping_twice(theirs["address"], mine["netdev"])
        size = int(mine.get("mtu") or 0) or _mtu(self._tools, mine["netdev"])
        if cell["ping"]["received"] and size:
            cell["mtu"] = self._ping_twice(theirs["address"], mine["netdev"], packet=size, fragment=False)
        # A host may refuse to answer pings: TCP is tried all the same.
        cell["tcp"] = self._open(peer, mine, theirs)

    def _ping_twice(self, address: str, netdev: str, **options: t.Any) -> dict[str, t.Any]:
        """A second try where the first had no answer at all: a lossy link is not a dead one."""
        found = ping(self._tools, address, netdev, **options)
        if found["received"] or found["mtu"]:
            return found
        return ping(self._tools, address, netdev, **options)

    def _open(self, peer: Plan, mine: Plan, theirs: Plan) -> dict[str, t.Any]:
        """Open a TCP connection to the responder's random high port by this path, as NCCL's bootstrap would."""
        began = time.monotonic()
        result = {"port": peer["port"], "ok": False, "ms": None, "problem": ""}
        try:
            with contextlib.closing(
                connect(theirs["address"], peer["port"], CONNECT_S, mine["netdev"], mine["address"])
            ) as opened:
                result["ms"] = round((time.monotonic() - began) * 1e3, 2)
                lines = LineSocket(opened)
                lines.send({"token": self._tokens[peer["node"]], "do": "hello"})
                result["ok"] = lines.receive() is not None
                result["problem"] = "" if result["ok"] else "somebody else listens there"
        except OSError as error:
            result["problem"] = why(error)
        except ChannelError as error:
            result["problem"] = str(error)
        return result

    def _channel(self, peer: Plan, found: t.Mapping[str, t.Any]) -> Channel:
        """To the peer's responder by the first address that a TCP connection was opened to."""
        paths = [path for path, cell in found["paths"].items() if cell.get("tcp", {}).get("ok")]
        addresses = [self._ends_of(path, peer)[1]["address"] for path in paths]
        if not addresses:
            raise ChannelError("no TCP connection to it can be opened")
        return Channel(addresses, peer["port"], self._tokens[peer["node"]], CONNECT_S)

    def _ask_peer(self, peer: Plan, found: dict[str, t.Any]) -> None:
        try:
            with self._channel(peer, found) as channel:
                found["clock"] = _clock(channel)
                if self._plan["rdma"] and peer["rdma"]:
                    for rail, cell in found["paths"].items():
                        if "device" in self._ends_of(rail, peer)[0] and "down" not in cell:
                            cell["pingpong"] = self._pingpong(channel, rail, peer)
        except ChannelError as error:
            found["load"] = str(error)

    # -- RDMA

    def _run_pair(
        self, channel: Channel, tool: str, rail: str, peer: Plan, size: int, iterations: int, timeout_s: float
    ) -> tuple[t.Any, str]:
        """(what the client printed, why there is no client's output). The server ends when the channel asks for the next."""
        mine = _probe_rdma.Rail.from_mapping(self._plan["rails"][rail])
        theirs = {key: peer["rails"][rail][key] for key in ("device", "port", "gid_index")}
        try:
            port = channel.ask("serve", SERVE_S, tool=tool, rail=theirs, size=size, iterations=iterations)["port"]
        except ChannelError as error:
            return None, f"the server on the peer: {error}"
        done = self._tools.run(
            _probe_rdma.command(tool, mine, port, size, iterations, channel.address), timeout=timeout_s
        )
        with contextlib.suppress(ChannelError):
            channel.ask("served", 10.0)
        return done, ""

    def _pingpong(self, channel: Channel, rail: str, peer: Plan) -> dict[str, t.Any]:
        """{us: of one round trip, problem}."""
        done, problem = self._run_pair(channel, _probe_rdma.PINGPONG, rail, peer, PINGPONG_SIZE, PINGPONG_COUNT, TOOL_S)
        if done is None:
            return {"us": None, "problem": problem}
        us = _probe_rdma.pingpong_us(done.stdout) if done.ok else None
        return {"us": us, "problem": "" if us is not None else _probe_rdma.reason(done)}

    def _write(self, channel: Channel, rail: str, peer: Plan) -> dict[str, t.Any]:
        """{gbs, size, count, problem}: short first, and longer where that was too short to count."""
        result: dict[str, t.Any] = {}
        size, count = WRITE_SIZE, WRITE_COUNT
        for _unused in range(2):
            done, problem = self._run_pair(channel, _probe_rdma.WRITE_BW, rail, peer, size, count, TOOL_S)
            gbs = _probe_rdma.write_gbs(done.stdout) if done is not None else None
            if gbs is None:
                return {"gbs": None, "problem": problem or _probe_rdma.reason(done), **result}
            result = {"gbs": gbs, "size": size, "count": count, "problem": ""}
            if gbs < FAST_GBS:
                break
            size, count = LONG_WRITE_SIZE, max(int(gbs * 1e9 * LONG_WRITE_S / LONG_WRITE_SIZE), 50)
        return result

    # -- loss and bandwidth, both nodes held

    def _load(self, peer: Plan, turn: int) -> None:
        found = self._row.peers[peer["node"]]
        if found["load"] or not self._has_time(f"load {peer['node']}, pass {turn + 1}"):
            return
        own_token = self._tokens[self._plan["node"]]
        try:
            with contextlib.ExitStack() as stack:
                here = stack.enter_context(Channel(["127.0.0.1"], self._plan["port"], own_token, CONNECT_S))
                there = stack.enter_context(self._channel(peer, found))
                # In one order on all nodes, so that no two of them wait for each other.
                first, second = (here, there) if self._plan["node"] < peer["node"] else (there, here)
                for channel in (first, second):
                    wait_s = max(min(self._left(), 100.0), 1.0)
                    if not channel.ask("hold", wait_s + 10.0, wait_s=wait_s)["held"]:
                        raise ChannelError("it was busy with others' measurements all the time")
                self._measure(there, peer, found)
        except ChannelError as error:
            found["load"] = str(error)

    def _is_doubtful(self, peer: Plan) -> bool:
        """Whether what was measured with this peer may be a disturbance: lost packets, no result, or far below the best."""
        cells = self._row.peers[peer["node"]]["paths"].values()
        lost = any(cell["loss"]["sent"] > cell["loss"]["received"] for cell in cells if cell.get("loss"))
        return lost or any(
            (cell[quantity]["gbs"] or 0.0) < DOUBTFUL * self._best(quantity)
            for quantity in ("stream", "write")
            for cell in cells
            if quantity in cell
        )

    def _best(self, quantity: str) -> float:
        every = (cell for found in self._row.peers.values() for cell in found["paths"].values())
        return max((cell[quantity]["gbs"] or 0.0 for cell in every if quantity in cell), default=0.0)

    def _measure(self, channel: Channel, peer: Plan, found: Cell) -> None:
        only = peer.get("only")
        paths = [
            path
            for path, cell in found["paths"].items()
            if self._is_measured(path, cell) and (only is None or path in only)
        ]
        with concurrent.futures.ThreadPoolExecutor(max(len(paths), 1)) as pool:
            for path, lost in zip(paths, pool.map(lambda path: self._loss(path, peer), paths)):
                found["paths"][path]["loss"] = _summed(found["paths"][path].get("loss"), lost)
        for path in paths:
            cell = found["paths"][path]
            # What loses packets when idle is slow for that reason, and takes long to show it.
            if cell["loss"] and cell["loss"]["sent"] - cell["loss"]["received"] > LOSSY * cell["loss"]["sent"]:
                continue
            if cell.get("tcp", {}).get("ok"):
                cell["stream"] = _better(cell.get("stream"), self._stream(channel, path, peer))
            whole = cell.get("mtu", {}).get("received", 1)
            if whole and (cell.get("pingpong") or {}).get("us") is not None:
                cell["write"] = _better(cell.get("write"), self._write(channel, path, peer))

    def _is_measured(self, path: str, cell: Cell) -> bool:
        """The control network carries no collective where there are rails."""
        reached = cell.get("ping", {}).get("received") or cell.get("tcp", {}).get("ok") or "pingpong" in cell
        return bool(reached) and (path != CONTROL or not self._plan["rails"])

    def _loss(self, path: str, peer: Plan) -> dict[str, t.Any] | None:
        mine, theirs = self._ends_of(path, peer)
        if not theirs.get("address") or not mine.get("address"):
            return None
        return ping(
            self._tools, theirs["address"], mine["netdev"], LOSS_COUNT, LOSS_INTERVAL_S, LOSS_PACKET, wait_s=1.0
        )

    def _stream(self, channel: Channel, path: str, peer: Plan) -> dict[str, t.Any]:
        """{gbs as the receiver counts, retransmits, problem}: TCP by this path for STREAM_S."""
        mine, theirs = self._ends_of(path, peer)
        name = secrets.token_hex(8)
        try:
            retransmits = _send_stream(
                theirs["address"],
                mine,
                peer["port"],
                {"token": self._tokens[peer["node"]], "do": "stream", "name": name},
            )
            came = channel.ask("streamed", 15.0, name=name, wait_s=8.0)
        except (OSError, ChannelError) as error:
            return {"gbs": None, "problem": why(error) if isinstance(error, OSError) else str(error)}
        gbs = came["octets"] / came["seconds"] / 1e9 if came["seconds"] else None
        return {
            "gbs": round(gbs, 6) if gbs else None,
            "retransmits": retransmits,
            "problem": "" if gbs else "nothing came through",
        }


def _down(mine: Plan, theirs: Plan) -> str:
    """Which end of the path is known not to be up: "", here, there or both."""
    here, there = mine.get("up", True), theirs.get("up", True)
    return "" if here and there else "both" if not here and not there else "there" if here else "here"


def _mtu(tools: Tools, netdev: str) -> int:
    text = tools.fs.read_value(f"{NET}/{netdev}/mtu") or ""
    return int(text) if text.isdigit() else 0


def _clock(channel: Channel) -> dict[str, float]:
    """How far the peer's clock is before this one's, in seconds, and how wrong that may be: half of the round trip."""
    answers = []
    for _unused in range(3):
        sent = time.time()
        began = time.monotonic()
        theirs = float(channel.ask("hello", CONNECT_S)["time"])
        trip = time.monotonic() - began
        answers.append((trip / 2, theirs - (sent + trip / 2)))
    error, offset = min(answers)
    return {"offset_s": round(offset, 6), "error_s": round(error, 6)}


def _send_stream(address: str, mine: Plan, port: int, header: t.Mapping[str, t.Any]) -> int | None:
    """Send for STREAM_S, then reset the connection. How many segments were sent again, None where the kernel does not say."""
    payload = bytes(1 << 17)
    with contextlib.closing(connect(address, port, CONNECT_S, mine["netdev"], mine["address"])) as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, STREAM_BUFFER)
        LineSocket(stream).send(header)
        stream.settimeout(2.0)
        ends = time.monotonic() + STREAM_S
        with contextlib.suppress(socket.timeout):
            while time.monotonic() < ends:
                stream.send(payload)
        told = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return int(struct.unpack_from("=I", told, TOTAL_RETRANS)[0]) if len(told) >= TOTAL_RETRANS + 4 else None


def _summed(before: dict[str, t.Any] | None, now: dict[str, t.Any] | None) -> dict[str, t.Any]:
    """Two passes' loss together."""
    if not before or not now:
        return now or before or {}
    least = [found["min_ms"] for found in (before, now) if found["min_ms"] is not None]
    return {
        **now,
        "sent": before["sent"] + now["sent"],
        "received": before["received"] + now["received"],
        "min_ms": min(least) if least else None,
    }


def _better(before: dict[str, t.Any] | None, now: dict[str, t.Any]) -> dict[str, t.Any]:
    """The better of two passes: a disturbance makes a measurement worse and never better."""
    if not before or before["gbs"] is None:
        return now
    return now if now["gbs"] is not None and now["gbs"] > before["gbs"] else before
