# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `rdma link` prints (iproute2, rdma/link.c): today's form, the one of 4.14 to 5.0, `-d`, and JSON of both."""

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._captured_text import unpacked
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.text import (
    SHELL,
    Leftovers,
    number,
    streams,
)

_LINK = re.compile(r"(?:link\s{1,8}|[0-9]{1,6}/[0-9]{1,6}:\s{1,8})([^\s/]{1,128})/([0-9]{1,6}|-):?(?:\s|$)")
_ANCHOR = re.compile(
    r"(?:\blink |\b[0-9]{1,6}/[0-9]{1,6}: )[^\s/]{1,128}/[0-9]|" + SHELL + r"rdma: |error: |Wrong device name"
)
_OBJECT = re.compile(r"\{[^{}]*\}")  # the objects of `rdma -j link` hold no others
_NAMES = frozenset({"subnet_prefix", "lid", "sm_lid", "lmc", "state", "physical_state", "netdev", "netdev_index"})
_NUMBERS = frozenset({"lid", "sm_lid", "lmc", "netdev_index"})


def _capabilities(text: str) -> list[str]:
    return [name.strip() for name in text.strip("<> \t\\").split(",") if name.strip()]


def _says_link(rest: str) -> bool:
    """Whether a line is about the link itself: `rdma resource` and `rdma statistic` begin theirs in the same way."""
    first = rest.split(maxsplit=1)[:1]
    return not first or first[0] in _NAMES or first[0].startswith(("caps:", "\\"))


def _of_words(dev: str, port: str, rest: str) -> tuple[dict[str, t.Any], list[str]]:
    """(one link, the words that mean nothing here)."""
    link: dict[str, t.Any] = {"dev": dev, "port": number(port)}
    before, caps, after = rest.partition("caps:")
    words = before.replace("\\", " ").split()
    strange: list[str] = []
    at = 0
    while at < len(words):
        name = words[at]
        if name not in _NAMES:
            strange.append(name)
            at += 1
            continue
        value = words[at + 1] if at + 1 < len(words) and words[at + 1] not in _NAMES else ""
        link.setdefault(name, number(value) if name in _NUMBERS else value)
        at += 2 if value else 1
    if caps:
        link["caps"] = _capabilities(after)
    return link, strange


def _of_object(text: str) -> dict[str, t.Any] | None:
    """One link of `rdma -j link`; None for a piece of text that is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    name, port = found.get("ifname"), found.get("port")
    if not isinstance(name, str) or not isinstance(port, int):
        return None
    link: dict[str, t.Any] = {"dev": name.partition("/")[0], "port": port}  # up to 5.0 the port is in the name too
    link.update((key, found[key]) for key in _NAMES if isinstance(found.get(key), (int, str)))
    if isinstance(found.get("caps"), list):
        link["caps"] = [cap for cap in found["caps"] if isinstance(cap, str)]
    return link


def _read(lines: t.Sequence[str], left: Leftovers) -> list[dict[str, t.Any]]:
    links: list[dict[str, t.Any]] = []
    last: dict[str, t.Any] | None = None
    for line in map(str.strip, lines):
        match = _LINK.match(line)
        if match and _says_link(line[match.end() :]):
            last, strange = _of_words(match.group(1), match.group(2), line[match.end() :])
            links.append(last)
            left.add(" ".join(strange))
        elif last is not None and line.startswith("caps:"):
            last["caps"] = _capabilities(line[5:])
        else:
            left.add(line)
    return links


def _read_json(text: str, left: Leftovers) -> list[dict[str, t.Any]]:
    links: list[dict[str, t.Any]] = []
    at = 0
    for match in _OBJECT.finditer(text):
        link = _of_object(match.group())
        if link is not None:
            links.append(link)
            left.add(text[at : match.start()].strip("[], \t\n"))
            at = match.end()
    left.add(text[at:].strip("[], \t\n"))
    return links


def parse_rdma_link(text: str) -> dict[str, t.Any]:
    """Read the answer of `rdma link`.

    Returns links (dev, port, host where the text names one, and what is printed of subnet_prefix, lid, sm_lid, lmc, state,
    physical_state, netdev, netdev_index, caps), ib (devices whose link has a LID), ethernet ({device: netdev} of links with
    a netdev and no LID), active and down (devices with a link in that state), errors, unparsed. Never raises.
    """
    left = Leftovers()
    links: list[dict[str, t.Any]] = []
    for host, lines in streams(text if '"ifname"' in text else unpacked(text), _ANCHOR):
        whole = "\n".join(lines)
        found = _read_json(whole, left) if '"ifname"' in whole else _read(lines, left)
        links += [{**link, "host": host} for link in found] if host else found
    ethernet: dict[str, str] = {}
    for link in links:
        if link.get("netdev") and "lid" not in link:
            ethernet.setdefault(link["dev"], link["netdev"])
    return {
        "links": links,
        "ib": list(dict.fromkeys(link["dev"] for link in links if "lid" in link)),
        "ethernet": ethernet,
        "active": list(dict.fromkeys(link["dev"] for link in links if link.get("state") == "ACTIVE")),
        "down": list(dict.fromkeys(link["dev"] for link in links if link.get("state") == "DOWN")),
        "errors": left.errors,
        "unparsed": left.unparsed,
    }
