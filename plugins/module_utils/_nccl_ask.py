# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Asks a libnccl.so.2 itself which settings reached it, in a child process that touches no GPU. PRIVATE to the collection."""

from __future__ import annotations

import re
import sys
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_conf import SECRET
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools

#: the log settings of such a start, which stand over the rank's own
LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV", "NCCL_DEBUG_FILE": "/dev/stdout"}

#: what NCCL logs, at level INFO and subsystem ENV, for each variable once its code reads it
LOGGED = re.compile(r"(NCCL_[A-Z0-9_]+) set by environment to (.*?)\.?\s*$", re.MULTILINE)
WARNING = re.compile(r"NCCL WARN (.*)$", re.MULTILINE)

#: marks the lines by which the child process tells what is in its environment when NCCL has read its files
LANDED = re.compile(r"^gpufabric landed (NCCL_[A-Z0-9_]+)=(.*)$", re.MULTILINE)

#: Makes a unique id, for which NCCL reads its configuration files and starts its bootstrap. NCCL puts what the files say
#: into the process's environment, behind Python's back: the C library's own table shows it.
SCRIPT = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
status = library.ncclGetUniqueId(ctypes.create_string_buffer(128))
table = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
index = 0
while table[index]:
    entry = table[index].decode(errors="replace")
    if entry.startswith("NCCL_"):
        print("gpufabric landed " + entry, flush=True)
    index += 1
sys.exit(status)
"""


def ask(tools: Tools, library: str, environment: t.Mapping[str, str], timeout: float) -> dict[str, t.Any]:
    """{seen: {NCCL_*: value}, logged: {NCCL_*: value}, warnings: [text], problem}: what the library was given.

    seen: everything that it took from the environment and its files. logged: what it says so itself, which it does for
    what it reads before any GPU is in use. environment: the rank's, in which the log settings are replaced, so that the
    answer comes on standard output.
    """
    own = {**environment, **LOG}
    pairs = [f"{name}={value}" for name, value in own.items()]
    done = tools.run(["env", "-i", *pairs, sys.executable, "-c", SCRIPT, library], timeout=timeout)
    text = done.stdout + done.stderr
    hidden = (*LOG, SECRET)
    return {
        "seen": {name: value for name, value in sorted(LANDED.findall(text)) if name not in hidden},
        "logged": {name: value for name, value in sorted(LOGGED.findall(text)) if name not in hidden},
        "warnings": WARNING.findall(text)[:5],
        "problem": done.problem,
    }
