# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One node's NCCL environment, whole: the library, the files, and what ranks see. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils import (
    _nccl_ask,
    _nccl_conf,
    _nccl_library,
    _nccl_sources,
    _rank_environment,
)
from ansible_collections.gpufabric.cluster.plugins.module_utils._owned_file import is_ours, prior_text
from ansible_collections.gpufabric.cluster.plugins.module_utils._prior_state import CorruptStateError
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rank_environment import Environment, User
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

#: the role that owns /etc/nccl.conf once it was adopted
OWNER = "nccl_env"


@dataclasses.dataclass(frozen=True)
class Request:
    """user: whose ranks, "" for the connection's. libraries: files or directories to look into first.

    nccl_version: that of the library that ranks load, "" to take what is found. catalogue_version: for a newer library its
    variable names are returned too. ways: how ranks are started. ask_library: whether to load it. timeout: seconds for
    each program.
    """

    user: str = ""
    libraries: t.Sequence[str] = ()
    nccl_version: str = ""
    catalogue_version: str = ""
    ways: t.Sequence[str] = ()
    ask_library: bool = False
    timeout: float = 30.0


def observe_nccl_env(fs: RootedFs, tools: Tools, request: Request) -> dict[str, t.Any]:
    """Everything about one node's NCCL environment, as plain data; what could not be read is under ``problems``.

    library: the one a rank loads first, None without any; libraries: all. library_names: see Request. user, home.
    ways: {way: {environment, effective: {NCCL_*: {value, source}}, problem}}. conf: /etc/nccl.conf as it is. site: the
    vendor's file, present or adopted, and whether it holds a key, which stays there. user_files, settings, writers: see
    _nccl_sources. asked: what the library says.
    """
    session, over_ssh = _rank_environment.session(fs)
    user = _rank_environment.find_user(fs, request.user or session.get("USER", ""))
    problems: list[dict[str, str]] = []
    if user is None:
        name = request.user or session.get("USER", "")
        problems.append({"id": "user_unknown", "subject": name, "evidence": f"there is no account {name} on this node"})
        user = User(request.user, "", "/bin/sh")
    libraries, library_problems = _nccl_library.candidates(fs, tools, session, request.libraries, user.home)
    readable = [library for library in libraries if library.version]
    library = readable[0] if readable else None
    version = _version(request.nccl_version or (library.version if library else ""))
    problems += library_problems
    problems += [{"id": "library_unreadable", "subject": x.path, "evidence": x.problem} for x in libraries if x.problem]
    ways = _ways(tools, request, user, session, over_ssh, version)
    return {
        "library": library.as_dict() if library else None,
        "libraries": [library.as_dict() for library in libraries],
        "library_names": _names_if_newer(fs, library, request.catalogue_version),
        "user": user.name,
        "home": user.home,
        "ways": ways,
        "conf": _conf(fs, version),
        "site": _site(fs, version, problems),
        "user_files": _nccl_sources.user_files(fs, user.home, version),
        "settings": _nccl_sources.settings(fs, user.home),
        "writers": _nccl_sources.writers(fs),
        "asked": _ask(tools, request, library, ways) if request.ask_library else None,
        "problems": problems,
    }


def _version(text: str) -> _nccl_conf.Version:
    numbers = re.findall(r"\d+", text)[:3]
    return tuple(map(int, numbers)) if len(numbers) >= 2 else _nccl_conf.CURRENT


def _names_if_newer(fs: RootedFs, library: _nccl_library.Library | None, catalogue_version: str) -> list[str] | None:
    if library is None or not catalogue_version or _version(library.version) <= _version(catalogue_version):
        return None
    return _nccl_library.variable_names(fs.host_path(library.path))


def _ways(
    tools: Tools,
    request: Request,
    user: User,
    session: Environment,
    over_ssh: bool,
    version: _nccl_conf.Version,
) -> dict[str, dict[str, t.Any]]:
    """What each way of starting a rank gives it, for ways that this node has: ``ssh`` where the session came over SSH."""
    there = {"ssh": over_ssh, "mpirun": tools.find("mpirun"), "systemd": tools.find("systemctl"), "login": True}
    found = {}
    for way in request.ways:
        if not there[way]:
            continue
        if way == "ssh":
            environment, problem = session, ""
        elif way == "login":
            environment, problem = _rank_environment.login(tools, user, request.timeout)
        elif way == "mpirun":
            environment, problem = _rank_environment.mpirun(tools, user, session, request.timeout)
        else:
            environment, problem = _rank_environment.systemd(tools, request.timeout)
        effective = {} if problem else _nccl_conf.effective(tools.fs.read_text, environment, user.home, version)
        found[way] = {
            "environment": _rank_environment.relevant(environment),
            "effective": {name: dataclasses.asdict(value) for name, value in sorted(effective.items())},
            "problem": problem,
        }
    return found


def _conf(fs: RootedFs, version: _nccl_conf.Version) -> dict[str, t.Any]:
    text = _text(fs, _nccl_conf.SYSTEM_FILE)
    return {
        "exists": text is not None,
        "ours": text is not None and is_ours(text),
        "lines": [
            dataclasses.asdict(line) for line in _nccl_conf.parse(text or "", version) if line.name != _nccl_conf.SECRET
        ],
    }


def _site(fs: RootedFs, version: _nccl_conf.Version, problems: list[dict[str, str]]) -> dict[str, t.Any]:
    """A vendor's /etc/nccl.conf: the one that lies there, or the one that was adopted and is kept for rollback."""
    text = _text(fs, _nccl_conf.SYSTEM_FILE)
    adopted = text is not None and is_ours(text)
    if adopted:
        try:
            text = prior_text(fs, OWNER, _nccl_conf.SYSTEM_FILE)
        except CorruptStateError as error:
            problems.append({"id": "prior_state_corrupt", "subject": OWNER, "evidence": str(error)})
            text = None
    given = _nccl_conf.variables(text or "", version)
    return {
        "present": text is not None,
        "adopted": adopted and text is not None,
        "variables": {name: value for name, value in given.items() if name != _nccl_conf.SECRET},
        "secret": _nccl_conf.SECRET in given,
    }


def _text(fs: RootedFs, path: str) -> str | None:
    try:
        return fs.read_text(path)
    except OSError:
        return None


def _ask(
    tools: Tools, request: Request, library: _nccl_library.Library | None, ways: t.Mapping[str, t.Mapping[str, t.Any]]
) -> dict[str, t.Any] | None:
    if library is None:
        return None
    environment: Environment = next(
        (w["environment"] for w in (ways.get("ssh"), ways.get("login")) if w and not w["problem"]), {}
    )
    return _nccl_ask.ask(tools, library.path, environment, request.timeout)
