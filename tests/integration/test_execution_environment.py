# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""execution-environment.yml is one that ansible-builder takes, and other environments that bring the collection get what it needs."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILDER = str(pathlib.Path(sys.executable).parent / "ansible-builder")


def builder(*arguments: str, cwd: pathlib.Path) -> str:
    done = subprocess.run([BUILDER, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def names(text: str) -> set[str]:
    """Names of the packages that a requirements file or bindep.txt lists."""
    return set(re.findall(r"^([A-Za-z][\w.-]*)", text, re.MULTILINE))


def test_a_build_context_can_be_created(tmp_path: pathlib.Path) -> None:
    builder(
        "create", "--file", str(ROOT / "execution-environment.yml"), "--context", str(tmp_path / "context"), cwd=ROOT
    )
    (recipe,) = [p for p in (tmp_path / "context").iterdir() if p.is_file()]
    base = yaml.safe_load((ROOT / "execution-environment.yml").read_text())["images"]["base_image"]["name"]
    assert f'EE_BASE_IMAGE="{base}"' in recipe.read_text()
    for given in ("requirements.txt", "bindep.txt"):
        assert (tmp_path / "context/_build" / given).read_text() == (ROOT / given).read_text()


def test_an_environment_with_the_collection_in_it_gets_what_it_needs(tmp_path: pathlib.Path) -> None:
    installed = tmp_path / "ansible_collections/gpufabric/cluster"
    installed.parent.mkdir(parents=True)
    installed.symlink_to(ROOT)
    found = yaml.safe_load(builder("introspect", str(tmp_path), cwd=tmp_path))
    # ansible-core is the environment's own matter
    assert names("\n".join(found["python"])) == names((ROOT / "requirements.txt").read_text()) - {"ansible-core"}
    assert names("\n".join(found["system"])) == names((ROOT / "bindep.txt").read_text())
