# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Values with a grammar of their own: lists of HCAs, interfaces and words, addresses, networks, algorithms."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import nccl_algorithms
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import Variable, Version
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_flaw import Flaw
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.requirements import lazy

if t.TYPE_CHECKING:
    import netaddr
else:
    netaddr = lazy("netaddr")

#: most HCAs that NCCL keeps (MAX_IB_DEVS in net_ib)
MOST_HCAS = 32


def check_form(variable: Variable, text: str, version: Version) -> Flaw | None:
    """The first thing wrong with *text* by the grammar of *variable*, or None."""
    grammar = variable.entry["grammar"]
    if grammar in ("algo", "proto"):
        problem = nccl_algorithms.form_problem(grammar, text, version)
        return Flaw("form", problem, nccl_algorithms.FORMS[grammar]) if problem else None
    checker = _FORMS.get(grammar)
    return checker(variable, text, version) if checker else None


def _check_words(variable: Variable, text: str, version: Version) -> Flaw | None:
    known = variable.choices(version)
    words = text.removeprefix("^").split(",")
    expected = f"a list without blanks of {', '.join(known)}"
    if any(word != word.strip() for word in words):
        bare = ",".join(word.strip() for word in words)
        return Flaw("form", f"{text} holds blanks, and NCCL before 2.30.7 loses such a word", expected, bare)
    strange = [word for word in words if word.upper() not in known]
    if strange:
        lost = "resets the whole list" if version >= (2, 30, 7) else "is skipped"
        return Flaw("choice", f"{strange[0] or 'an empty word'} is unknown to this NCCL, and {lost}", expected)
    return None


def _check_cta_policy(variable: Variable, text: str, version: Version) -> Flaw | None:
    if text in ("0", "1", "2"):
        return None
    expected = "DEFAULT, EFFICIENCY or ZERO, joined by |" if version >= (2, 29, 2) else "0, 1 or 2"
    if version >= (2, 29, 2) and all(word.upper() in ("DEFAULT", "EFFICIENCY", "ZERO") for word in text.split("|")):
        return None
    return Flaw("choice", f"{text} is no policy of this NCCL", expected)


def _check_hcas(variable: Variable, text: str, version: Version) -> Flaw | None:
    expected = "HCAs as in =mlx5_0:1,mlx5_1:1, without blanks"
    body = text[1:] if text.startswith("^") else text
    body = body[1:] if body.startswith("=") else body
    if text.startswith("=^"):
        return Flaw("form", f"{text}: NCCL looks for ^ before =", expected, f"^={text[2:]}")
    if re.search(r"\s", text):
        return Flaw(
            "form", f"{text} holds blanks, which NCCL takes for a part of the names", expected, re.sub(r"\s", "", text)
        )
    parts = r"(:\d+(:\d+(:\d+)?)?)?" if version >= (2, 30, 7) else r"(:\d+)?"
    entries = body.split(",")
    strange = [entry for entry in entries if not re.fullmatch(rf"[A-Za-z][\w.-]*{parts}", entry)]
    if strange:
        return Flaw("form", f"{strange[0] or 'an empty entry'!r} in {text} names no HCA", expected)
    if len(entries) > MOST_HCAS:
        return Flaw("range", f"{len(entries)} HCAs are listed", f"at most {MOST_HCAS}")
    return None


def _check_interfaces(variable: Variable, text: str, version: Version) -> Flaw | None:
    expected = "interfaces as in =eth0 or eth,ib, without blanks"
    body = text[1:] if text.startswith("^") else text
    body = body[1:] if body.startswith("=") else body
    if text.startswith("=^"):
        return Flaw("form", f"{text}: NCCL looks for ^ before =", expected, f"^={text[2:]}")
    if re.search(r"\s", text):
        return Flaw("form", f"{text} holds blanks", expected, re.sub(r"\s", "", text))
    if len(text) < 2 or any(not 0 < len(name) <= 15 or "/" in name for name in body.split(",")):
        return Flaw("form", f"{text} is no list of interfaces", expected)
    return None


def _check_network(variable: Variable, text: str, version: Version) -> Flaw | None:
    try:
        if "/" not in text:
            raise ValueError
        netaddr.IPNetwork(text)
    except (netaddr.AddrFormatError, ValueError):
        return Flaw("form", f"{text} is no network", "a network as in 10.1.0.0/16")
    return None


def _check_address(variable: Variable, text: str, version: Version) -> Flaw | None:
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):(\d{1,5})", text)
    if match is None or int(match.group(2)) > 65535:
        return Flaw("form", f"{text} is no address with a port", "host:port, 10.0.0.1:port or [fd00::1]:port")
    return None


def _check_cpus(variable: Variable, text: str, version: Version) -> Flaw | None:
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        return Flaw("form", f"{text} is no list of CPUs", "CPUs as in 0-3,8")
    return None


def _check_thresholds(variable: Variable, text: str, version: Version) -> Flaw | None:
    if not re.fullmatch(r"-?\d+( -?\d+){5}", text):
        return Flaw("form", f"{text} is not six numbers", "six whole numbers with blanks between them")
    return None


_FORMS: dict[str, t.Callable[[Variable, str, Version], Flaw | None]] = {
    "words": _check_words,
    "cta_policy": _check_cta_policy,
    "hca": _check_hcas,
    "ifname": _check_interfaces,
    "network": _check_network,
    "address": _check_address,
    "cpulist": _check_cpus,
    "six_integers": _check_thresholds,
}
