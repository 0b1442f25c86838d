# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The launcher's open connections to the agents of all other nodes. PRIVATE to the collection.

They are opened before the first collective: a node that does not let the launcher in is named then, in ssh's own
words, and left out of the launch, instead of failing a collective that needs every node.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import time
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._node_agent import Agent
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Account, Tools, end_group

#: ssh hand-shakes at the same time
CONCURRENT = 64
#: how long ssh may take to end once its output has, in seconds
LAST_WORDS_S = 1.0
#: of what ssh says on stderr, in characters
STDERR_LIMIT = 2000

Answers = dict[str, dict[str, t.Any]]


class _Connection:
    def __init__(self, node: str, process: subprocess.Popen[bytes]) -> None:
        self.node = node
        self.process = process
        self.buffered = b""
        self.stderr = ""
        self.hello: dict[str, t.Any] | None = None


class Peers:
    """Agents of the launcher itself (in this process) and of every other node (each over one connection).

    lost: {node: why}, filled as connections end; such a node is asked nothing more.
    """

    def __init__(self, tools: Tools, account: Account, here: str, local: Agent) -> None:
        self._tools = tools
        self._account = account
        self._here = here
        self._local = local
        self._open: dict[str, _Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._answers: dict[int, Answers] = {}
        self._asked = 0
        self.lost: dict[str, str] = {}
        self.hostnames: dict[str, str] = {}

    def open(self, commands: t.Mapping[str, t.Sequence[str]], timeout_s: float) -> None:
        """Start an agent on each node of *commands* ({node: argv}) and wait for their greetings, *timeout_s* at most."""
        waiting = list(commands.items())
        deadline = time.monotonic() + timeout_s
        while waiting or any(connection.hello is None for connection in self._open.values()):
            greeting = sum(connection.hello is None for connection in self._open.values())
            while waiting and greeting < CONCURRENT:
                node, argv = waiting.pop(0)
                self._start(node, argv)
                greeting += 1
            if time.monotonic() >= deadline:
                break
            self.listen(0.5)
        silent = [node for node, connection in self._open.items() if connection.hello is None]
        for node in silent + [node for node, _unused in waiting]:
            self._lose(node, f"no answer over ssh within {timeout_s:.0f} s")

    def _start(self, node: str, argv: t.Sequence[str]) -> None:
        try:
            process = self._tools.start(argv, stdin=subprocess.PIPE, account=self._account)
        except OSError as error:
            self.lost[node] = str(error)
            return
        connection = self._open[node] = _Connection(node, process)
        for stream, read in ((process.stdout, self._read_answers), (process.stderr, self._read_stderr)):
            pipe = t.cast("t.IO[bytes]", stream)
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, (connection, read))

    @property
    def nodes(self) -> list[str]:
        """Those that can be asked, the launcher first."""
        return [self._here, *self._open]

    def ask(self, do: str, timeout_s: float, nodes: t.Collection[str] | None = None, **arguments: t.Any) -> Answers:
        """Ask all (or *nodes*) and wait for the answers, *timeout_s* at most. {node: answer}; who is silent is absent."""
        number = self.tell(do, nodes, **arguments)
        asked = [node for node in self.nodes if nodes is None or node in nodes]
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            missing = [node for node in asked if node not in self._answers[number] and node not in self.lost]
            if not missing:
                break
            self.listen(min(0.5, max(deadline - time.monotonic(), 0.01)))
        return self.collect(number)

    def tell(self, do: str, nodes: t.Collection[str] | None = None, **arguments: t.Any) -> int:
        """Ask without waiting; collect() gives the answers to the number returned."""
        self._asked += 1
        number = self._asked
        self._answers[number] = {}
        request = {"id": number, "do": do, **arguments}
        line = (json.dumps(request) + "\n").encode()
        for connection in list(self._open.values()):
            if nodes is None or connection.node in nodes:
                self._send(connection, line)
        if nodes is None or self._here in nodes:
            answer = self._local.handle(request)
            if answer is not None:
                self._answers[number][self._here] = answer
        return number

    def end(self, timeout_s: float, nodes: t.Collection[str], **arguments: t.Any) -> Answers:
        """Ask *nodes* to end. Who answers is not lost, although its connection ends with that."""
        before = dict(self.lost)
        answers = self.ask("end", timeout_s, nodes, **arguments)
        self.lost = {node: why for node, why in self.lost.items() if node in before or node not in answers}
        return answers

    def collect(self, number: int) -> Answers:
        return self._answers.pop(number, {})

    def answered(self, number: int) -> t.Collection[str]:
        return self._answers.get(number, {}).keys()

    def _send(self, connection: _Connection, line: bytes) -> None:
        stdin = t.cast("t.IO[bytes]", connection.process.stdin)
        try:
            stdin.write(line)
            stdin.flush()
        except OSError:
            self._lose(connection.node, "its connection broke")

    def listen(self, seconds: float) -> None:
        """Take in what the agents say, for *seconds* at most: returns as soon as something came."""
        for answer in self._local.finished():
            self._file(self._here, answer)
        for key, _unused in self._selector.select(seconds):
            connection, read = key.data
            data = os.read(key.fd, 65536)
            if data:
                read(connection, data)
            else:
                self._selector.unregister(key.fileobj)
                if read == self._read_answers:
                    self._lose(connection.node, "")

    def _read_answers(self, connection: _Connection, data: bytes) -> None:
        *lines, connection.buffered = (connection.buffered + data).split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:  # a login banner or a profile script that prints
                connection.stderr = (connection.stderr + line.decode(errors="replace") + "\n")[-STDERR_LIMIT:]
                continue
            if "hello" in message:
                connection.hello = message
                self.hostnames[connection.node] = message["hello"]
            else:
                self._file(connection.node, message)

    def _read_stderr(self, connection: _Connection, data: bytes) -> None:
        connection.stderr = (connection.stderr + data.decode(errors="replace"))[-STDERR_LIMIT:]

    def _file(self, node: str, answer: dict[str, t.Any]) -> None:
        if answer.get("id") in self._answers:
            self._answers[answer["id"]][node] = answer

    def _lose(self, node: str, why: str) -> None:
        connection = self._open.pop(node, None)
        if connection is None:
            self.lost.setdefault(node, why)
            return
        if not why:  # its end was seen before its status and its last words
            with contextlib.suppress(subprocess.TimeoutExpired):
                connection.process.wait(LAST_WORDS_S)
        status = connection.process.poll()
        self._close(connection)
        said = [line.strip() for line in connection.stderr.splitlines() if line.strip()]
        ended = "its connection ended" + ("" if status is None else f" (status {status})")
        self.lost[node] = why or (said[-1] if said else ended)

    def _close(self, connection: _Connection) -> None:
        process = connection.process
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(stream)
        if process.stderr is not None:
            with contextlib.suppress(OSError):
                self._read_stderr(connection, process.stderr.read() or b"")
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        end_group(process, grace=0.5)
        process.wait()

    def close(self) -> None:
        """Close every connection: an agent that was not told to end takes it as the end of the run."""
        for connection in self._open.values():
            self._close(connection)
        self._open.clear()
        self._selector.close()
