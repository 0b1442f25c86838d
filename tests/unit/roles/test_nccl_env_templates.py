# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of nccl_env, read by the programs that they are for."""

from __future__ import annotations

import pathlib
import shutil
import string
import subprocess
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_conf import parse, variables
from ansible_collections.gpufabric.cluster.plugins.module_utils._owned_file import is_ours
from ansible_collections.gpufabric.cluster.plugins.module_utils._rank_environment import parse_environment
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_value import unsafe
from ansible_collections.gpufabric.cluster.tests.fixtures.nccl_templates import TEMPLATES, entry, render
from hypothesis import given, settings
from hypothesis import strategies as st

VARIABLES = [
    entry("NCCL_DEBUG", "WARN"),
    entry("NCCL_ALGO", "allreduce:tree;broadcast:ring"),
    entry("NCCL_DEBUG_TIMESTAMP_FORMAT", "[%F %T] !"),
    entry("NCCL_CTA_POLICY", "EFFICIENCY|ZERO"),
    entry("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1", scope="node"),
    entry("NCCL_TOPO_FILE", "/opt/vendor/topo.xml", scope="node", origin="site"),
    entry("NCCL_CONF_FILE", "/job/x.conf", conf=False),
]
UNIFORM = {v["name"]: v["value"] for v in VARIABLES if v["scope"] == "uniform"}

#: every value that passes validation
VALUES = st.text(alphabet=string.printable, min_size=1, max_size=60).filter(lambda text: unsafe(text) is None)


def environment_after(shell: t.Sequence[str], text: str, **before: str) -> dict[str, str]:
    """What `env` shows after *shell* took *text* as its script."""
    base = {"PATH": "/usr/bin:/bin", **before}
    done = subprocess.run(
        [*shell], input=f"{text}\nenv -0\n", env=base, capture_output=True, check=True, text=True, timeout=20
    )
    assert done.stderr == ""
    return {name: value for name, value in parse_environment(done.stdout).items() if name.startswith("NCCL_")}


SHELLS = [shell for shell in ("sh", "dash", "bash", "zsh", "ksh") if shutil.which(shell)]


@pytest.mark.parametrize("shell", SHELLS)
def test_posix_shells(shell: str) -> None:
    assert environment_after([shell], render("nccl.sh.j2", VARIABLES)) == UNIFORM


@pytest.mark.parametrize("shell", SHELLS)
def test_it_can_be_sourced_with_unset_variables_and_errors_fatal(shell: str) -> None:
    assert environment_after([shell, "-eu"], render("nccl.sh.j2", VARIABLES)) == UNIFORM


def test_a_value_that_is_set_stays() -> None:
    after = environment_after(["sh"], render("nccl.sh.j2", VARIABLES), NCCL_DEBUG="INFO", NCCL_ALGO="")
    assert after == {**UNIFORM, "NCCL_DEBUG": "INFO", "NCCL_ALGO": ""}


@settings(max_examples=60)
@given(VALUES)
def test_no_value_is_read_by_the_shell(value: str) -> None:
    assert environment_after(["sh"], render("nccl.sh.j2", [entry("NCCL_X", value)])) == {"NCCL_X": value}


@pytest.mark.skipif(shutil.which("tcsh") is None, reason="tcsh is not installed")
@settings(max_examples=30)
@given(VALUES)
def test_csh(value: str) -> None:
    text = render("nccl.csh.j2", [entry("NCCL_X", value), *VARIABLES])
    assert environment_after(["tcsh", "-f"], text) == {"NCCL_X": value, **UNIFORM}
    assert environment_after(["tcsh", "-f"], text, NCCL_X="before")["NCCL_X"] == "before"


@given(VALUES)
def test_nccl_conf_by_its_grammar(value: str) -> None:
    text = render("nccl.conf.j2", [entry("NCCL_X", value), *VARIABLES])
    expected = {"NCCL_X": value, **{v["name"]: v["value"] for v in VARIABLES if v["conf"]}}
    for version in ((2, 18, 1), (2, 28, 9), (2, 32, 3)):
        assert variables(text, version) == expected
        assert [line.oddity for line in parse(text, version)] == [""] * len(expected)
    assert text.endswith("\n") and "\r" not in text


@settings(max_examples=40)
@given(VALUES)
def test_the_task_prolog_prints_what_slurm_reads(value: str) -> None:
    text = render("task_prolog.sh.j2", [entry("NCCL_X", value), *VARIABLES])
    done = subprocess.run(["sh"], input=text, env={"PATH": "/usr/bin:/bin"}, capture_output=True, check=True, text=True)
    given_out = dict(line.removeprefix("export ").split("=", 1) for line in done.stdout.splitlines())
    own = {v["name"]: v["value"] for v in VARIABLES if v["origin"] != "site"}
    assert given_out == {"NCCL_X": value, **own}


def test_the_task_prolog_leaves_a_jobs_own_value() -> None:
    done = subprocess.run(
        ["sh"], input=render("task_prolog.sh.j2", VARIABLES), env={"NCCL_DEBUG": "INFO"}, capture_output=True, text=True
    )
    assert done.returncode == 0 and "NCCL_DEBUG=" not in done.stdout and "NCCL_IB_HCA" in done.stdout


def generated(text: str, tmp_path: pathlib.Path) -> dict[str, str]:
    """What systemd's own reader of environment.d makes of a file."""
    directory = tmp_path / "config/environment.d"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "90.conf").write_text(text)
    done = subprocess.run(
        ["/usr/lib/systemd/user-environment-generators/30-systemd-environment-d-generator"],
        env={"XDG_CONFIG_HOME": str(tmp_path / "config"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return {n: v.strip('"') for n, v in parse_environment(done.stdout).items() if n.startswith("NCCL_")}


@pytest.mark.skipif(
    not pathlib.Path("/usr/lib/systemd/user-environment-generators/30-systemd-environment-d-generator").exists(),
    reason="systemd is not installed",
)
def test_environment_d(tmp_path: pathlib.Path) -> None:
    assert generated(render("environment.conf.j2", VARIABLES), tmp_path).keys() == UNIFORM.keys()


def test_nothing_but_node_specific_values_stays_out_of_environments() -> None:
    for name in ("nccl.sh.j2", "nccl.csh.j2", "environment.conf.j2"):
        text = render(name, VARIABLES)
        assert "NCCL_IB_HCA" not in text and "NCCL_TOPO_FILE" not in text


@pytest.mark.parametrize("name", sorted(path.name for path in TEMPLATES.iterdir()))
def test_every_file_is_marked_as_ours_and_can_be_empty(name: str) -> None:
    for given_variables in ([], VARIABLES):
        text = render(name, given_variables)
        assert is_ours(text) and text.endswith("\n") and "\n\n" not in text
