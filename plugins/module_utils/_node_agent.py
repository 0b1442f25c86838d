# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the launcher asks of a node while a run lives: renew its lease, count its traffic, run, stop, end. PRIVATE to the collection.

One agent a node, started over the run's own ssh connection, which stays open for the whole run: no hand-shake disturbs
a measurement, a node that dies is noticed, and a launcher that dies closes the connection, upon which the agent gives
the lease back at once. Requests and answers are lines of JSON: {"id", "do", ...} and {"id", ...}.
"""

from __future__ import annotations

import json
import os
import select
import time
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils import _node_sample, _run_processes
from ansible_collections.gpufabric.cluster.plugins.module_utils._lease import Lease
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Account, Tools, end_group
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._text_bounds import head_and_tail
from ansible_collections.gpufabric.cluster.plugins.module_utils._withheld import secrets_of, withhold

#: of one log file, in bytes
LOG_LIMIT = 65536
#: of what a program prints on a node alone, in bytes
OUTPUT_LIMIT = 1048576
#: the files that _benchmark_job.LOG_FILE makes
LOG_PATTERN = "nccl-*.log"


class Agent:
    """Answers requests on one node. The launcher uses one for itself, without a connection."""

    def __init__(self, fs: RootedFs, lease: Lease, account: Account) -> None:
        self._fs = fs
        self._tools = Tools(fs)
        self._account = account
        self.lease = lease
        self._before = _node_sample.take(fs)
        self._programs: dict[int, _Program] = {}

    def handle(self, request: t.Mapping[str, t.Any]) -> dict[str, t.Any] | None:
        """The answer, or None where finished() brings it later. What the request cannot have is {"id", "error"}."""
        try:
            answer = getattr(self, f"_do_{request['do']}")(request)
        except (OSError, AttributeError, KeyError, ValueError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        return None if answer is None else {"id": request.get("id"), **answer}

    def _do_renew(self, request: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        return {"renewed": self.lease.renew(request.get("ttl_s"))}

    def _do_mark(self, request: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        self._before = _node_sample.take(self._fs)
        return {}

    def _do_delta(self, request: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        return {"delta": _node_sample.difference(self._before, _node_sample.take(self._fs))}

    def _do_stop(self, request: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        for program in self._programs.values():
            end_group(program.process)
        lease = self.lease
        return {"ended": _run_processes.end_all(self._fs, lease.run_id, lease.directory, with_services=False)}

    def _do_logs(self, request: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        """{name: text} of NCCL's own log files, and they are gone; with keep 0 they only go."""
        logs: dict[str, str] = {}
        for path in self._fs.glob(self.lease.work, LOG_PATTERN):
            if len(logs) < int(request.get("keep", 0)):
                logs[os.path.basename(path)] = _fit_to_leave(self._fs.read_text(path), LOG_LIMIT)
            self._fs.remove(path)
        return {"logs": logs}

    def _do_exec(self, request: t.Mapping[str, t.Any]) -> None:
        self._programs[request["id"]] = _Program(self._tools, self._account, self.lease.work, request)

    def _do_end(self, request: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        return {"released": self.lease.release(expired=bool(request.get("expired"))).as_dict()}

    def finished(self) -> list[dict[str, t.Any]]:
        """Answers to earlier `exec` requests whose program has ended or ran out of time."""
        answers = []
        for number, program in list(self._programs.items()):
            if program.is_over():
                answers.append({"id": number, **program.result()})
                del self._programs[number]
        return answers


class _Program:
    """One program that runs on this node alone, its output in files so that nothing has to read it meanwhile."""

    def __init__(self, tools: Tools, account: Account, work: str, request: t.Mapping[str, t.Any]) -> None:
        self._began = time.monotonic()
        self._deadline = self._began + float(request["timeout_s"])
        self._timed_out = False
        base = tools.fs.host_path(f"{work}/exec-{request['id']}")
        self._paths = (f"{base}.out", f"{base}.err")
        with open(self._paths[0], "wb") as out, open(self._paths[1], "wb") as err:
            self.process = tools.start(request["argv"], request.get("env"), stdout=out, stderr=err, account=account)

    def is_over(self) -> bool:
        if self.process.poll() is None and time.monotonic() >= self._deadline:
            self._timed_out = True
            end_group(self.process)
        return self.process.poll() is not None

    def result(self) -> dict[str, t.Any]:
        texts = []
        for path in self._paths:
            with open(path, encoding="utf-8", errors="replace") as file:
                texts.append(_fit_to_leave(file.read(), OUTPUT_LIMIT))
            os.unlink(path)
        return {
            "rc": self.process.returncode,
            "timed_out": self._timed_out,
            "seconds": round(time.monotonic() - self._began, 3),
            "stdout": texts[0],
            "stderr": texts[1],
        }


def _fit_to_leave(text: str, limit: int) -> str:
    """A text as it may leave the node: bounded, and without what of an environment may be in it."""
    return withhold(head_and_tail(text, limit), secrets_of(os.environ))


def serve(fs: RootedFs, lease: Lease, stdin: int = 0, stdout: int = 1) -> int:
    """Answer the launcher until it says `end` or its connection closes; then the lease is given back."""
    account = Account.named(str(lease.read_note().get("user", "root")))
    agent = Agent(fs, lease, account)

    def answer(message: t.Mapping[str, t.Any]) -> None:
        os.write(stdout, (json.dumps(message) + "\n").encode())

    answer({"hello": fs.read_value("/proc/sys/kernel/hostname") or "", "pid": os.getpid()})
    buffered = b""
    try:
        while True:
            ready, _unused, _unused = select.select([stdin], [], [], 1.0)
            for reply in agent.finished():
                answer(reply)
            if not ready:
                continue
            received = os.read(stdin, 65536)
            if not received:
                break
            *lines, buffered = (buffered + received).split(b"\n")
            for text in filter(None, lines):
                request = json.loads(text)
                now = agent.handle(request)
                if now is not None:
                    answer(now)
                if request["do"] == "end":
                    return 0
    except (BrokenPipeError, ConnectionError):
        pass
    lease.release(expired=True)
    return 0
