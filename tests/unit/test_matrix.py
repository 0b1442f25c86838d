# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is sent to nodes is compiled and imported by the oldest Python that nodes may have, where this machine has it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def matrix() -> types.ModuleType:
    """tools/matrix, which is a program without an ending."""
    loader = importlib.machinery.SourceFileLoader("matrix", str(ROOT / "tools/matrix"))
    spec = importlib.util.spec_from_loader("matrix", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up annotations
    loader.exec_module(module)
    return module


def minor(version: str) -> int:
    return int(version.split(".")[1])


def compiled_by(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("version", (min(matrix().NODES, key=minor), max(matrix().NODES, key=minor)))
def test_modules_compile_and_import(version: str) -> None:
    python = matrix().find_python(version)
    if python is None:
        pytest.skip(f"this machine has no Python {version}")
    done = compiled_by(python, "tools/compile_modules.py")
    assert done.returncode == 0, done.stderr
    assert ", 0 wrong" in done.stdout


def test_what_a_node_cannot_compile_is_named(tmp_path: pathlib.Path) -> None:
    copy = tmp_path / "tools/compile_modules.py"
    for path, text in {
        copy: (ROOT / "tools/compile_modules.py").read_text(),
        tmp_path / "plugins/module_utils/_new.py": "import nowhere_at_all\n",
        tmp_path / "plugins/modules/broken.py": "def main(:\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    package = tmp_path / "collections/ansible_collections/gpufabric"
    package.mkdir(parents=True)
    (package / "cluster").symlink_to(tmp_path)
    python = matrix().find_python("3.11") or "python3"
    done = compiled_by(python, str(copy))
    assert done.returncode == 1
    assert "broken.py" in done.stderr and "nowhere_at_all" in done.stderr
