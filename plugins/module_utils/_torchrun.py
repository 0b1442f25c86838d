# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How torchrun is started on each machine of a training: static rendezvous, no shared disk. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import socket
import typing as t

#: nothing is downloaded, and standard output is the ranks' answers
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
    "KINETO_LOG_LEVEL": "5",
}


@dataclasses.dataclass(frozen=True)
class Place:
    """A machine of a training. name: by which its agent is asked; interfaces: those of the control network, without which
    gloo takes the one that the host's own name leads to, often the loopback.
    """

    name: str
    address: str
    ranks: int
    python: str
    interfaces: tuple[str, ...] = ()


def commands(
    places: t.Sequence[Place], port: int, program: t.Sequence[str], environment: t.Mapping[str, str]
) -> dict[str, tuple[list[str], dict[str, str]]]:
    """{name: (command line, variables)}; the first place is that of rank 0. *environment* stands over what is set here.

    torchrun wants the same number of ranks on every machine: ValueError where they differ.
    """
    counts = {place.ranks for place in places}
    if len(counts) > 1:
        raise ValueError(f"every machine of a training needs the same number of ranks, not {sorted(counts)}")
    made = {}
    for number, place in enumerate(places):
        argv = [place.python, "-m", "torch.distributed.run"]
        argv += ["--nnodes", str(len(places)), "--node-rank", str(number), "--nproc-per-node", str(place.ranks)]
        argv += ["--master-addr", places[0].address, "--master-port", str(port), *program]
        gloo = ("lo",) if len(places) == 1 else place.interfaces
        own = {"GLOO_SOCKET_IFNAME": ",".join(gloo)} if gloo else {}
        made[place.name] = (argv, {**QUIET, **own, **environment})
    return made


def free_port(address: str) -> int:
    """A port on which rank 0 may wait, free at this moment."""
    with socket.socket() as found:
        found.bind((address, 0))
        return int(found.getsockname()[1])
