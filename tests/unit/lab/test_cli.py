# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command: what a person gets who errs or interrupts."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
import time

import pytest

from lab.cli import main
from lab.paths import REPOSITORY
from lab.ports import LOOPBACK, free_ports
from lab.progress import Progress


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lab", *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("words", [("status",), ("ssh",), ("power",), ("fault", "list"), ("fault", "clear")])
def test_without_a_lab_one_sentence_says_how_to_start_one(words: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    more = {"ssh": ["n1"], "power": ["n1", "off"]}.get(words[0], [])
    done = run(*words, "--dir", str(tmp_path / "none"), *more)
    assert done.returncode == 1
    assert done.stderr == f"lab: no lab is up in {tmp_path / 'none'}: `python -m lab up` starts one\n"
    assert not (tmp_path / "none").exists()


def test_down_without_a_lab_is_no_error(tmp_path: pathlib.Path) -> None:
    assert run("down", "--dir", str(tmp_path / "none")).returncode == 0


def test_a_directory_with_other_things_in_it_is_refused_and_left(tmp_path: pathlib.Path) -> None:
    (tmp_path / "thesis.tex").touch()
    done = run("up", "--dir", str(tmp_path))
    assert done.returncode == 1
    assert "is not empty and holds no lab" in done.stderr
    assert run("down", "--dir", str(tmp_path)).returncode == 0
    assert (tmp_path / "thesis.tex").exists()


def test_bad_numbers_are_refused_before_anything_starts(tmp_path: pathlib.Path) -> None:
    done = run("up", "--nodes", "0", "--dir", str(tmp_path / "run"))
    assert (done.returncode, done.stderr) == (1, "lab: --nodes is 0, expected 1 to 64\n")
    assert not (tmp_path / "run").exists()


def test_an_interrupt_ends_the_command_with_the_signals_status(tmp_path: pathlib.Path) -> None:
    code = (
        "import time, lab.cli as cli\n"
        "def wait(options):\n    print('waiting', flush=True)\n    time.sleep(30)\n"
        "cli._status = wait\n"
        "raise SystemExit(cli.main(['status']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=10)
    assert process.returncode == 128 + signal.SIGTERM
    assert said == "lab: ended by SIGTERM; what was started is taken back\n"


def test_help_lists_every_kind_of_fault(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fault", "inject", "--help"])
    assert "gid-lost" in capsys.readouterr().out


def test_ports_are_free_and_different() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20


def test_a_port_in_use_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    (port,) = free_ports(1)
    with socket.socket() as taken:
        taken.bind((LOOPBACK, port))
        taken.listen()
        monkeypatch.setattr("lab.ports._RANGE", range(port, port + 20))
        assert port not in free_ports(1)


def test_progress_is_one_plain_line_a_step_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(sys.stderr).step("building"):
        time.sleep(0.01)
    assert capsys.readouterr().err == "lab: building: done in 0.0 s\n"
