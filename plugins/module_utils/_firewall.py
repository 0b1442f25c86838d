# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What of a node's packet filter takes packets away from it: nft(8), iptables-save(8), firewalld. PRIVATE to the collection."""

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools

#: rules and chains kept of one node
MOST = 50

_IPTABLES_POLICY = re.compile(r"^:(INPUT|OUTPUT) (DROP|REJECT)\b")
_IPTABLES_RULE = re.compile(r"^-A (\S+) (.*-j (?:DROP|REJECT)\b.*)$")
#: hooks by which a node's own traffic goes
_HOOKS = ("input", "output", "prerouting", "ingress", "egress")


def read_firewall(tools: Tools) -> dict[str, t.Any]:
    """{sources, policies, rules, firewalld, problem}.

    policies: base chains that drop what no rule accepts, {where, policy, accepts: how many rules accept something};
    rules: those that drop or reject, {where, rule (its text), protocol, ports: [[first, last]], interfaces} with protocol
    "" and no ports where the rule names none; firewalld: its state, "" without it; problem: why nothing could be read.
    """
    found = _from_nft(tools)
    if found is None:
        found = _from_iptables(tools)
    state = tools.run(["firewall-cmd", "--state"], timeout=10)
    found["firewalld"] = "" if state.missing else state.stdout.strip() or "not running"
    found["policies"], found["rules"] = found["policies"][:MOST], found["rules"][:MOST]
    return found


def _from_nft(tools: Tools) -> dict[str, t.Any] | None:
    """None where nft is missing; iptables' own rules appear here too, where iptables is nftables' front end."""
    done = tools.run(["nft", "-j", "-n", "list", "ruleset"], timeout=20)
    if done.missing:
        return None
    try:
        entries = json.loads(done.stdout or "{}").get("nftables", [])
    except (ValueError, AttributeError):
        entries = []
    if done.problem:
        return {"sources": ["nft"], "policies": [], "rules": [], "problem": done.problem}
    return {"sources": ["nft"], **read_nft(entries), "problem": ""}


def read_nft(entries: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, t.Any]:
    """{policies, rules} from the list below ``nftables`` of libnftables-json(5)."""
    chains = {}
    for chain in (entry["chain"] for entry in entries if "chain" in entry):
        chains[chain["family"], chain["table"], chain["name"]] = chain
    rules = []
    accepts: dict[tuple[str, str, str], int] = {}
    for rule in (entry["rule"] for entry in entries if "rule" in entry):
        key = (rule["family"], rule["table"], rule["chain"])
        chain = chains.get(key, {})
        expressions = rule.get("expr", [])
        if any("accept" in expression for expression in expressions):
            accepts[key] = accepts.get(key, 0) + 1
        # A chain without a hook is jumped to; who jumps there is not followed.
        if any("drop" in e or "reject" in e for e in expressions) and chain.get("hook", "input") in _HOOKS:
            rules.append({"where": f"nft {' '.join(key)}", **_matches(expressions)})
    policies = [
        {"where": f"nft {' '.join(key)}", "policy": "drop", "accepts": accepts.get(key, 0)}
        for key, chain in chains.items()
        if chain.get("hook") in _HOOKS and chain.get("policy") == "drop"
    ]
    return {"policies": policies, "rules": rules}


def _matches(expressions: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, t.Any]:
    protocol = ""
    ports: list[list[int]] = []
    interfaces: list[t.Any] = []
    others: list[str] = []
    for match in (expression["match"] for expression in expressions if "match" in expression):
        left, right = match.get("left", {}), match.get("right")
        payload, meta = left.get("payload", {}), left.get("meta", {})
        positive = match.get("op", "==") in ("==", "in")
        if payload.get("field") == "dport" and positive:
            protocol, ports = str(payload.get("protocol", "")), _port_ranges(right)
        elif (meta.get("key") in ("l4proto",) or payload.get("field") == "protocol") and positive:
            protocol = protocol or (str(right) if isinstance(right, str) else "")
        elif meta.get("key") in ("iifname", "iif", "oifname", "oif") and positive:
            interfaces += right["set"] if isinstance(right, dict) and "set" in right else [right]
        else:
            others.append(_criterion(left, payload, meta))
    verdict = next((name for name in ("drop", "reject") if any(name in e for e in expressions)), "drop")
    words = [f"{protocol} ports {_shown(ports)}" if ports else protocol, *(f"on {name}" for name in interfaces)]
    words += [f"by {name}" for name in others if name]
    return {
        "rule": " ".join(filter(None, [*words, verdict])),
        "protocol": protocol,
        "ports": ports,
        "interfaces": [str(name) for name in interfaces],
        "narrow": any(name in ("saddr", "daddr", "state", "ct", "icmp", "type") for name in others),
    }


def _criterion(left: t.Mapping[str, t.Any], payload: t.Mapping[str, t.Any], meta: t.Mapping[str, t.Any]) -> str:
    """What a match looks at; a masked field, such as TCP's flags, is the field."""
    masked = left.get("&")
    if isinstance(masked, list) and masked and isinstance(masked[0], dict):
        payload = masked[0].get("payload", {})
    return str(payload.get("field") or meta.get("key") or next(iter(left), ""))


def _port_ranges(right: t.Any) -> list[list[int]]:
    items = right["set"] if isinstance(right, dict) and "set" in right else [right]
    ranges = []
    for item in items:
        if isinstance(item, dict) and "range" in item:
            item = item["range"]
        bounds = item if isinstance(item, list) else [item, item]
        if all(isinstance(bound, int) for bound in bounds):
            ranges.append([bounds[0], bounds[-1]])
    return ranges


def _shown(ports: t.Sequence[t.Sequence[int]]) -> str:
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ports)


def _from_iptables(tools: Tools) -> dict[str, t.Any]:
    done = tools.run(["iptables-save"], timeout=20)
    if done.missing or done.problem:
        return {"sources": [], "policies": [], "rules": [], "problem": "" if done.missing else done.problem}
    return {"sources": ["iptables"], **read_iptables(done.stdout), "problem": ""}


def read_iptables(text: str) -> dict[str, t.Any]:
    """{policies, rules} from what iptables-save prints."""
    policies, rules = [], []
    for line in text.splitlines():
        policy = _IPTABLES_POLICY.match(line)
        if policy:
            accepts = len(re.findall(rf"^-A {policy.group(1)} .*-j ACCEPT", text, re.MULTILINE))
            policies.append(
                {"where": f"iptables {policy.group(1)}", "policy": policy.group(2).lower(), "accepts": accepts}
            )
        rule = _IPTABLES_RULE.match(line)
        if rule and rule.group(1) != "FORWARD":
            words = rule.group(2)
            protocol = re.search(r"-p (\w+)", words)
            ports = re.search(r"--dports? (\S+)", words)
            named = [part.split(":") for part in ports.group(1).split(",")] if ports else []
            rules.append(
                {
                    "where": f"iptables {rule.group(1)}",
                    "rule": words,
                    "protocol": protocol.group(1) if protocol else "",
                    "ports": [[int(p[0] or 0), int(p[-1] or 65535)] for p in named if "".join(p).isdigit()],
                    "interfaces": re.findall(r"-[io] (\S+)", words),
                    "narrow": bool(re.search(r"-[sd] |--ctstate|--state|icmp-type", words)),
                }
            )
    return {"policies": policies, "rules": rules}
