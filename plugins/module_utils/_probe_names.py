# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Names to addresses and back as programs on this node get them, by getent(1): bounded in time, unlike the resolver.

PRIVATE to the collection.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools

#: exit status of getent where the name is in no database
UNKNOWN = 2


def resolve(tools: Tools, name: str, timeout_s: float) -> dict[str, t.Any]:
    """{name, addresses, seconds, problem}: what getaddrinfo(3) gives for *name*; problem "" where it gives addresses."""
    done = tools.run(["getent", "ahosts", name], timeout=timeout_s)
    addresses = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    problem = "" if addresses else "the name is unknown here" if done.rc == UNKNOWN else done.problem or "no answer"
    return {
        "name": name,
        "addresses": list(dict.fromkeys(addresses)),
        "seconds": round(done.seconds, 3),
        "problem": problem,
    }


def reverse(tools: Tools, address: str, timeout_s: float) -> list[str]:
    """The names that gethostbyaddr(3) gives for *address*, none where it knows none."""
    done = tools.run(["getent", "hosts", address], timeout=timeout_s)
    return [name for line in done.stdout.splitlines() for name in line.split()[1:]]
