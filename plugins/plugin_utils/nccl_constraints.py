# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What NCCL's variables demand of one another."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_value import nccl_integer

#: connections that the socket transport keeps to one peer (MAX_SOCKETS in NCCL's net_socket.cc)
MOST_SOCKETS = 64

#: pairs of a lower and an upper bound
BOUNDS = (
    ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
    ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
    ("NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS"),
    ("NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS"),
)

#: what is looked at only while the log is at INFO or more
LOGGING = ("NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")

#: how the GID is picked when NCCL_IB_GID_INDEX does not fix it
GID_CHOICE = ("NCCL_IB_ADDR_RANGE", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ROCE_VERSION_NUM")


@dataclasses.dataclass(frozen=True)
class Breach:
    """names: the variables concerned; breaks: whether the values cannot both be meant (else one is merely idle).

    corrected: values to write in their place, None to write none.
    """

    names: tuple[str, ...]
    evidence: str
    expected: str
    breaks: bool
    corrected: t.Mapping[str, str | None]


def breaches(values: t.Mapping[str, str]) -> list[Breach]:
    """Everything that *values* demand of one another and do not get. Values are well-formed."""
    return [*_sockets(values), *_bounds(values), *_idle(values)]


def _sockets(values: t.Mapping[str, str]) -> t.Iterator[Breach]:
    threads, sockets = values.get("NCCL_SOCKET_NTHREADS"), values.get("NCCL_NSOCKS_PERTHREAD")
    names = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
    if threads is not None and sockets is not None:
        each = nccl_integer(threads) or 0
        product = each * (nccl_integer(sockets) or 0)
        if product > MOST_SOCKETS:
            yield Breach(
                names,
                f"{threads} threads with {sockets} sockets each make {product} connections to a peer",
                f"a product of at most {MOST_SOCKETS}; NCCL lowers the sockets to {MOST_SOCKETS // each}",
                True,
                {"NCCL_NSOCKS_PERTHREAD": str(MOST_SOCKETS // each)},
            )
    elif sockets is not None:
        yield Breach(
            names,
            f"NCCL_NSOCKS_PERTHREAD={sockets} without helper threads, which are none by default outside AWS and Google Cloud",
            "NCCL_SOCKET_NTHREADS beside it",
            False,
            {},
        )


def _bounds(values: t.Mapping[str, str]) -> t.Iterator[Breach]:
    for low, high in BOUNDS:
        if low in values and high in values:
            least, most = nccl_integer(values[low]), nccl_integer(values[high])
            if least is not None and most is not None and least > most:
                yield Breach(
                    (low, high),
                    f"{low}={values[low]} is above {high}={values[high]}",
                    "a lower bound that is not above the upper one",
                    True,
                    {low: None, high: None},
                )


def _idle(values: t.Mapping[str, str]) -> t.Iterator[Breach]:
    level = values.get("NCCL_DEBUG", "").upper()
    for name in LOGGING:
        needs = (
            ("INFO", "TRACE", "ABORT") if name == "NCCL_DEBUG_SUBSYS" else ("WARN", "ATTN", "INFO", "TRACE", "ABORT")
        )
        if name in values and level not in needs:
            yield Breach(
                (name,), f"{name} is set while NCCL_DEBUG is {level or 'not'}", f"NCCL_DEBUG={needs[0]}", False, {}
            )
    index = nccl_integer(values.get("NCCL_IB_GID_INDEX", "-1"))
    if index is not None and index >= 0:
        for name in GID_CHOICE:
            if name in values:
                yield Breach(
                    (name,), f"{name} has no say beside NCCL_IB_GID_INDEX={index}", "one of the two", False, {}
                )
