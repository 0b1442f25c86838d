# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Carries a job out on the launcher, detached from Ansible, for as long as its lease is renewed. PRIVATE to the collection.

It runs each collective, keeps what was printed, counts what every node's NICs did, names nodes that went away, and ends
everything everywhere when a time limit passes or the lease does. It judges nothing.
"""

from __future__ import annotations

import datetime
import json
import os
import resource
import subprocess
import sys
import time
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils import (
    _benchmark_job,
    _launch,
    _node_tool,
    _torchrun,
)
from ansible_collections.gpufabric.cluster.plugins.module_utils._authorized_keys import acting_as
from ansible_collections.gpufabric.cluster.plugins.module_utils._benchmark_job import Job, Run
from ansible_collections.gpufabric.cluster.plugins.module_utils._lease import Lease, run_detached
from ansible_collections.gpufabric.cluster.plugins.module_utils._node_agent import Agent
from ansible_collections.gpufabric.cluster.plugins.module_utils._peers import Answers, Peers
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Account, Tools, end_group
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._run_processes import MARKER
from ansible_collections.gpufabric.cluster.plugins.module_utils._text_bounds import head_and_tail
from ansible_collections.gpufabric.cluster.plugins.module_utils._withheld import secrets_of, withheld, withhold

JOB, RESULTS, STATUS, PID = "job.json", "results.json", "status", "pid"
#: a further batch of an open job; number: of the runs that were finished before it
BATCH = "batch-{number}.json"
#: room for opening connections, counting and stopping, on top of the runs' own time limits, in seconds
OVERHEAD_S = 300.0
#: seconds that a launch which waits for more may take in all
OPEN_S = 7200.0
#: between two looks at what goes on, in seconds
LOOK_S = 0.5
#: of one run's stdout and stderr, in characters
OUTPUT_LIMIT = 2_000_000
#: how long mpirun may take to notice by itself that a node is gone, in seconds
NOTICE_S = 5.0
#: between two renewals of the other nodes' leases, in seconds
RENEW_S = 10.0
#: how long a node may take to greet, to count and to stop, in seconds
GREETING_S, ANSWER_S = 60.0, 20.0
#: nodes whose NCCL logs are brought back from a large run: the first, the last, and those that failed
LOG_NODES = 4

#: what goes on: it gives the floor back wherever it has to wait, and its result at its end
Going = t.Generator[None, None, dict[str, t.Any]]


class BenchmarkRun:
    """One job on this node. Results are written after every run, or those that went at the same time, so that what was measured
    survives what comes later."""

    def __init__(self, fs: RootedFs, lease: Lease) -> None:
        self._fs = fs
        self._tools = Tools(fs)
        self._lease = lease
        self._watch = self._lease.watch()
        self._job = Job.from_dict(json.loads(fs.read_text(f"{self._lease.directory}/{JOB}")))
        self._account = Account.named(self._job.user)
        local = Agent(fs, lease, self._account)
        self._peers = Peers(self._tools, self._account, self._job.here, local)
        self._results: list[dict[str, t.Any]] = []
        self._ended = ""
        self._last_renewal = 0.0
        self._released: list[str] = []
        self._unclean_here = False

    def carry_out(self) -> None:
        """All runs, whatever becomes of one; then the other nodes are told to give their leases back."""
        _allow_many_files()
        self._fs.write_atomic(f"{self._lease.directory}/{PID}", f"{os.getpid()}\n".encode(), 0o644)
        try:
            self._write("opening")
            self._open_connections()
            runs: t.Sequence[Run] = self._job.runs
            while runs:
                for wave in self._job.waves(runs):
                    self._write("running")
                    self._results += self._at_once(wave)
                    self._write("running")
                runs = self._next_batch() if self._job.open else ()
        except (
            Exception
        ) as error:  # whatever it is, what was measured so far must come out, with the reason for the end
            self._ended = self._ended or f"{type(error).__name__}: {error}"
        finally:
            others = [n for n in self._peers.nodes if n != self._job.here]
            # Where the controller is gone, the others have to take back what it would have: its lock among them.
            answers = self._peers.end(ANSWER_S, others, expired=not self._watch.seconds_left())
            self._released = [n for n, a in answers.items() if not a.get("released", {}).get("left", [""])]
            self._peers.close()
            self._write("done")
        self._stay_until_released()

    def _stay_until_released(self) -> None:
        """Keep the results for the controller as long as it wants them, and take everything back when it does not."""
        while (left := self._watch.seconds_left()) is not None:
            if left <= 0.0:
                self._lease.release(expired=True)
                return
            time.sleep(min(left, 1.0))

    def _next_batch(self) -> tuple[Run, ...]:
        """Wait for what the controller wants measured next; an empty batch is the end."""
        path = f"{self._lease.directory}/{BATCH.format(number=len(self._results))}"
        self._write("waiting")
        while not self._fs.exists(path):
            self._tick(0.2)
            if self._ended:
                return ()
        return tuple(Run.from_dict(run) for run in json.loads(self._fs.read_text(path)))

    def _open_connections(self) -> None:
        if self._job.launcher == "local":
            return
        agent = [sys.executable, self._lease.tool, "agent", self._job.run_id]
        here = self._job.node(self._job.here).address
        others = [node for node in self._job.nodes if node.address != here]
        commands = {node.name: [*self._job.ssh, node.address, *agent] for node in others}
        self._peers.open(commands, GREETING_S)
        if self._job.launcher == "srun":
            self._peers.lost.clear()  # Slurm starts the ranks by itself: without a connection only counters and renewals are missing
        self._renew()

    def _renew(self) -> None:
        """Renew the other nodes' leases; this node's own is the controller's to renew."""
        others = [node for node in self._peers.nodes if node != self._job.here]
        self._peers.collect(self._peers.tell("renew", others, ttl_s=self._job.ttl_s))
        self._last_renewal = time.monotonic()

    def _tick(self, seconds: float) -> None:
        """Let time pass: hear the agents, renew, see whether the controller still wants this."""
        self._peers.listen(seconds)
        if self._watch.seconds_left() in (None, 0.0):
            self._ended = "interrupted: nobody renewed the launcher's lease any more"
        elif time.monotonic() - self._last_renewal >= RENEW_S:
            self._renew()

    def _at_once(self, runs: t.Sequence[Run]) -> list[dict[str, t.Any]]:
        """The results of runs that share no machine, in their order."""
        going = {number: self._one(run) for number, run in enumerate(runs)}
        results: dict[int, dict[str, t.Any]] = {}
        try:
            while going:
                for number, one in list(going.items()):
                    try:
                        next(one)
                    except StopIteration as over:
                        results[number] = over.value
                        del going[number]
                if going:
                    self._tick(LOOK_S)
        finally:
            unclean = {node for number, one in going.items() for node in runs[number].nodes}
            for one in going.values():
                one.close()
            if self._unclean_here or unclean:
                self._peers.ask("stop", ANSWER_S, unclean | {self._job.here})
                self._unclean_here = False
        return [results[number] for number in range(len(runs))]

    def _ask(self, do: str, nodes: t.Sequence[str], **arguments: t.Any) -> t.Generator[None, None, Answers]:
        """As Peers.ask(), while others go on."""
        number = self._peers.tell(do, nodes, **arguments)
        deadline = time.monotonic() + ANSWER_S
        asked = [node for node in self._peers.nodes if node in nodes]
        while time.monotonic() < deadline:
            if all(node in self._peers.answered(number) or node in self._peers.lost for node in asked):
                break
            yield
        return self._peers.collect(number)

    # -- one run

    def _one(self, run: Run) -> Going:
        nodes = [node for node in run.nodes if node not in self._peers.lost]
        if run.alone:  # two names of one machine would disturb each other
            nodes = [node for node in nodes if node in self._peers.nodes]
        result = self._empty_result(run, nodes)
        if self._ended:
            return {**result, "problem": self._ended}
        if len(nodes) < _benchmark_job.minimum_nodes(run):
            gone = {node: self._peers.lost[node] for node in run.nodes if node in self._peers.lost}
            said = ", ".join(f"{node} ({why})" for node, why in gone.items())
            return {**result, "problem": f"too few nodes are left without {said}", "gone": gone}
        yield from self._ask("mark", nodes)
        began = time.monotonic()
        if run.alone:
            result.update((yield from self._each_alone(run, nodes)))
        elif self._job.launcher == _benchmark_job.TORCHRUN:
            result.update((yield from self._side_by_side(run, nodes)))
        else:
            result.update((yield from self._together(run, nodes)))
        result["seconds"] = round(time.monotonic() - began, 3)
        lost = {node: self._peers.lost[node] for node in nodes if node in self._peers.lost}
        deltas = yield from self._ask("delta", nodes)
        logs = yield from self._collect_logs(nodes, bool(lost) or result.get("rc") != 0)
        return {
            **result,
            "lost": lost,
            "deltas": {node: answer["delta"] for node, answer in deltas.items() if "delta" in answer},
            "logs": logs,
        }

    def _empty_result(self, run: Run, nodes: t.Sequence[str]) -> dict[str, t.Any]:
        return {
            "backend": run.backend,
            "launcher": self._job.launcher,
            "collective": run.collective,
            "stage": run.stage,
            "rail": run.rail,
            "claim": run.claim,
            "interfaces": self._job.interfaces(run, nodes),
            "nodes": list(nodes),
            "addresses": {node: self._job.node(node).address for node in nodes},
            "ranks": run.ranks_per_node * len(nodes),
            "argv": self._job.argv(run, nodes) if nodes else [],
            "environment": dict(run.environment),
            "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "seconds": 0.0,
            "rc": None,
            "timed_out": False,
            "timeout_s": run.timeout_s,
            "problem": "",
            "stdout": "",
            "stderr": "",
            "report": None,
            "lost": {},
            "gone": {},
            "deltas": {},
            "logs": {},
        }

    def _together(self, run: Run, nodes: t.Sequence[str]) -> Going:
        self._prepare(run, nodes)
        out_path, err_path = (self._fs.host_path(self._job.file(name, run)) for name in ("stdout", "stderr"))
        outcome: dict[str, t.Any] = {}
        with open(out_path, "wb") as out, open(err_path, "wb") as err:
            process = self._tools.start(
                self._job.argv(run, nodes),
                {**self._job.environment(run), "TMPDIR": f"{self._job.work}/{_benchmark_job.SESSION}"},
                stdout=out,
                stderr=err,
                account=self._account,
            )
            try:
                outcome = yield from self._wait(run, nodes, process)
            finally:
                end_group(process)
        if process.returncode != 0 or outcome.get("problem"):
            yield from self._stop(run, nodes)
        return {
            **outcome,
            "rc": process.returncode,
            "stdout": _read(out_path),
            "stderr": _read(err_path),
            "report": self._take_report(run),
        }

    def _stop(self, run: Run, nodes: t.Sequence[str]) -> t.Generator[None, None, Answers]:
        """End what a run may have left. Here are the launchers of the runs beside it, so here it is done after them."""
        self._unclean_here = self._unclean_here or run.beside
        return self._ask("stop", [node for node in nodes if not run.beside or node != self._job.here])

    def _prepare(self, run: Run, nodes: t.Sequence[str]) -> None:
        with acting_as(self._account):
            self._fs.remove(self._job.file(_benchmark_job.REPORT, run))
            if self._job.launcher == "mpirun" or (
                self._job.launcher == "local" and run.ranks_per_node * len(nodes) > 1
            ):
                launch = self._job.launch(run, nodes)
                self._fs.write_atomic(
                    self._job.file(_benchmark_job.HOSTS, run), _launch.hostfile(launch).encode(), 0o600
                )

    def _wait(self, run: Run, nodes: t.Sequence[str], process: subprocess.Popen[bytes]) -> Going:
        deadline = time.monotonic() + run.timeout_s
        gone_since = None
        while process.poll() is None:
            yield
            now = time.monotonic()
            gone = [node for node in nodes if node in self._peers.lost]
            gone_since = (gone_since or now) if gone else None
            if self._ended:
                return {"problem": self._ended}
            if gone_since is not None and now - gone_since >= NOTICE_S:
                why = ", ".join(f"{node} ({self._peers.lost[node]})" for node in gone)
                return {"problem": f"ended because a node went away in the middle of the run: {why}"}
            if now >= deadline:
                return {"timed_out": True, "problem": f"not finished within its time limit of {run.timeout_s:.0f} s"}
        return {}

    def _each_alone(self, run: Run, nodes: t.Sequence[str]) -> Going:
        """The same program on every node by itself, at the same time. ``alone``: {node: {rc, timed_out, seconds, stdout, stderr}}."""
        environment = self._job.environment(run)
        asked = {
            node: self._peers.tell(
                "exec", [node], argv=list(self._job.alone(run, node)), env=environment, timeout_s=run.timeout_s
            )
            for node in nodes
        }
        deadline = time.monotonic() + run.timeout_s + ANSWER_S
        while time.monotonic() < deadline and not self._ended:
            if all(node in self._peers.answered(n) or node in self._peers.lost for node, n in asked.items()):
                break
            yield
        answers: Answers = {}
        for number in asked.values():
            answers.update(self._peers.collect(number))
        if self._ended:
            self._peers.ask("stop", ANSWER_S, nodes)
        alone = {node: {key: value for key, value in answer.items() if key != "id"} for node, answer in answers.items()}
        worst = next((answer.get("rc") for answer in alone.values() if answer.get("rc") != 0), 0)
        return {
            "alone": alone,
            "rc": worst if len(alone) == len(nodes) else None,
            "timed_out": any(answer.get("timed_out") for answer in alone.values()),
            "problem": self._ended,
        }

    def _side_by_side(self, run: Run, nodes: t.Sequence[str]) -> Going:
        """A training's torchrun on every machine at once; where one fails or goes away, all are ended. ``alone`` as above."""
        commands = self._job.torchruns(run, nodes, _torchrun.free_port(self._job.node(self._job.here).address))
        asked = {
            node: self._peers.tell("exec", [node], argv=argv, env=environment, timeout_s=run.timeout_s)
            for node, (argv, environment) in commands.items()
        }
        answers: Answers = {}
        deadline = time.monotonic() + run.timeout_s + ANSWER_S
        while len(answers) < len(asked) and time.monotonic() < deadline and not self._ended:
            yield
            for node, number in asked.items():
                answers.update(self._peers.collect(number) if node in self._peers.answered(number) else {})
            failed = any(answer.get("rc") != 0 for answer in answers.values())
            if failed or any(node in self._peers.lost for node in asked):
                deadline = min(deadline, time.monotonic() + NOTICE_S)
        if len(answers) < len(asked) or any(answer.get("rc") != 0 for answer in answers.values()):
            # What torchrun left behind is ended, too; the agents answer then with what was printed until now.
            self._peers.ask("stop", ANSWER_S, list(asked))
            self._hear(asked, answers)
        lost = [f"{node} ({self._peers.lost[node]})" for node in asked if node in self._peers.lost]
        gone = f"ended because a node went away in the middle of the run: {', '.join(lost)}" if lost else ""
        statuses = [answer.get("rc") for answer in answers.values()]
        return {
            "alone": {node: {k: v for k, v in answer.items() if k != "id"} for node, answer in answers.items()},
            "rc": next((status for status in statuses if status != 0), 0) if len(answers) == len(asked) else None,
            "timed_out": any(answer.get("timed_out") for answer in answers.values()),
            "problem": self._ended or gone,
        }

    def _hear(self, asked: t.Mapping[str, int], answers: Answers) -> None:
        """The answers that are still to come, for a moment."""
        deadline = time.monotonic() + NOTICE_S
        while len(answers) < len(asked) and time.monotonic() < deadline:
            self._peers.listen(0.2)
            for node, number in asked.items():
                answers.update(self._peers.collect(number) if node in self._peers.answered(number) else {})

    def _take_report(self, run: Run) -> t.Any:
        """nccl-tests' own JSON without its list of the whole environment, which holds secrets; None where there is none."""
        try:
            report = json.loads(self._fs.read_text(self._job.file(_benchmark_job.REPORT, run)))
        except (OSError, ValueError):
            return None
        if isinstance(report, dict):
            report.pop("env", None)
        return withheld(report)

    def _collect_logs(self, nodes: t.Sequence[str], failed: bool) -> t.Generator[None, None, dict[str, dict[str, str]]]:
        """{node: {file: text}} of NCCL's debug files: few nodes' are enough to tell the transport, and all are removed."""
        chosen = (
            list(nodes)
            if failed and len(nodes) <= 2 * LOG_NODES
            else [*nodes[: LOG_NODES // 2], *nodes[-(LOG_NODES // 2) :]]
        )
        answers = yield from self._ask("logs", chosen, keep=8)
        rest = [node for node in nodes if node not in chosen]
        if rest:
            yield from self._ask("logs", rest, keep=0)
        return {node: answer["logs"] for node, answer in answers.items() if answer.get("logs")}

    # -- what the controller reads

    def _write(self, state: str) -> None:
        status = {
            "pid": os.getpid(),
            "state": state,
            "finished": len(self._results),
            "of": max(len(self._job.runs), len(self._results)),
        }
        results = {
            "results": self._results,
            "lost": self._peers.lost,
            "hostnames": {self._job.here: self._fs.read_value("/proc/sys/kernel/hostname"), **self._peers.hostnames},
            "released": self._released,
            "ended": self._ended,
        }
        if self._fs.exists(self._lease.alive):
            self._put(RESULTS, results)
            self._put(STATUS, status)

    def _put(self, name: str, content: t.Mapping[str, t.Any]) -> None:
        self._fs.write_atomic(f"{self._lease.directory}/{name}", json.dumps(content).encode(), 0o600)


def start(job: Job, fs: RootedFs, ttl_s: float) -> None:
    """Arm the launcher's lease unless it is armed, write the job down, and let a process of the launcher's own carry it out: it
    outlives Ansible's connection, not the lease.
    """
    account = Account.named(job.user)
    lease = Lease(fs, job.run_id)
    planned_s = OPEN_S if job.open else sum(run.timeout_s for run in job.runs)
    lease.arm(account, _node_tool.build, ttl_s, planned_s + OVERHEAD_S)
    lease.renew(ttl_s)
    session = fs.host_path(f"{lease.work}/{_benchmark_job.SESSION}")
    os.makedirs(session, 0o700, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(session, account.uid, account.gid)
    fs.write_atomic(f"{lease.directory}/{JOB}", json.dumps(job.as_dict()).encode(), 0o600)
    run_detached([sys.executable, lease.tool, "run", lease.run_id], {MARKER: lease.run_id})


def _read(path: str) -> str:
    """What was printed, without what of an environment may be in it, and the file is gone."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = head_and_tail(file.read(), OUTPUT_LIMIT)
    os.unlink(path)
    return withhold(text, secrets_of(os.environ))


def _allow_many_files() -> None:
    """Three files a connection: a thousand nodes need more than the usual soft limit of 1,024."""
    _unused, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
