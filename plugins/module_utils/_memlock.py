# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The limit on locked memory, which bounds what RDMA may register: for sessions and for services. PRIVATE to the collection.

Sources: limits.conf(5), systemd-system.conf(5), setrlimit(2).
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._owned_file import MARK, OwnedFile
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

LIMITS = "/etc/security/limits.d/99-gpufabric-memlock.conf"
MANAGER = "/etc/systemd/system.conf.d/99-gpufabric-memlock.conf"
UNLIMITED = "unlimited"

#: prints the hard and the soft limit, each in KiB or as "unlimited"
ASK = "ulimit -H -l; ulimit -S -l"


def normal_limit(value: str) -> str:
    """ "unlimited", a number of KiB, or "" (leave it alone); ValueError for anything else."""
    if value in ("", UNLIMITED) or re.fullmatch(r"[1-9][0-9]*", value):
        return value
    raise ValueError(f"memlock: {value!r} must be 'unlimited', a number of KiB, or '' to leave the limit alone")


def limit_files(limit: str) -> list[OwnedFile]:
    """The files that set *limit* (as normal_limit() returns it) for PAM sessions and for systemd's services."""
    if not limit:
        return []
    # the asterisk does not mean root (limits.conf(5))
    rows = [f"{who} {kind} memlock {limit}" for who in ("*", "root") for kind in ("soft", "hard")]
    manager = "infinity" if limit == UNLIMITED else f"{limit}K"
    header = f"# {MARK}, role kernel_tuning: RDMA registers locked memory"
    return [
        OwnedFile(LIMITS, "\n".join([header, *rows]) + "\n"),
        OwnedFile(MANAGER, f"{header}\n[Manager]\nDefaultLimitMEMLOCK={manager}\n"),
    ]


def reload_manager(tools: Tools) -> str:
    """Let systemd read its configuration again, for services started from now on; a sentence where that failed."""
    done = tools.run(["systemctl", "daemon-reload"], timeout=60)
    return "" if done.missing else done.problem


def service_limit(fs: RootedFs, tools: Tools) -> dict[str, str]:
    """What a service started now really gets: {hard, soft} in KiB or "unlimited", and evidence or a problem.

    It is measured in a transient unit, not read from a file. Empty values where there is no systemd to start one.
    """
    if fs.is_live and not fs.is_dir("/run/systemd/system"):
        return {"hard": "", "soft": "", "evidence": "systemd does not run here"}
    argv = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", "/bin/sh", "-c", ASK]
    done = tools.run(argv, timeout=60)
    answer = limits_in(done.stdout)
    if not done.ok or not answer:
        return {"hard": "", "soft": "", "evidence": done.problem or "systemd-run printed no limit"}
    return {**answer, "evidence": f"systemd-run {ASK!r}"}


def limits_in(text: str) -> dict[str, str]:
    """{hard, soft} from what ASK printed, {} where that is something else."""
    found = t.cast("list[str]", re.findall(r"^(unlimited|[0-9]+)\s*$", text, re.MULTILINE))
    return {"hard": found[0], "soft": found[1]} if len(found) == 2 else {}
