# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every command in the documentation is one that works.

What is cheap and changes nothing is run. Of the rest the program's own parser reads the arguments, and what they name (playbooks,
variables, tags, targets, files) must be there. A line that no rule knows fails: write a rule that tries it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import typing as t

import pytest
import yaml
from ansible.cli.adhoc import AdHocCLI
from ansible.cli.doc import DocCLI
from ansible.cli.galaxy import GalaxyCLI
from ansible.cli.playbook import PlaybookCLI
from ansible_builder.cli import parse_args as builder_arguments
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import role_specs
from ansible_collections.gpufabric.cluster.tests.unit.docs.documents import ROOT, Line, lines
from pip._internal.commands import create_command

from lab import faults
from lab.cli import _parser as lab_parser

COLLECTION = "gpufabric.cluster."


def ansible_playbook(words: list[str]) -> None:
    options = vars(_parsed(PlaybookCLI, words))
    for playbook in options["args"]:
        assert _playbook(playbook).exists(), f"there is no playbook {playbook}"
    for given in options["extra_vars"]:
        # a file of variables is the reader's own
        for name in [] if given.startswith("@") else _names(given):
            assert _is_variable(name), f"no role takes the variable {name}"
    tags = {tag for word in options["tags"] for tag in word.split(",")} - {"all"}
    known = {tag for playbook in options["args"] for tag in _tags(_playbook(playbook))}
    assert tags <= known, f"{options['args']} has no tags {tags - known}"
    for place in options["inventory"] or []:
        assert place in ("inventory", "your/inventory") or (ROOT / place).exists(), f"there is no inventory {place}"


def _parsed(cli: type, words: list[str]) -> argparse.Namespace:
    """What the program's own parser makes of *words*; it ends with SystemExit where they make no sense."""
    program = cli(["ansible", *words])
    program.init_parser()
    parsed: argparse.Namespace = program.parser.parse_args(words)
    return parsed


def _playbook(name: str) -> pathlib.Path:
    return ROOT / "playbooks" / f"{name.removeprefix(COLLECTION)}.yml" if name.startswith(COLLECTION) else ROOT / name


def _names(extra: str) -> list[str]:
    return list(json.loads(extra)) if extra.startswith("{") else [word.partition("=")[0] for word in shlex.split(extra)]


@functools.cache
def _is_variable(name: str) -> bool:
    specs = role_specs.load_specs()
    return specs.concerns(name) and role_specs.name_finding(name, "", specs) is None


@functools.cache
def _tags(playbook: pathlib.Path) -> set[str]:
    """Of a playbook and of those that it imports."""
    found: set[str] = set()
    text = playbook.read_text()
    for match in re.findall(r"tags: (.+)", text):
        value = yaml.safe_load(match)
        found.update(value if isinstance(value, list) else [value])
    for imported in re.findall(r"import_playbook: (\S+)", text):
        found |= _tags(playbook.parent / imported)
    return found


def ansible_doc(words: list[str]) -> None:
    options = _parsed(DocCLI, words)
    for name in options.args:
        bare = name.removeprefix(COLLECTION)
        place = {
            "role": ROOT / "roles" / bare / "meta/argument_specs.yml",
            "module": ROOT / "plugins/modules" / f"{bare}.py",
            "filter": ROOT / "plugins/filter" / f"{bare}.yml",
        }[options.type]
        assert place.exists(), f"there is no {options.type} {name}"


def make(words: list[str]) -> None:
    # -n shows what would be run, and fails for a target that is not there
    run("make", "-n", *words)


def lab(words: list[str]) -> None:
    options = lab_parser().parse_args(words)
    assert getattr(options, "kind", "loss") in faults.KINDS, f"the lab knows no fault {options.kind}"


def builder(words: list[str]) -> None:
    assert (ROOT / builder_arguments(words).filename).exists()


def pip(words: list[str]) -> None:
    command, *rest = words
    create_command(command).parse_args(rest)
    for word in rest:
        if word.endswith(".txt"):
            assert (ROOT / word).exists()


def run(*argv: str) -> str:
    done = subprocess.run(
        argv,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "ANSIBLE_HOME": str(ROOT / ".ansible")},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def program(words: list[str]) -> None:
    """A program of the repository that takes too long to be tried here."""
    path = ROOT / words[0]
    assert path.is_file() and (path.suffix != ".py" or compile(path.read_text(), words[0], "exec"))


