#!/usr/bin/env python3
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes what documentation repeats from data: each role's variables into its README, kernel profiles into their page.

    tools/generate_docs.py            rewrite what is out of date
    tools/generate_docs.py --check    say what is out of date, and end with 1

A file takes part by holding the lines ``<!-- begin generated: NAME -->`` and ``<!-- end generated -->``, where NAME is
``variables`` in roles/<role>/README.md, or ``profiles`` or ``scale`` anywhere below docs/. What stands between them is replaced.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
import typing as t

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCALE = ROOT / "tests/benchmarks/results/scale.json"
PROFILES = ROOT / "plugins/plugin_utils/data/sysctl_profiles.json"

BEGIN = "<!-- begin generated: "
_BLOCK = re.compile(r"(<!-- begin generated: (\w+) -->\n).*?(<!-- end generated -->)", re.DOTALL)
_MARKUP = re.compile(r"\b([A-Z])\(((?:[^()\\]|\\.|\([^()]*\))*)\)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = {path: text for path in targets() for text in [generated(path)] if text != path.read_text()}
    for path, text in stale.items():
        if check:
            print(f"{path.relative_to(ROOT)} is out of date: run tools/generate_docs.py")
        else:
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


def targets() -> list[pathlib.Path]:
    """Every file that holds generated parts."""
    candidates = [*sorted(ROOT.glob("roles/*/README.md")), *sorted(ROOT.glob("docs/**/*.md"))]
    return [path for path in candidates if BEGIN in path.read_text()]


def generated(path: pathlib.Path) -> str:
    """The text of *path* with its generated parts made anew."""

    def fill(match: re.Match[str]) -> str:
        return f"{match.group(1)}\n{_MAKERS[match.group(2)](path)}\n{match.group(3)}"

    text, parts = _BLOCK.subn(fill, path.read_text())
    if parts != text.count(BEGIN):
        raise SystemExit(
            f"{path.relative_to(ROOT)}: a generated part has no line '<!-- end generated -->', so it is never made"
        )
    return text


def variables(readme: pathlib.Path) -> str:
    """A table of a role's variables over all of its entry points, from meta/argument_specs.yml."""
    specs = yaml.safe_load((readme.parent / "meta/argument_specs.yml").read_text())["argument_specs"]
    options: dict[str, tuple[dict[str, t.Any], list[str]]] = {}
    for entry, spec in specs.items():
        for name, option in (spec.get("options") or {}).items():
            options.setdefault(name, (option, []))[1].append(entry)
    rows = []
    for name, (option, entries) in options.items():
        description = option["description"]
        sentences = " ".join(description if isinstance(description, list) else [description])
        if len(entries) < len([spec for spec in specs.values() if spec.get("options")]):
            sentences += f" (Entry points: {', '.join(f'`{entry}`' for entry in entries)}.)"
        kind = option.get("type", "str") + (f" of {option['elements']}" if "elements" in option else "")
        default = f"`{json.dumps(option['default'], ensure_ascii=False)}`" if "default" in option else "required"
        rows.append([f"`{name}`", kind, default, plain(sentences)])
    entries = [[f"`{entry}`", plain(spec["short_description"])] for entry, spec in specs.items()]
    return (
        table(["Entry point", "What it does"], entries) + "\n" + table(["Variable", "Type", "Default", "Meaning"], rows)
    )


def profiles(page: pathlib.Path) -> str:
    """Every kernel profile as a table, and what speaks against a value below it."""
    data = json.loads(PROFILES.read_text())
    parts = []
    for name, profile in data["profiles"].items():
        rows = [
            [f"`{s['key']}`", f"`{s['value']}`", s["kernel_default"], s["reason"], s["source"]]
            for s in profile["settings"]
        ]
        cautions = [f"- `{s['key']}`: {s['caution']}" for s in profile["settings"] if s.get("caution")]
        parts.append(
            "\n".join(
                [
                    f"### `{name}`: {profile['title']}\n",
                    f"{profile['summary']}\n",
                    table(["Key", "Value", "The kernel's own", "Why", "Source"], rows),
                    *(["Worth knowing:\n", *cautions, ""] if cautions else []),
                ]
            )
        )
    sources = [f"- {name}: {text}" for name, text in data["sources"].items()]
    return "\n".join([*parts, "### Sources\n", *sources, ""])


def scale(page: pathlib.Path) -> str:
    """What verify.yml cost the controller, by number of nodes, as recorded."""
    if not SCALE.exists():
        return "It was not recorded yet.\n"
    record = json.loads(SCALE.read_text())
    figures, settings = record["figures"], record["settings"]
    rows = [
        [
            nodes,
            f"{figures['controller_cpu_s'][nodes]:.1f}",
            f"{figures['controller_cpu_ms_a_node'][nodes]:.0f}",
            f"{figures['controller_memory_mib'][nodes]:.0f}",
            f"{figures['calls_a_node'][nodes]:g}",
            f"{figures['wall_s'][nodes]:.0f}",
        ]
        for nodes in figures["controller_cpu_s"]
    ]
    head = ["Nodes", "Controller, CPU s", "a node, ms", "Controller, MiB", "Calls a node", "Wall clock, s"]
    slope = figures["slope"]
    kinds = {"dead": "dead", "garbage": "printing garbage", "hanging": "hanging", "slow_tool": "with tools that hang"}
    ill = ", ".join(f"{kinds[how]}: {'named' if named else 'NOT named'}" for how, named in figures["ill_named"].items())
    most, late = rows[-1][0], figures["held_up_s"]
    lines = [
        table(head, rows),
        f"Exponents (slopes on logarithmic axes, 1 is proportional to the nodes): CPU {slope['controller_cpu']:.2f}, in the upper half"
        f" {slope['controller_cpu_upper_half']:.2f}; memory {slope['controller_memory']:.2f}; run.json {slope['record_bytes']:.2f}.",
        "",
        f"With ill nodes among {most} ({ill}) the run took {abs(late):.0f} s {'longer' if late > 0 else 'less'} than without, where the time limits"
        f" allow {figures['allowed_s']:.0f} s more."
        f" Other nodes with an error: {figures['others_with_errors']}.",
        "",
        f"Recorded {record['date'][:10]} on {record['host']}, {settings['processors']} processors"
        f"{' shared with other work' if settings['machine_shared'] else ''}, ansible-core {record['versions']['ansible-core']},"
        f" {settings['forks']} forks; modules {settings['modules']}.",
        "",
    ]
    return "\n".join(lines)


def plain(text: str) -> str:
    """Ansible's markup as Markdown: O(x), V(x), C(x) as code, the rest as its text."""
    return _MARKUP.sub(lambda m: f"`{m.group(2)}`" if m.group(1) in "OVCPM" else m.group(2), text)


def table(head: t.Sequence[str], rows: t.Iterable[t.Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


_MAKERS: dict[str, t.Callable[[pathlib.Path], str]] = {
    "variables": variables,
    "profiles": profiles,
    "scale": scale,
}


if __name__ == "__main__":
    sys.exit(main())
