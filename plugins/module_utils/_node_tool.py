# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One program file that a lease puts on a node: guard, agent, launcher, the MPI collectives and the training. PRIVATE to the collection.

A module's own code is gone as soon as the module has answered. What must go on is packed from the same sources into one
executable archive (zipapp), which needs nothing but Python.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import sys
import typing as t
import zipfile

PACKAGE = __name__.rpartition(".")[0]
#: fixed, so that the same sources make the same archive
STAMP = (1980, 1, 1, 0, 0, 0)

#: imports of this collection's own modules, which name modules and never what is in them by an alias: far cheaper than
#: a syntax tree, and an emulated node has to do this before every run
_IMPORT = re.compile(rf"^ *from ({re.escape(PACKAGE)}(?:\.\w+)?) import (\([^)]*\)|[^\n]*)", re.MULTILINE)

START = f"""import sys
from {PACKAGE}._node_tool import main
sys.exit(main(sys.argv[1:]))
"""


def build() -> bytes:
    """The archive: this module's source with that of every module of PACKAGE which it needs, directly or not."""
    sources: dict[str, str] = {}
    wanted = [f"{PACKAGE}._node_tool"]
    while wanted:
        name = wanted.pop()
        if name not in sources:
            sources[name] = _source(name)
            wanted += _imports(sources[name])
    parents = PACKAGE.split(".")
    files = {"/".join([*parents[: depth + 1], "__init__.py"]): "" for depth in range(len(parents))}
    files.update({name.replace(".", "/") + ".py": text for name, text in sources.items()})
    files["__main__.py"] = START
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, STAMP), text, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _imports(source: str) -> list[str]:
    names = []
    for module, listed in _IMPORT.findall(source):
        names += [module] if module != PACKAGE else [f"{PACKAGE}.{name}" for name in re.findall(r"\w+", listed)]
    return names


def _source(name: str) -> str:
    """Through the module's loader: inside Ansible's own archive there are no files to open."""
    spec = importlib.util.find_spec(name)
    loader = spec.loader if spec else None
    source = loader.get_source(name) if loader is not None and hasattr(loader, "get_source") else None
    if source is None:
        raise ImportError(f"the source of {name} cannot be read")
    return source.decode() if isinstance(source, bytes) else str(source)  # Ansible's loader answers with bytes


def main(argv: t.Sequence[str]) -> int:
    """guard RUN | agent RUN | run RUN | collective NAME OPTIONS... | train TASK

    Each command imports only what it needs: an archive keeps no compiled code, so a rank would compile all of it.
    """
    command, *arguments = argv or [""]
    if command == "collective":
        from ansible_collections.gpufabric.cluster.plugins.module_utils import _mpi_collectives

        return _mpi_collectives.main(arguments)
    if command == "train":
        from ansible_collections.gpufabric.cluster.plugins.module_utils import _training_step

        return _training_step.main(arguments)
    if command in ("guard", "agent", "run"):
        return _serve(command, arguments[0])
    sys.stderr.write("usage: node_tool guard|agent|run RUN, or collective NAME OPTIONS, or train TASK\n")
    return 2


def _serve(command: str, run_id: str) -> int:
    from ansible_collections.gpufabric.cluster.plugins.module_utils._lease import Lease, guard
    from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

    # The archive lies in the lease that it serves: another user's process finds the same lease by it.
    base = os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[0])))
    fs = RootedFs("/")
    lease = Lease(fs, run_id, base)
    if command == "guard":
        return guard(lease)
    if command == "agent":
        from ansible_collections.gpufabric.cluster.plugins.module_utils import _node_agent

        return _node_agent.serve(fs, lease)
    from ansible_collections.gpufabric.cluster.plugins.module_utils import _benchmark_run

    _benchmark_run.BenchmarkRun(fs, lease).carry_out()
    return 0
