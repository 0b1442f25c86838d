# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which rank died first, where and how, from the words of what had started it."""

from __future__ import annotations

import re
import typing as t


class Death(t.NamedTuple):
    """host: as the launcher calls it, "" where it does not say; words: a sentence."""

    host: str
    words: str


#: Open MPI 4 and 5, which breaks its lines
_SIGNALLED = re.compile(
    r"(?:mpirun|mpiexec|orterun|prterun)\s+noticed\s+that\s+process\s+rank\s+(\d+)\s+with\s+PID\s+\d+\s+on\s+node\s+(\S+)\s+"
    r"exited\s+on\s+signal\s+(\d+)(?:\s+\(([^)]*)\))?"
)
_CODE = re.compile(r"Process\s+name:\s+\[\S*?,\s*(\d+)\]\s+Exit\s+code:\s+(\d+)")
#: Slurm: the first is the cause, since --kill-on-bad-exit ends the others
_SLURM = re.compile(r"^srun: error: (\S+): (tasks? [\d,-]+): (.+)$", re.MULTILINE)


def first_death(text: str) -> Death | None:
    """The death that a launcher's stderr tells of, None where it tells of none."""
    if match := _SIGNALLED.search(text):
        rank, host, number, name = match.groups()
        return Death(
            host, f"rank {rank} was ended by signal {number}" + (f" ({' '.join(name.split())})" if name else "")
        )
    if match := _SLURM.search(text):
        host, tasks, how = match.groups()
        return Death(host, f"{tasks}: {how.strip()}")
    if match := _CODE.search(text):
        return Death("", f"rank {match.group(1)} ended with exit code {match.group(2)}")
    return None
