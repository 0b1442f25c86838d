# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The embedded cluster for tests that inject faults and read what a playbook says of them."""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import sys
import typing as t

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


class LabCluster:
    """A lab below *directory*, which is down until up() and after down()."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory / "lab"
        self.results = directory / "results"

    def lab(self, *arguments: str, timeout: float = 180) -> str:
        words = [*arguments]
        place = 2 if words[0] == "fault" else 1
        words[place:place] = ["--dir", str(self.directory)]
        done = subprocess.run(
            [sys.executable, "-m", "lab", *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout
        )
        assert done.returncode == 0, f"lab {' '.join(arguments)}: {done.stderr[-2000:]}"
        return done.stdout

    @contextlib.contextmanager
    def up(self, nodes: int) -> t.Iterator[LabCluster]:
        self.lab("up", "--nodes", str(nodes), timeout=1200)
        try:
            yield self
        finally:
            self.lab("down")

    @contextlib.contextmanager
    def fault(self, kind: str, node: str, *options: str) -> t.Iterator[None]:
        self.lab("fault", "inject", kind, node, *options)
        try:
            yield
        finally:
            self.lab("fault", "clear")

    def playbook(self, name: str, timeout: float = 900, **variables: t.Any) -> dict[str, t.Any]:
        """Run a playbook of the collection, its gate open, and return its run record."""
        extra = {"gpufabric_gate": False, "gpufabric_results_dir": str(self.results), **variables}
        argv = [str(pathlib.Path(sys.executable).parent / "ansible-playbook"), "-i", str(self.directory / "inventory")]
        argv += [f"playbooks/{name}.yml", "-e", json.dumps(extra)]
        done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        record: dict[str, t.Any] = json.loads((self.results / "latest" / "run.json").read_text())
        return record
