# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each job template's playbook through ansible-runner, AWX's own engine, as AWX runs it.

The project is a copy of the checkout into which a sync has installed collections/requirements.yml; the private data directory is
thrown away; the survey's default answers and what AWX tells a job about itself are extra variables; the user may write nowhere else.
The nodes are directories, over local connections. No benchmark is launched: its programs are said to be where they are not.
"""

from __future__ import annotations

import concurrent.futures
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import typing as t

import pytest
import yaml
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import role_specs
from ansible_collections.gpufabric.cluster.tests.fixtures.awx_data import answers, data
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_node import FakeNode

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = sysconfig.get_paths()["purelib"]
NOBODY = 65534
TEMPLATES = {template["name"]: template for template in data()["job_templates"]}
OBSERVE = {name: template for name, template in TEMPLATES.items() if "gpufabric_nodes" in template["survey"]}

#: what AWX 24.6.1 adds to a job's extra variables
AWX_ABOUT_THE_JOB = {
    f"{prefix}_{name}": value
    for prefix in ("awx", "tower")
    for name, value in {
        "job_id": 12,
        "job_launch_type": "workflow",
        "job_template_id": 9,
        "workflow_job_id": 11,
        "workflow_job_name": "GPU fabric: prove",
        "workflow_job_launch_type": "manual",
        "user_id": 1,
        "user_name": "admin",
        "user_email": "",
        "inventory_id": 2,
        "inventory_name": "GPU fabric: nodes",
        "project_revision": "1" * 40,
    }.items()
}


class Store(http.server.BaseHTTPRequestHandler):
    """A place that files can be PUT to, for whoever bears the token."""

    kept: t.ClassVar[dict[str, bytes]] = {}

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        allowed = self.headers.get("Authorization") == "Bearer s3cret"
        if allowed:
            self.kept[self.path] = body
        self.send_response(201 if allowed else 403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_unused: t.Any) -> None:
        pass


def unprivileged() -> tuple[list[str], str]:
    """What to put before a command so that it runs without privileges, and a Python that it can run then.

    Where root's own Python is closed to others, the system's of the same version takes its place; where there is none either, the
    job runs as the user that the test has.
    """
    if os.geteuid() != 0:
        return [], sys.executable
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    for python in (sys.executable, "/usr/bin/python{}.{}".format(*sys.version_info)):
        # By way of a shell: the first program that setpriv starts is still found with root's eyes.
        tried = subprocess.run(
            [*drop, "sh", "-c", '"$0" -c "import ansible_runner"', python], env={"PYTHONPATH": PACKAGES}, timeout=60
        )
        if tried.returncode == 0:
            return drop, python
    return [], sys.executable


class Controller:
    """What AWX has on its disk for a job, below a directory that belongs to an unprivileged user."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.project = directory / "project"
        self.drop, self.python = unprivileged()
        for name in ("playbook", "galaxy", "inventory"):
            program = directory / "bin" / f"ansible-{name}"
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!{self.python}\nfrom ansible.cli.{name} import main\nmain()\n")
            program.chmod(0o755)
        files = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split("\0")
        for name in filter(None, files):
            if (ROOT / name).is_file() and not name.startswith(("tests/", "lab/", "molecule/")):
                target = self.project / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)
        (directory / "store").mkdir()
        self._own(directory)
        self._run(
            ["ansible-galaxy", "collection", "install", "--offline", "-r", "collections/requirements.yml"],
            cwd=self.project,
            ANSIBLE_COLLECTIONS_PATH=str(directory / "requirements_collections"),
        )

    def _inventory(self, private: pathlib.Path) -> None:
        """A node of the job's own, a host that keeps results, and one that is gone."""
        tree = FakeNode(private / "sim1")
        for rail in (0, 1):
            tree.add_hca(f"mlx5_{rail}", netdev=f"eth{rail + 1}", ipv4=f"10.20.{rail}.1/24")
        local = {
            "ansible_connection": "local",
            "ansible_python_interpreter": self.python,
            "ansible_remote_tmp": str(self.directory / "tmp"),
        }
        node = {
            **local,
            "gpufabric_root": str(private / "sim1"),
            "gpufabric_become": False,
            "nccl_env_nccl_version": "2.28.9",
            "nccl_tests_install_mpi": False,
            "nccl_tests_mpirun": "/nonexistent/mpirun",
            "lora_workload_python": "/nonexistent/python",
            "launch_trust_mode": "site",
        }
        gone = {"ansible_host": "127.0.0.1", "ansible_port": 1}
        groups = {"sim": {"hosts": {"sim1": node}}, "keepers": {"hosts": {"keeper": local, "gone": gone}}}
        (private / "inventory").mkdir()
        (private / "inventory/hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups}}))

    def _own(self, top: pathlib.Path) -> None:
        if self.drop:
            for path in (top, *top.rglob("*")):
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)

    def _run(self, argv: t.Sequence[str], cwd: pathlib.Path, **environment: str) -> subprocess.CompletedProcess[str]:
        bare = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
        return subprocess.run(
            [*self.drop, *argv],
            cwd=cwd,
            env={
                **bare,
                "HOME": str(self.directory),
                "PATH": f"{self.directory}/bin:/usr/bin:/bin",
                "PYTHONPATH": PACKAGES,
                "LC_ALL": "C.UTF-8",
                **environment,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
        )

    def job(self, template: t.Mapping[str, t.Any], **variables: t.Any) -> Job:
        """Run *template* as a job with a private data directory of its own."""
        private = pathlib.Path(tempfile.mkdtemp(prefix="job-", dir=self.directory))
        private.chmod(0o755)
        (private / "env").mkdir()
        (private / "project").symlink_to(self.project)
        self._inventory(private)
        about = {**AWX_ABOUT_THE_JOB, "awx_job_template_name": f"GPU fabric: {template['name']}"}
        given = {**template.get("variables", {}), **answers(template["survey"]), **about, **variables}
        (private / "env/extravars").write_text(json.dumps(given))
        self._own(private)
        tags = ["--cmdline", f"--tags {template['job_tags']}"] if "job_tags" in template else []
        done = self._run(
            [self.python, "-m", "ansible_runner", "run", str(private), "--json", "-p", template["playbook"], *tags],
            cwd=private,
            ANSIBLE_COLLECTIONS_PATH=f"{self.directory}/requirements_collections",
        )
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return Job(done, events, given, self.project / "results")


class Job(t.NamedTuple):
    done: subprocess.CompletedProcess[str]
    events: list[dict[str, t.Any]]
    given: dict[str, t.Any]
    results: pathlib.Path

    @property
    def text(self) -> str:
        return "\n".join(event.get("stdout", "") for event in self.events)[-6000:] + self.done.stderr[-2000:]

    @property
    def failed(self) -> list[str]:
        """Names of the tasks that failed for good."""
        return [
            event["event_data"]["task"]
            for event in self.events
            if event["event"] == "runner_on_failed" and not event["event_data"].get("ignore_errors")
        ]

    @property
    def stats(self) -> dict[str, t.Any]:
        """What set_stats left, as AWX keeps it."""
        (last,) = [event["event_data"] for event in self.events if event["event"] == "playbook_on_stats"]
        return dict(last["artifact_data"]["fabric_verdict"])

    @property
    def said(self) -> str:
        """The message of the last task that failed."""
        return str([e["event_data"]["res"]["msg"] for e in self.events if e["event"] == "runner_on_failed"][-1])

    @property
    def record(self) -> dict[str, t.Any]:
        return dict(json.loads((self.results / self.stats["run_id"] / "run.json").read_text()))


@pytest.fixture(scope="module")
def controller() -> t.Iterator[Controller]:
    # pytest's own directories are closed to the user that the job runs as
    with tempfile.TemporaryDirectory(prefix="gpufabric-runner-") as name:
        yield Controller(pathlib.Path(name))


@pytest.fixture(scope="module")
def jobs(controller: Controller) -> dict[str, Job]:
    """One job of each template that observes nodes, two at a time."""

    def run(template: dict[str, t.Any]) -> Job:
        return controller.job(template, gpufabric_nodes="sim")

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return dict(zip(OBSERVE, pool.map(run, OBSERVE.values())))


@pytest.mark.parametrize("name", OBSERVE)
def test_a_templates_playbook_passes(jobs: dict[str, Job], name: str) -> None:
    """It ends with its verdict, good or bad, and with no other failure."""
    job = jobs[name]
    assert job.failed in ([], ["Gate on the verdict"]), job.text
    assert job.done.returncode == (2 if job.failed else 0), job.text
    assert job.stats["status"] == job.record["verdict"]["status"]


@pytest.mark.parametrize("name", OBSERVE)
def test_the_surveys_answers_are_what_the_roles_take(jobs: dict[str, Job], name: str) -> None:
    job, specs = jobs[name], role_specs.load_specs()
    assert [finding for finding in job.record["findings"] if finding["part"] == "inputs"] == []
    in_force = {
        k: v for groups in job.record["settings"].values() for group in groups for k, v in group["values"].items()
    }
    for variable in set(in_force) & set(job.given):
        role = specs.role_of(variable) or ""
        assert in_force[variable] == role_specs.coerced(role, {variable: job.given[variable]}, specs)[variable]


def test_two_of_the_runs_can_be_compared(controller: Controller, jobs: dict[str, Job]) -> None:
    before, after = jobs["kernel"].stats["run_id"], jobs["verify"].stats["run_id"]
    job = controller.job(TEMPLATES["compare"], compare_before=before, compare_after=after)
    assert job.failed in ([], ["Gate on what got worse"]), job.text
    assert f"before: {before}, after: {after}" in job.text


def test_results_are_kept_on_a_host_of_the_inventory(controller: Controller) -> None:
    store = controller.directory / "store"
    job = controller.job(TEMPLATES["kernel"], gpufabric_nodes="sim", fabric_report_collect_to=f"keeper:{store}")
    assert job.failed in ([], ["Gate on the verdict"]), job.text
    kept = store / job.stats["run_id"]
    assert {path.name for path in kept.iterdir()} >= {"run.json", "report.html", "report.md", "junit.xml"}
    assert json.loads((kept / "run.json").read_text()) == job.record
    assert {path.stat().st_mode & 0o777 for path in kept.iterdir() if path.is_file()} == {0o600}


def test_results_are_put_below_a_url_for_whoever_has_the_token(controller: Controller) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = {
            "gpufabric_nodes": "sim",
            "gpufabric_gate": "false",
            "fabric_report_collect_to": f"http://127.0.0.1:{server.server_port}/runs",
        }
        job = controller.job(TEMPLATES["roce_qos"], fabric_report_collect_token="s3cret", **options)
        server.shutdown()
    assert job.done.returncode == 0 and "s3cret" not in job.text, job.text
    assert json.loads(Store.kept[f"/runs/{job.stats['run_id']}/run.json"]) == job.record


@pytest.mark.parametrize("place", ["gone:/srv", "http://127.0.0.1:1/runs"])
def test_a_place_that_takes_nothing_is_said_in_one_sentence(controller: Controller, place: str) -> None:
    job = controller.job(TEMPLATES["roce_qos"], gpufabric_nodes="sim", fabric_report_collect_to=place)
    assert job.done.returncode == 2, job.text
    assert job.said.startswith(f"The run could not be kept at {place} (fabric_report_collect_to): "), job.text
    assert "refused" in job.said, job.text


@pytest.mark.parametrize("nodes", ["sim", "none_of_them"])
def test_a_slice_of_a_job_is_refused_also_where_it_got_no_node(controller: Controller, nodes: str) -> None:
    job = controller.job(TEMPLATES["kernel"], gpufabric_nodes=nodes, awx_workflow_job_name="GPU fabric: kernel")
    assert job.done.returncode == 2 and "Job slicing is refused" in job.text and "report.html" not in job.text
