# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Asks a libnccl.so.2 itself which settings reached it, in a child process that touches no GPU. PRIVATE to the collection."""

from __future__ import annotations

import re
import sys
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools

#: what NCCL logs, at level INFO and subsystem ENV, for each variable once its code reads it
SET = re.compile(r"(NCCL_[A-Z0-9_]+) set by environment to (.*?)\.?\s*$", re.MULTILINE)
CONFIGURED = re.compile(r"(NCCL_[A-Z0-9_]+) set to (.*?)\.?\s*$", re.MULTILINE)
WARNING = re.compile(r"NCCL WARN (.*)$", re.MULTILINE)

#: makes a unique id, for which NCCL reads its configuration files and starts its bootstrap, and leaves again
SCRIPT = (
    "import ctypes, sys; "
    "library = ctypes.CDLL(sys.argv[1]); "
    "sys.exit(library.ncclGetUniqueId(ctypes.create_string_buffer(128)))"
)


def ask(tools: Tools, library: str, environment: t.Mapping[str, str], timeout: float) -> dict[str, t.Any]:
    """{seen: {NCCL_*: value}, warnings: [text], problem}: what the library says that it was given.

    seen holds what it reads before any GPU is in use: interfaces, family, log settings. environment: the rank's, of which
    the log settings are replaced, so that the answer comes on standard output.
    """
    own = {**environment, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV", "NCCL_DEBUG_FILE": "/dev/stdout"}
    pairs = [f"{name}={value}" for name, value in own.items()]
    done = tools.run(["env", "-i", *pairs, sys.executable, "-c", SCRIPT, library], timeout=timeout)
    text = done.stdout + done.stderr
    seen = {name: value for pattern in (CONFIGURED, SET) for name, value in pattern.findall(text)}
    logging = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
    return {
        "seen": {name: value for name, value in sorted(seen.items()) if name not in logging},
        "warnings": WARNING.findall(text)[:5],
        "problem": done.problem,
    }
