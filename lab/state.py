# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is recorded of a running lab: enough to end it, and to take back its faults, by another process later."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import typing as t

from lab.errors import LabError
from lab.fault_actions import ActiveFault
from lab.paths import write_atomically
from lab.process import Process

_FILE = "state.json"
_SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a person has asked for. memory in MiB a node."""

    nodes: int = 2
    hcas: int = 2
    releases: tuple[str, ...] = ("bookworm",)
    variant: str = "base"
    memory: int = 768
    cpus: int = 1


DEFAULTS = Settings()


@dataclasses.dataclass
class State:
    """A lab. phase is `starting` until every node has been reached, then `up`.

    images: release → image key; ports and host_keys: node → its own; processes: node or switch → process.
    """

    lab_id: str
    settings: Settings
    phase: str = "starting"
    accelerator: str = "tcg"
    images: dict[str, str] = dataclasses.field(default_factory=dict)
    ports: dict[str, int] = dataclasses.field(default_factory=dict)
    host_keys: dict[str, str] = dataclasses.field(default_factory=dict)
    processes: dict[str, Process] = dataclasses.field(default_factory=dict)
    faults: list[ActiveFault] = dataclasses.field(default_factory=list)


def load(directory: pathlib.Path) -> State | None:
    """The lab recorded in directory, None when there is none. Raises LabError on a record that this version cannot read."""
    path = directory / _FILE
    try:
        value = json.loads(path.read_text("utf-8"))
        if value.pop("schema") != _SCHEMA:
            raise ValueError("another schema")
        settings = value.pop("settings")
        settings["releases"] = tuple(settings["releases"])
        return State(
            settings=Settings(**settings),
            processes={name: Process(**process) for name, process in value.pop("processes").items()},
            faults=[ActiveFault.from_json(fault) for fault in value.pop("faults")],
            **value,
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LabError(f"{path} is no record of a lab that this version can read: {error}") from error


def save(directory: pathlib.Path, state: State) -> None:
    """Record state, readable by its user alone."""
    value = {"schema": _SCHEMA, **dataclasses.asdict(state)}
    value["faults"] = [fault.to_json() for fault in state.faults]
    write_atomically(directory / _FILE, json.dumps(value, indent=1).encode(), 0o600)


def remove(directory: pathlib.Path) -> None:
    """Forget the lab."""
    (directory / _FILE).unlink(missing_ok=True)


@contextlib.contextmanager
def locked(directory: pathlib.Path) -> t.Iterator[None]:
    """Hold the run directory, so that two commands do not change the same lab at once. Raises LabError if another does."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LabError(f"another command is changing the lab in {directory}: wait for it to end") from error
        if not _is_at(descriptor, directory):
            raise LabError(f"the lab in {directory} has just ended: try again")
        yield
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, directory: pathlib.Path) -> bool:
    """Whether the open directory still is the one of that name: `down` removes it."""
    try:
        return os.path.samestat(os.fstat(descriptor), directory.stat())
    except FileNotFoundError:
        return False
