# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real libraries, without a GPU: their versions, and what they make of the files that nccl_env writes.

Fetches one release's wheel once (about 300 MB) into GPUFABRIC_NCCL_CACHE, by default a directory of the user's cache, and
skips where that cannot be done. Releases that are in the cache are tried too; GPUFABRIC_NCCL_RELEASES=2.20.5,2.32.3 fetches others.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import typing as t
import zipfile

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils import _nccl_ask, _nccl_conf, _nccl_library
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import load_catalogue, parse_version
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_env import resolve_fleet
from ansible_collections.gpufabric.cluster.tests.fixtures.nccl_fleet import GUIDE, roce_node
from ansible_collections.gpufabric.cluster.tests.fixtures.nccl_templates import render

CACHE = pathlib.Path(os.environ.get("GPUFABRIC_NCCL_CACHE", pathlib.Path.home() / ".cache/gpufabric/nccl"))
KEPT = sorted(path.name for path in CACHE.glob("2.*") if (path / _nccl_library.WHEEL_DIRECTORY).exists())
RELEASES = list(dict.fromkeys([*os.environ.get("GPUFABRIC_NCCL_RELEASES", "2.28.9").split(","), *KEPT]))
TOOLS = Tools(RootedFs())


@pytest.fixture(scope="module", params=RELEASES)
def library(request: pytest.FixtureRequest) -> tuple[str, str]:
    """(release, path of its libnccl.so.2)."""
    release = request.param
    path = CACHE / release / _nccl_library.WHEEL_DIRECTORY / _nccl_library.SONAME
    if not path.exists():
        _fetch(release, CACHE / release)
    return release, str(path)


def _fetch(release: str, directory: pathlib.Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"]
    try:
        subprocess.run(
            [*command, str(directory), f"nvidia-nccl-cu12=={release}"], check=True, timeout=300, capture_output=True
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"the wheel of NCCL {release} cannot be fetched here: {error}")
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(f"{_nccl_library.WHEEL_DIRECTORY}/{_nccl_library.SONAME}", directory)
    wheel.unlink()


def written(release: str, node: dict[str, t.Any]) -> tuple[str, dict[str, str]]:
    """nccl.conf as the role writes it for this node, and what it should say."""
    result = resolve_fleet(
        {"n1": node}, ["guide"], GUIDE, {"mode": "warn", "nccl_version": release, "control_network": "127.0.0.0/8"}
    )
    variables = result["nodes"]["n1"]["variables"]
    return render("nccl.conf.j2", variables), {v["name"]: v["value"] for v in variables}


def node() -> dict[str, t.Any]:
    """A node whose control network is the loopback interface, so that a bootstrap works anywhere."""
    data = roce_node(1, 2, site={"NCCL_TOPO_FILE": "/opt/vendor/topo.xml"})
    return {**data, "addresses": {**data["addresses"], "lo": ["127.0.0.1/8"]}}


def test_the_version_is_read_without_running_it(library: tuple[str, str]) -> None:
    release, path = library
    told = _nccl_library.describe(RootedFs(), path, "named")
    assert (told.version, told.problem) == (release, "") and told.cuda.startswith("12.")


def test_the_names_are_those_of_the_catalogue(library: tuple[str, str]) -> None:
    release, path = library
    assert sorted(_nccl_library.variable_names(path)) == sorted(load_catalogue().names(parse_version(release)))


def test_a_file_for_the_job_is_read_as_written(library: tuple[str, str], tmp_path: pathlib.Path) -> None:
    release, path = library
    text, expected = written(release, node())
    (tmp_path / "nccl.conf").write_text(text)
    answer = _nccl_ask.ask(TOOLS, path, {"NCCL_CONF_FILE": str(tmp_path / "nccl.conf")}, 60)
    assert answer["problem"] == "" and answer["warnings"] == []
    seen = {name: value for name, value in answer["seen"].items() if name != "NCCL_CONF_FILE"}
    if parse_version(release) < _nccl_conf.CONF_FILE_SINCE:
        assert seen == {}
    else:
        assert seen == {name: value for name, value in expected.items() if name not in _nccl_ask.LOG}
        assert answer["logged"]["NCCL_SOCKET_IFNAME"] == "=lo"


#: puts directories of a test over /etc and over the home directory, for itself and its children alone
PRIVATE = """
set -e
mount -t overlay overlay -o lowerdir=/etc,upperdir="$1/upper",workdir="$1/work" /etc
shift
exec "$@"
"""


def asked_privately(tmp_path: pathlib.Path, path: str, etc: str, home: str, **environment: str) -> dict[str, str]:
    """What the library has if /etc/nccl.conf holds *etc* and ~/.nccl.conf holds *home*: {NCCL_*: value}."""
    for name in ("upper", "work", "home"):
        (tmp_path / name).mkdir()
    (tmp_path / "upper/nccl.conf").write_text(etc)
    (tmp_path / "upper/passwd").write_text(f"root:x:0:0:root:{tmp_path}/home:/bin/sh\n")
    if home:
        (tmp_path / "home/.nccl.conf").write_text(home)
    pairs = [f"{n}={v}" for n, v in {"HOME": f"{tmp_path}/home", **environment, **_nccl_ask.LOG}.items()]
    done = subprocess.run(
        ["unshare", "--mount", "--", "sh", "-c", PRIVATE, "sh", str(tmp_path), "env", "-i", *pairs]
        + [sys.executable, "-c", _nccl_ask.SCRIPT, path],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode and "mount" in done.stderr + done.stdout:
        pytest.skip(f"this machine allows no private mounts: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: value for name, value in _nccl_ask.LANDED.findall(done.stdout) if name not in _nccl_ask.LOG}


@pytest.mark.skipif(os.geteuid() != 0, reason="a private /etc needs root")
def test_etc_nccl_conf_is_read_as_written(library: tuple[str, str], tmp_path: pathlib.Path) -> None:
    release, path = library
    text, expected = written(release, node())
    seen = asked_privately(tmp_path, path, text, "")
    assert seen == {name: value for name, value in expected.items() if name not in _nccl_ask.LOG}
    assert seen["NCCL_TOPO_FILE"] == "/opt/vendor/topo.xml" and seen["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"


FOREIGN = """# NCCL_COMMENT=1
NCCL_FIRST=one
NCCL_FIRST=two
NCCL_QUOTED="1"
NCCL_TRAILING=3   # three
NCCL_SPACED = 4
export NCCL_EXPORTED=5
 # NCCL_INDENTED=6
NCCL_CRLF=7\r
no assignment
NCCL_USER=system
NCCL_ENVIRONMENT=system
NCCL_EMPTY=
NCCL_EQUALS==x=y
NCCL_LAST=no newline"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a private /etc needs root")
def test_the_grammar_and_the_order_of_sources_are_nccls(library: tuple[str, str], tmp_path: pathlib.Path) -> None:
    """What this project's reader says of a foreign file is what the library makes of it."""
    release, path = library
    version = parse_version(release)
    home = "NCCL_USER=user\nNCCL_ENVIRONMENT=user\n"
    seen = asked_privately(tmp_path, path, FOREIGN, home, NCCL_ENVIRONMENT="environment")
    predicted = _nccl_conf.variables(FOREIGN, version)
    predicted.update({"NCCL_USER": "user", "NCCL_ENVIRONMENT": "environment"})
    expected = {name: value for name, value in predicted.items() if name.startswith("NCCL_") and " " not in name}
    expected["NCCL_CRLF"] = expected["NCCL_CRLF"].rstrip("\r")  # the answer is read as text, without carriage returns
    assert seen == expected
