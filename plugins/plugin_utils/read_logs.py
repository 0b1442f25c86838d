# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reads a directory of logs from anywhere: each file streamed, in constant memory, and held against the fault catalogue."""

from __future__ import annotations

import collections
import os
import pathlib
import re
import stat
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_log import parse_nccl_log_stream
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_log_stream import whole_text
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.faults import explain_log
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.user_path import user_path

#: files read of one directory; more are said
MOST_FILES = 10_000
#: up to here (bytes as they lie there) a file is also searched as a whole for what the catalogue knows; of a longer one
#: the lines that the reader kept
SEARCHED_WHOLE = 4 << 20
#: causes kept of one file, the likeliest first
CAUSES = 4

#: why what is neither a file nor a directory is not read: a pipe or a device would be waited for without end
IRREGULAR = "it is no regular file"

#: {first bytes: what packed it so}: what the reader cannot unpack, and would take for a log that says nothing
FOREIGN = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"\x04\x22\x4d\x18": "lz4",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
}

_DIGITS = re.compile(r"[0-9]+")

#: what is kept of a parsed log; the rest would make a run record of thousands of logs unreadable
KEPT = (
    "transport", "gdr", "nccl_version", "hosts", "layout", "channels", "transports", "environment", "environment_differs",
    "versions", "first_failure", "failure_count", "lines", "read",
)  # fmt: skip


def read_logs(path: str) -> dict[str, t.Any]:
    """{path, files: [{name, job, ...KEPT, waiting, causes}], skipped: [{name, why}]}, files by name.

    path: one file, or a directory that is walked with all below it. name: relative to it; job: files of one job have the
    same (see jobs_of()); waiting: ranks that never joined; causes: explain_log()'s findings without their long parts.
    Raises ValueError, a sentence, where there is nothing to read.
    """
    root = user_path(path)
    if not root.exists():
        raise ValueError(f"diagnose_logs is {path}, and there is no such file or directory")
    names, skipped = _names(root)
    if not names and not skipped:
        raise ValueError(f"diagnose_logs is {path}, and no file is in that directory")
    files = []
    for name in names:
        try:
            files.append({"name": _shown(name), **_read(root / name if root.is_dir() else root)})
        except OSError as error:
            skipped.append({"name": name, "why": error.strerror or str(error)})
    skipped = [{**entry, "name": _shown(entry["name"])} for entry in skipped]
    jobs = jobs_of({file["name"]: file["hosts"] for file in files})
    return {
        "path": _shown(str(root)),
        "files": [{**file, "job": jobs[file["name"]]} for file in files],
        "skipped": skipped,
    }


def _names(root: pathlib.Path) -> tuple[list[str], list[dict[str, str]]]:
    """Relative names of the regular files below *root*, and what is passed over. Links to elsewhere are not followed."""
    if not root.is_dir():
        return ([root.name], []) if root.is_file() else ([], [{"name": root.name, "why": IRREGULAR}])
    names: list[str] = []
    skipped: list[dict[str, str]] = []

    def closed(error: OSError) -> None:
        skipped.append({"name": os.path.relpath(error.filename, root), "why": error.strerror or str(error)})

    for directory, subdirectories, entries in os.walk(root, onerror=closed):
        subdirectories.sort()
        for entry in sorted(entries):
            path = pathlib.Path(directory) / entry
            name = str(path.relative_to(root))
            if not stat.S_ISREG(path.lstat().st_mode):
                skipped.append({"name": name, "why": IRREGULAR})
            elif len(names) >= MOST_FILES:
                skipped.append({"name": name, "why": f"more than {MOST_FILES} files are not read"})
            else:
                names.append(name)
    return names, skipped


def _shown(name: str) -> str:
    """A file's name as terminals and reports can show it: what of it is no UTF-8 as \\xNN."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _read(path: pathlib.Path) -> dict[str, t.Any]:
    """What is kept of one file. OSError where it cannot be read."""
    with path.open("rb") as file:
        head = file.read(8)
        packed = next((name for magic, name in FOREIGN.items() if head.startswith(magic)), "")
        if packed:
            raise OSError(f"it is packed with {packed}, and has to be unpacked first")
        file.seek(0)
        parsed = parse_nccl_log_stream(file)
    context = {"text": _whole_text(path)} if path.stat().st_size <= SEARCHED_WHOLE else {}
    causes = [
        {
            key: cause[key]
            for key in (
                "id",
                "title",
                "severity",
                "score",
                "shown_by",
                "evidence",
                "host",
                "because",
                "cause",
                "fix",
                "tell_apart",
            )  # fmt: skip
        }
        for cause in explain_log(parsed, context)[:CAUSES]
    ]
    waiting = [c for c in parsed["communicators"] if c["not_complete"] or c["never_seen"]]
    return {**{key: parsed[key] for key in KEPT}, "waiting": waiting[:10], "causes": causes}


def _whole_text(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return whole_text(file, SEARCHED_WHOLE)


def jobs_of(hosts: t.Mapping[str, t.Sequence[str]]) -> dict[str, str]:
    """{file: its job}. A file is a job of its own, unless a directory holds several that speak of one host or none each
    and whose names differ in numbers and host names only: NCCL_DEBUG_FILE=nccl-%h-%p.log makes a file a process."""
    alike: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for name, named in hosts.items():
        directory, base = os.path.split(name)
        if len(named) <= 1:
            for host in named:
                base = base.replace(host, "%h")
            alike[directory, _DIGITS.sub("%p", base)].append(name)
    jobs = {name: name for name in hosts}
    for (directory, likeness), names in alike.items():
        if len(names) > 1:
            jobs.update(dict.fromkeys(names, os.path.join(directory, likeness)))
    return jobs
