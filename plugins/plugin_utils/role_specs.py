# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Holds a user's variables against what the roles say they take: names, then types."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import pathlib
import re
import typing as t

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding

COLLECTION = pathlib.Path(__file__).resolve().parents[2]

#: knobs that several roles read in their defaults
SHARED_PREFIX = "gpufabric_"

#: variables that are a share of something, and so 1 at most
SHARES = frozenset(
    {
        "autotune_hopeless",
        "compare_noise",
        "diagnose_slow_ratio",
        "diagnose_slow_ratio_software",
        "isolate_false_accusation",
        "isolate_noise",
        "isolate_smallest_fault",
        "isolate_tolerance",
        "lora_workload_tolerated_error",
        "nccl_tests_tolerated_share",
    }
)

#: a role's variable whose default is a shared knob and nothing else: the knob takes what the variable does
_FROM_A_KNOB = re.compile(rf'^(\w+): "\{{\{{ ({SHARED_PREFIX}[a-z_]+) \| default\([^{{}}]*\) \}}\}}"$', re.MULTILINE)

#: likeness (difflib ratio) above which an unknown name is taken for a misspelt one
MISSPELT = 0.75

#: the same for a name that does not even begin as one of this collection does, and may be somebody else's
MISSPELT_ELSEWHERE = 0.93


@dataclasses.dataclass(frozen=True)
class Specs:
    """options: {role: {variable: its argument spec}}; shared: the collection-wide knobs; twins: {knob: a role's variable with just
    its values}."""

    options: t.Mapping[str, t.Mapping[str, t.Any]]
    shared: frozenset[str]
    twins: t.Mapping[str, str] = dataclasses.field(default_factory=dict)

    def role_of(self, name: str) -> str | None:
        """The role whose variable *name* claims to be: the longest role name that it begins with."""
        roles = [role for role in self.options if name.startswith(f"{role}_")]
        return max(roles, key=len) if roles else None

    def concerns(self, name: str) -> bool:
        return name.startswith(SHARED_PREFIX) or self.role_of(name) is not None

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Every variable that is read."""
        return (*self.shared, *(name for options in self.options.values() for name in options))


@functools.lru_cache(maxsize=1)
def load_specs(collection: pathlib.Path = COLLECTION) -> Specs:
    """Read roles/*/meta/argument_specs.yml, and the shared knobs from where defaults and playbooks read them."""
    options: dict[str, dict[str, t.Any]] = {}
    for path in sorted(collection.glob("roles/*/meta/argument_specs.yml")):
        entries = yaml.safe_load(path.read_text())["argument_specs"]
        options[path.parents[1].name] = {
            k: v for entry in entries.values() for k, v in entry.get("options", {}).items()
        }
    readers = [*collection.glob("roles/*/defaults/main.yml"), *collection.glob("playbooks/*.yml")]
    texts = [path.read_text() for path in readers]
    words = (word for text in texts for word in re.findall(rf"\b{SHARED_PREFIX}[a-z_]+", text))
    twins = {knob: variable for text in texts for variable, knob in _FROM_A_KNOB.findall(text)}
    return Specs(options, frozenset(words), twins)


@functools.lru_cache(maxsize=4096)
def _meant(name: str) -> str:
    """The variable of this collection that a name outside of it nearly is (nccl_test_... for nccl_tests_...), or ""."""
    nearest = difflib.get_close_matches(name, load_specs().names, n=1, cutoff=MISSPELT_ELSEWHERE)
    return nearest[0] if nearest else ""


def elsewhere_finding(name: str, node: str) -> Finding | None:
    """A warning for a name that is nobody's here and nearly one of ours, or None."""
    meant = _meant(name)
    if not meant:
        return None
    return Finding(
        id="unknown_variable",
        severity="warning",
        node=node,
        subject=name,
        evidence=f"the variable {name} is set, and this collection reads no such name",
        expected=f"{meant}, probably",
        cause="a misspelt name is ignored silently, and the default used in its place",
        fix=f"rename it to {meant}, if it was meant for this collection",
    )