def anything(_unused: list[str]) -> None:
    """The shell's own words, and programs of the nodes."""


#: {beginning of a command: what tries the words after it}; the longest that fits counts
RULES: dict[tuple[str, ...], t.Callable[[list[str]], object]] = {
    ("ansible-playbook",): ansible_playbook,
    ("ansible-galaxy",): lambda words: _parsed(GalaxyCLI, words),
    ("ansible-doc",): ansible_doc,
    ("ansible-builder",): builder,
    ("ansible",): lambda words: _parsed(AdHocCLI, words),
    ("make",): make,
    ("python", "-m", "lab"): lab,
    ("pip",): pip,
    ("python3", "-m", "pip"): pip,
    ("python", "-m", "pip"): pip,
    ("python3", "-m", "venv"): anything,
    ("python", "tools/faults_page.py"): lambda words: run(sys.executable, "tools/faults_page.py", "--check", *words),
    ("python", "tools/nccl_pages.py"): lambda words: run(sys.executable, "tools/nccl_pages.py", "--check", *words),
    ("python", "tests/benchmarks/recompute.py"): lambda words: run(
        sys.executable, "tests/benchmarks/recompute.py", *words
    ),
    ("tools/generate_docs.py",): lambda words: run("tools/generate_docs.py", "--check", *words),
    ("python",): program,
    ("git", "clone"): anything,
    ("install",): anything,
    ("cd",): anything,
    (".",): anything,
    ("export",): anything,
}

#: what stands in an indented block and is no command
NO_COMMANDS = re.compile(r"─|→|busbw\(size\) =|^\w+:(?: |$)")


def tried(text: str) -> None:
    """Try one command. AssertionError, or the parser's own SystemExit, where it does not work."""
    words = shlex.split(text)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)
    words[0] = re.sub(r"^(\.venv/bin|/opt/gpufabric/bin)/", "", words[0])
    known = [rule for rule in RULES if tuple(words[: len(rule)]) == rule]
    assert known, f"no rule tries this: {text}"
    rule = max(known, key=len)
    RULES[rule](words[len(rule) :])


COMMANDS = [line for line in lines() if not NO_COMMANDS.search(line.text)]


@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: f"{line.where} {line.text[:60]}")
def test_a_command_of_the_documentation_works(line: Line) -> None:
    tried(line.text)


#: what findings say to type, as it stands in the judges' sources: a playbook, and where and of what it is run
_OF_A_FINDING = re.compile(r"ansible-playbook gpufabric\.cluster\.\w+(?: --(?:tags|limit) [\w{}.\[\]',]+)*")
FIXES = sorted(
    {
        fix
        for suffix in ("py", "json")
        for path in ROOT.glob(f"plugins/plugin_utils/**/*.{suffix}")
        for fix in _OF_A_FINDING.findall(path.read_text())
    }
)


@pytest.mark.parametrize("fix", FIXES)
def test_a_playbook_that_a_finding_names_can_be_run_so(fix: str) -> None:
    tried(re.sub(r"\{[^{}]*\}", "n1", fix))


def test_findings_name_playbooks() -> None:
    assert len(FIXES) > 8


def test_the_documentation_has_commands() -> None:
    assert len(COMMANDS) > 40


@pytest.mark.parametrize(
    "command",
    [
        "ansible-playbook -i inventory gpufabric.cluster.sight",
        "ansible-playbook site.yml --no-such-option",
        "ansible-playbook site.yml -e rdma_expected_hca=8",
        "ansible-playbook site.yml --tags rmda",
        "ansible-playbook gpufabric.cluster.rdma --tags kernel_tuning",
        "ansible-playbook -i inventories/elsewhere site.yml",
        "ansible-doc -t role gpufabric.cluster.nothing",
        "ansible-galaxy collection instal .",
        "make dinner",
        "python -m lab fault inject no-such-fault n2",
        "pip install --no-such-option",
        "curl https://example.org/install.sh",
    ],
)
def test_a_command_that_does_not_work_is_found(command: str) -> None:
    with pytest.raises((AssertionError, SystemExit)):
        tried(command)
