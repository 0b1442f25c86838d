# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finding, refusing and ending labs, with plain processes in the place of machines."""

from __future__ import annotations

import pathlib
import sys

import pytest

from lab import faults, process, state
from lab.cluster import Cluster
from lab.errors import LabError
from lab.plan import make_plan
from lab.progress import Progress
from lab.state import Settings, State

SETTINGS = Settings(nodes=2, hcas=1)
QUIET = Progress(quiet=True)
NAMES = ("switch rail0", "switch control", "n1", "n2")


@pytest.fixture
def directory(tmp_path: pathlib.Path) -> pathlib.Path:
    run = tmp_path / "run"
    run.mkdir()
    return run


def sleeper(directory: pathlib.Path, lab_id: str) -> process.Process:
    return process.spawn(
        [sys.executable, "-c", "import time; time.sleep(120)"], directory, directory / "n1" / "log", lab_id
    )


def a_lab(directory: pathlib.Path, phase: str = "up") -> State:
    (directory / "n1").mkdir()
    lab = State(directory.parent.name, SETTINGS, phase, ports={"n1": 22001, "n2": 22002})
    lab.processes = {name: sleeper(directory, lab.lab_id) for name in NAMES}
    state.save(directory, lab)
    return lab


def test_down_ends_what_is_recorded_and_what_never_was(directory: pathlib.Path) -> None:
    lab = a_lab(directory)
    unrecorded = sleeper(directory, lab.lab_id)
    stranger = sleeper(directory, "another lab")
    Cluster(directory, QUIET).down()
    assert not [one for one in (*lab.processes.values(), unrecorded) if one.alive()]
    assert stranger.alive()
    assert not directory.exists()
    process.end([stranger])


def test_a_lab_that_is_up_as_wanted_is_left_as_it_is(directory: pathlib.Path) -> None:
    lab = a_lab(directory)
    cluster = Cluster(directory, QUIET)
    assert cluster.up(SETTINGS) == directory / "inventory" / "hosts.yml"
    assert state.load(directory) == lab
    cluster.down()


def test_another_one_is_refused(directory: pathlib.Path) -> None:
    lab = a_lab(directory)
    with pytest.raises(LabError, match="another lab is up in .*: end it first"):
        Cluster(directory, QUIET).up(Settings(nodes=3))
    assert all(one.alive() for one in lab.processes.values())
    Cluster(directory, QUIET).down()


def test_one_that_is_not_whole_is_refused_with_what_ails_it(directory: pathlib.Path) -> None:
    lab = a_lab(directory)
    process.end([lab.processes.pop("n2")])
    lab.faults.append(faults.design(make_plan(2, 1), "loss", "n1", faults.Parameters()).fault)
    state.save(directory, lab)
    with pytest.raises(LabError, match=r"not whole \(n2 is off, loss on n1 rail 0\): bring it back with"):
        Cluster(directory, QUIET).up(SETTINGS)
    lab.processes["n2"] = sleeper(directory, lab.lab_id)
    lab.faults.clear()
    process.end([lab.processes["switch rail0"]])
    state.save(directory, lab)
    with pytest.raises(LabError, match=r"not whole \(a switch has ended\)"):
        Cluster(directory, QUIET).up(SETTINGS)
    Cluster(directory, QUIET).down()


@pytest.mark.parametrize("phase", ["starting", "up"])
def test_what_a_killed_up_or_a_restart_has_left_gives_way_to_the_next_up(
    directory: pathlib.Path, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = a_lab(directory, phase)
    if phase == "up":
        process.end(lab.processes.values())

    def no_image(*_: object) -> None:
        raise LabError("as far as the image")

    monkeypatch.setattr("lab.image.ensure", no_image)
    with pytest.raises(LabError, match="as far as the image"):
        Cluster(directory, QUIET).up(SETTINGS)
    assert not [one for one in lab.processes.values() if one.alive()]
    assert not directory.exists()


def test_an_up_that_fails_leaves_nothing(directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The switches are real; the image is none, so that QEMU ends at once, for whichever node is seen first."""
    image = directory.parent / "no-image"
    image.mkdir()
    (image / "root.img").write_bytes(bytes(4096))

    def ensure(*_: object) -> object:
        return type(
            "Image", (), {"key": "none", "root": image / "root.img", "kernel": image / "k", "ramdisk": image / "r"}
        )

    monkeypatch.setattr("lab.image.ensure", ensure)
    monkeypatch.setattr("lab.accelerator.choose", lambda *_: "tcg")
    with pytest.raises(LabError, match=r"QEMU has ended for n\d+|cannot start qemu|the lab needs qemu"):
        Cluster(directory, QUIET).up(SETTINGS)
    assert not directory.exists()


def test_a_record_of_another_version_is_not_overwritten(directory: pathlib.Path) -> None:
    (directory / "state.json").write_text('{"schema": 2}')
    for act in (Cluster(directory, QUIET).up, Cluster(directory, QUIET).down):
        with pytest.raises(LabError, match="is no record of a lab that this version can read"):
            act()
    assert (directory / "state.json").read_text() == '{"schema": 2}'