def name_finding(name: str, node: str, specs: Specs) -> Finding | None:
    """What is wrong with a variable's name, or None: it claims to be this collection's and is not, or it nearly is."""
    if not specs.concerns(name):
        return elsewhere_finding(name, node)
    role = specs.role_of(name)
    if name in specs.shared or (role and name in specs.options[role]):
        return None
    known = list(specs.shared) if role is None else list(specs.options[role])
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=MISSPELT)
    reader = f"role {role}" if role else "this collection"
    return Finding(
        id="unknown_variable",
        severity="error" if nearest else "warning",
        node=node,
        subject=name,
        evidence=f"the variable {name} is set, and {reader} reads no such name",
        expected=f"{nearest[0]}, probably" if nearest else f"a variable that {reader} documents",
        cause="a misspelt name would be ignored silently, and the default used in its place" if nearest else "",
        fix=f"rename it to {nearest[0]}"
        if nearest
        else f"remove it, or look it up: ansible-doc -t role gpufabric.cluster.{role or 'inputs'}",
    )


def _validated(name: str, value: t.Any, spec: t.Mapping[str, t.Any]) -> tuple[t.Any, list[str]]:
    """The value as its argument spec takes it ("8" for an int is 8), and what is wrong with it."""
    bare = {k: v for k, v in spec.items() if k not in ("required", "default")}
    result = ArgumentSpecValidator({name: bare}).validate({name: value})
    return result.validated_parameters.get(name, value), result.error_messages


def coerced(role: str, values: t.Mapping[str, t.Any], specs: Specs) -> dict[str, t.Any]:
    """*values* of a role's variables as its specs take them: extra variables and surveys hand in texts.

    One that cannot be taken is left as it is: it has its finding from type_finding().
    """
    options = specs.options.get(role, {})
    return {
        name: _validated(name, value, options[name])[0] if name in options else value for name, value in values.items()
    }


def coerced_settings(role: str, settings: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The same of the collection's own specs, for settings without the role's name before theirs."""
    before = f"{role}_"
    values = coerced(role, {before + name: value for name, value in settings.items()}, load_specs())
    return {name.removeprefix(before): value for name, value in values.items()}


def type_finding(name: str, value: t.Any, node: str, specs: Specs) -> Finding | None:
    """What is wrong with a variable's value by its argument spec, or None."""
    described = specs.twins.get(name, name)
    role = specs.role_of(described)
    if role is None or described not in specs.options[role]:
        return None
    spec = specs.options[role][described]
    taken, errors = _validated(name, value, spec)
    expected = _expected(spec) if errors else _range(described, taken)
    if not expected:
        return None
    return Finding(
        id="wrong_type" if errors else "out_of_range",
        severity="error",
        node=node,
        subject=name,
        evidence=f"{name} = {value!r}: {errors[0]}" if errors else f"{name} is {value!r}",
        expected=expected,
        cause="the value cannot be what the role takes",
        fix=f"correct {name}; ansible-doc -t role gpufabric.cluster.{role} describes {'it' if described == name else described}",
    )


def _expected(spec: t.Mapping[str, t.Any]) -> str:
    kind = spec.get("type", "str")
    kind = f"list of {spec['elements']}" if kind == "list" and "elements" in spec else kind
    return f"{kind}, one of {', '.join(map(str, spec['choices']))}" if "choices" in spec else str(kind)


def _range(name: str, value: t.Any) -> str:
    """What was expected of a number, or of each of a list, that lies outside of what it can mean; "" where it does not."""
    least, most = 0.0, 1.0 if name in SHARES else math.inf
    numbers = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, (int, float))]
    if all(least <= number <= most and math.isfinite(number) for number in numbers):
        return ""
    return "a share from 0 to 1" if name in SHARES else "a number that is not negative"


def undefined_finding(name: str, error: str, node: str) -> Finding:
    """A value that cannot be evaluated at all."""
    return Finding(
        id="value_undefined",
        severity="error",
        node=node,
        subject=name,
        evidence=f"{name} cannot be evaluated: {error}",
        expected="a value that depends only on variables which are defined",
        fix=f"correct the expression in {name}",
    )


def merge_common(findings: t.Iterable[Finding], nodes: t.Collection[str]) -> list[Finding]:
    """One finding without a node in place of the same one on each node: an extra variable is wrong only once."""
    by_content: dict[Finding, list[str]] = {}
    for finding in findings:
        by_content.setdefault(dataclasses.replace(finding, node=""), []).append(finding.node)
    merged = []
    for content, named in by_content.items():
        if len(nodes) > 1 and set(named) == set(nodes):
            merged.append(content)
        else:
            merged += [dataclasses.replace(content, node=node) for node in named]
    return merged
