# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The other end of the probes on a node: answers, takes in streams, and starts RDMA servers while a mesh lasts.

It listens where NCCL's bootstrap does: on a free port of the kernel's ephemeral range, on all addresses. Only who knows
this run's token gets an answer. It ends by itself after a given time, and so does all that it started. PRIVATE to the collection.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import select
import signal
import socket
import subprocess
import threading
import time
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils import _probe_rdma
from ansible_collections.gpufabric.cluster.plugins.module_utils._probe_channel import ChannelError, LineSocket
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools, end_group
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

#: connections at the same time; more wait in the kernel's queue
CLIENTS = 128
#: seconds that a stream may last, a server may take to listen, and a connection may stay silent
STREAM_S = 10.0
LISTEN_S = 8.0
SILENT_S = 120.0
#: seconds that a server may live
SERVER_S = 60.0
#: the state LISTEN in /proc/net/tcp (include/net/tcp_states.h)
LISTENING = "0A"


class Stream(t.NamedTuple):
    """What came in by a stream: bytes, and seconds between the first and the last of them."""

    octets: int
    seconds: float


class Responder:
    """Serves until *max_s* are over or it is told to stop."""

    def __init__(self, fs: RootedFs, token: str, max_s: float) -> None:
        self._fs = fs
        self._tools = Tools(fs)
        self._token = token
        self._ends = time.monotonic() + max_s
        self._exclusive = threading.Lock()
        self._slots = threading.BoundedSemaphore(CLIENTS)
        self._streams: dict[str, Stream] = {}
        self._streamed = threading.Condition()
        self._servers: set[subprocess.Popen[bytes]] = set()
        self._listener = _listener()
        self.port = int(self._listener.getsockname()[1])

    def serve(self) -> None:
        """Answer until the end; then end every server. Connections die with the process."""
        try:
            while time.monotonic() < self._ends:
                ready, _unused, _unused = select.select([self._listener], [], [], 1.0)
                if ready and self._slots.acquire(timeout=1.0):
                    with contextlib.suppress(OSError):
                        connected, _unused = self._listener.accept()
                        threading.Thread(target=self._attend, args=(connected,), daemon=True).start()
                        continue
                    self._slots.release()
        finally:
            self._listener.close()
            for process in list(self._servers):
                end_group(process, grace=0.2)

    def end_now(self) -> None:
        """Let serve() return within a second."""
        self._ends = 0.0

    def _attend(self, connected: socket.socket) -> None:
        client = _Client(self, connected)
        try:
            client.attend()
        except (OSError, ChannelError):
            pass
        finally:
            client.leave()
            connected.close()
            self._slots.release()

    # -- what a client may ask for

    def is_known(self, token: t.Any) -> bool:
        return hmac.compare_digest(str(token).encode(), self._token.encode())

    def hold(self, wait_s: float) -> bool:
        """Take this node for one measurement; nobody else gets it meanwhile."""
        return self._exclusive.acquire(timeout=max(min(wait_s, SILENT_S), 0.0))

    def release(self) -> None:
        self._exclusive.release()

    def keep_stream(self, name: str, stream: Stream) -> None:
        with self._streamed:
            self._streams[name] = stream
            self._streamed.notify_all()

    def stream(self, name: str, wait_s: float) -> Stream | None:
        with self._streamed:
            self._streamed.wait_for(lambda: name in self._streams, timeout=wait_s)
            return self._streams.pop(name, None)

    def start_server(self, tool: str, rail: _probe_rdma.Rail, size: int, iterations: int) -> _Server:
        port = _free_port()
        process = self._tools.start(
            _probe_rdma.command(tool, rail, port, size, iterations),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._servers.add(process)
        server = _Server(self, process, port)
        deadline = time.monotonic() + LISTEN_S
        while not self._is_listening(port):
            if process.poll() is not None or time.monotonic() >= deadline:
                server.end()
                raise ChannelError(f"{tool} on {rail.device} does not start: exit status {process.returncode}")
            time.sleep(0.02)
        return server

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        self._servers.discard(process)

    def _is_listening(self, port: int) -> bool:
        wanted = f":{port:04X}"
        for name in ("tcp", "tcp6"):
            for line in self._fs.read_lines(f"/proc/net/{name}")[1:]:
                fields = line.split()
                if len(fields) > 3 and fields[3] == LISTENING and fields[1].endswith(wanted):
                    return True
        return False


class _Server:
    """An RDMA server that lives as long as the connection which asked for it, and SERVER_S at most."""

    def __init__(self, responder: Responder, process: subprocess.Popen[bytes], port: int) -> None:
        self._responder = responder
        self._process = process
        self.port = port
        self._timer = threading.Timer(SERVER_S, self.end)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        self._timer.cancel()
        end_group(self._process, grace=0.2)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._responder.forget(self._process)


class _Client:
    """One connection: its requests in turn, and what it holds."""

    def __init__(self, responder: Responder, connected: socket.socket) -> None:
        self._responder = responder
        self._lines = LineSocket(connected)
        self._connected = connected
        self._holds = False
        self._server: _Server | None = None

    def attend(self) -> None:
        self._connected.settimeout(SILENT_S)
        while True:
            request = self._lines.receive()
            # A stranger learns nothing, not even that somebody answers.
            if request is None or not self._responder.is_known(request.get("token", "")):
                return
            if request["do"] == "stream":
                self._take_in(str(request["name"]))
                return
            try:
                answer = getattr(self, f"_do_{request['do']}")(request)
            except (OSError, AttributeError, KeyError, ValueError, ChannelError) as error:
                answer = {"error": str(error)}
            self._lines.send(answer)

    def _do_hello(self, request: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        return {"time": time.time()}

    def _do_hold(self, request: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        if not self._holds:
            self._holds = self._responder.hold(float(request["wait_s"]))
        return {"held": self._holds}

    def _do_streamed(self, request: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        stream = self._responder.stream(str(request["name"]), float(request["wait_s"]))
        return {"octets": stream.octets if stream else 0, "seconds": stream.seconds if stream else 0.0}

    def _do_serve(self, request: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        self._end_server()
        rail = _probe_rdma.Rail.from_mapping(request["rail"])
        self._server = self._responder.start_server(
            str(request["tool"]), rail, int(request["size"]), int(request["iterations"])
        )
        return {"port": self._server.port}

    def _do_served(self, request: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        self._end_server()
        return {}

    def _take_in(self, name: str) -> None:
        """Count what comes until the sender closes, and STREAM_S at most. Its end is a reset: nothing is drained."""
        buffer = bytearray(1 << 18)
        octets, began, last = 0, 0.0, 0.0
        self._connected.settimeout(2.0)
        deadline = time.monotonic() + STREAM_S
        with contextlib.suppress(OSError):
            while time.monotonic() < deadline:
                received = self._connected.recv_into(buffer)
                if not received:
                    break
                last = time.monotonic()
                # What comes with the first read was sent before the clock started.
                began, octets = (began, octets + received) if began else (last, 0)
        self._responder.keep_stream(name, Stream(octets, last - began))

    def _end_server(self) -> None:
        if self._server is not None:
            self._server.end()
            self._server = None

    def leave(self) -> None:
        """Give back what the connection held."""
        self._end_server()
        if self._holds:
            self._holds = False
            self._responder.release()


def _listener() -> socket.socket:
    """A socket on a free port of all addresses, of both families where the kernel has IPv6."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        with contextlib.suppress(OSError):
            made = socket.socket(family, socket.SOCK_STREAM)
            try:
                if family == socket.AF_INET6:
                    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                made.bind((address, 0))
                made.listen(CLIENTS)
            except BaseException:
                made.close()
                raise
            return made
    raise OSError("no TCP port can be opened for listening")


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
        made.bind(("0.0.0.0", 0))
        return int(made.getsockname()[1])


def start(fs: RootedFs, max_s: float) -> dict[str, t.Any]:
    """Start a responder that outlives this process. {port, token, pid, since}; OSError where it cannot be started.

    since: the process's start time in clock ticks after boot, by which stop() knows it again.
    """
    token = secrets.token_hex(16)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.setsid()
            if os.fork():
                os._exit(0)
            _become_daemon(keep=writer)
            signal.signal(signal.SIGTERM, lambda *_: _raise_exit())
            responder = Responder(fs, token, max_s)
            os.write(writer, f"{responder.port} {os.getpid()}".encode())
            os.close(writer)
            responder.serve()
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().split()
    if len(said) != 2:
        raise OSError("the responder did not start")
    pid = int(said[1])
    return {"port": int(said[0]), "token": token, "pid": pid, "since": _since(fs, pid)}


def _raise_exit() -> None:
    raise SystemExit(0)


def _become_daemon(keep: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.closerange(3, keep)
    os.closerange(keep + 1, 4096)
    os.chdir("/")


def _since(fs: RootedFs, pid: int) -> int:
    """Field 22 of /proc/PID/stat, proc(5); 0 where there is no such process."""
    text = fs.read_value(f"/proc/{pid}/stat") or ""
    fields = text.rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 else 0


def stop(fs: RootedFs, pid: int, since: int, wait_s: float = 5.0) -> bool:
    """End the responder that start() named; False where it had ended already. Another process of that number is left alone."""
    if not since or _since(fs, pid) != since:
        return False
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + wait_s
    while _since(fs, pid) == since and time.monotonic() < deadline:
        time.sleep(0.05)
    if _since(fs, pid) == since:
        os.kill(pid, signal.SIGKILL)
    return True
