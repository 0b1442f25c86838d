# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a rank finds where a command prefix puts it: programs, NCCL, its files and its environment. PRIVATE to the collection.

A container has a root of its own, so what the node's files say counts for nothing there. One start of the prefix, as the user of
the ranks, tells all of it: starting a container may take longer than everything else.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils import _launch, _lease, _nccl_conf, _rank_environment
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_tests_options import letters_of
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Account, Completed, Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

#: an image may have to be fetched first, in seconds
START_S = 300.0
#: set for the prefix; a rank behind a prefix that hands the environment on can see it
MARKER, WORK = "GPUFABRIC_PROBE", "GPUFABRIC_WORK"
MARK = "@@gpufabric "
PROGRAM = "program "

#: for the image's sh, with the programs as its arguments; what a small image lacks leaves its section empty
SCRIPT = r"""
mark() { printf '\n@@gpufabric %s\n' "$1"; }
mark environment; env
mark work; [ -n "${GPUFABRIC_WORK-}" ] && [ -d "$GPUFABRIC_WORK" ] && echo visible
for file in "${NCCL_CONF_FILE-}" "$HOME/.nccl.conf" /etc/nccl.conf; do
  [ -n "$file" ] && [ -r "$file" ] && { mark "file $file"; cat "$file"; }
done
library=
for program; do
  [ -f "$program" ] || continue
  mark "program $program"
  elf=; head -c 4 "$program" | grep -q ELF && elf=1
  [ -n "$elf" ] && { echo elf; grep -q MPI_Init "$program" && echo mpi; }
  grep -a -o 'nccl-tests version [0-9.]*' "$program" | head -n 1
  echo usage; "$program" -h </dev/null 2>&1
  [ -n "$library" ] || library=$(ldd "$program" | sed -n 's/.*libnccl\.so[.0-9]* => \(\/[^ ]*\).*/\1/p' | head -n 1)
  [ -z "$library" ] && [ -n "$elf" ] && grep -q 'NCCL version [0-9]' "$program" && library=$program
done
mark "library $library"
[ -n "$library" ] && grep -a -o 'NCCL version [0-9][^ ]*+cuda[0-9.]*' "$library" | head -n 1
mark end
"""


@dataclasses.dataclass(frozen=True)
class Container:
    """What is behind *prefix* on one node.

    problem: why nothing can be said, "" where it can; library, nccl_version, cuda: of the NCCL that the programs load there; files: its
    configuration files there; effective: {NCCL_*: {value, source}} of a rank; passes_environment: whether a variable of the
    launcher reaches it; sees_work: whether it sees the run's directory, for logs and reports; host_conf: what the node's own
    /etc/nccl.conf says, which counts only where it is mounted.
    """

    prefix: tuple[str, ...]
    problem: str = ""
    library: str = ""
    nccl_version: str = ""
    cuda: str = ""
    files: tuple[str, ...] = ()
    effective: t.Mapping[str, t.Mapping[str, str]] = dataclasses.field(default_factory=dict)
    passes_environment: bool = False
    sees_work: bool = False
    host_conf: t.Mapping[str, str] = dataclasses.field(default_factory=dict)

    def as_dict(self) -> dict[str, t.Any]:
        return dataclasses.asdict(self)


def on_this_node(prefix: t.Sequence[str], hostname: str) -> list[str]:
    """*prefix* for one process on this node. Slurm would else put it on any node of its own choice."""
    if not is_srun(prefix):
        return list(prefix)
    return [*prefix, *_launch.on_one_node(hostname.split(".")[0])]


def is_srun(prefix: t.Sequence[str]) -> bool:
    """Whether the container is Slurm's (pyxis): then the prefix's options belong to the srun that starts the ranks."""
    return bool(prefix) and prefix[0].rpartition("/")[2] == "srun"


def look_inside(
    fs: RootedFs, tools: Tools, prefix: t.Sequence[str], paths: t.Mapping[str, str], account: Account | None = None
) -> tuple[Container, dict[str, dict[str, t.Any]]]:
    """(what is behind *prefix*, {collective: see _nccl_tests_probe.read_program()}). paths: {collective: path inside}."""
    hostname = fs.read_value("/proc/sys/kernel/hostname") or ""
    environment = {MARKER: "1", WORK: _lease.default_base()}
    argv = [*on_this_node(prefix, hostname), "sh", "-c", SCRIPT, "sh", *paths.values()]
    done = tools.run(argv, timeout=START_S, env=environment, account=account)
    sections = _sections(done.stdout)
    host_conf = {k: v for k, v in _conf(fs).items() if _nccl_conf.is_nccl(k)}
    if "end" not in sections:
        return Container(tuple(prefix), problem=_why(done), host_conf=host_conf), {}
    seen = _rank_environment.parse_environment(sections["environment"])
    files = {name.partition(" ")[2]: text for name, text in sections.items() if name.startswith("file ")}
    library = next(name.partition(" ")[2] for name in sections if name.startswith("library "))
    banner = re.search(r"NCCL version (\d+\.\d+\.\d+)[^+]*\+cuda([\d.]+)", sections[f"library {library}"])
    version, cuda = banner.groups() if banner else ("", "")
    numbers = tuple(int(number) for number in version.split(".")) if version else _nccl_conf.CURRENT
    counting = _nccl_conf.files(seen, seen.get("HOME", ""), numbers)
    effective = _nccl_conf.effective(_reader(files), seen, seen.get("HOME", ""), numbers)
    container = Container(
        prefix=tuple(prefix),
        library=library,
        nccl_version=version,
        cuda=cuda,
        files=tuple(path for path in counting if path in files),
        effective={name: dataclasses.asdict(value) for name, value in sorted(effective.items())},
        passes_environment=MARKER in seen,
        sees_work="visible" in sections["work"],
        host_conf=host_conf,
    )
    return container, _programs(sections, paths)


def _sections(text: str) -> dict[str, str]:
    """{title: what was printed below it}; a container's own start-up words come before the first."""
    found = {}
    for part in text.split(f"\n{MARK}")[1:]:
        title, _newline, content = part.partition("\n")
        found[title.rstrip("\r")] = content.replace("\r\n", "\n")
    return found


def _programs(sections: t.Mapping[str, str], paths: t.Mapping[str, str]) -> dict[str, dict[str, t.Any]]:
    programs = {}
    for collective, path in paths.items():
        if PROGRAM + path not in sections:
            continue
        facts, _word, usage = sections[PROGRAM + path].partition("usage\n")
        version = re.search(r"nccl-tests version (\d+\.\d+\.\d+)", facts)
        lines = facts.split("\n")
        programs[collective] = {
            "path": path,
            "mpi": "mpi" in lines if "elf" in lines else None,
            "version": version.group(1) if version else "",
            "letters": "".join(sorted(letters_of(usage))),
            "problem": "" if "USAGE" in usage else (usage.strip().splitlines() or ["it prints no usage text"])[-1],
        }
    return programs


def _reader(files: t.Mapping[str, str]) -> t.Callable[[str], str]:
    def read_text(path: str) -> str:
        if path not in files:
            raise FileNotFoundError(path)
        return files[path]

    return read_text


def _conf(fs: RootedFs) -> dict[str, str]:
    try:
        return _nccl_conf.variables(fs.read_text(_nccl_conf.SYSTEM_FILE))
    except OSError:
        return {}


def _why(done: Completed) -> str:
    return (
        done.problem
        or f"{done.argv[0]} ran, and the image's sh did not: {(done.stderr.strip() or 'it said nothing')[-200:]}"
    )
