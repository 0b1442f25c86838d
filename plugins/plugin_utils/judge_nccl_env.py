# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges the NCCL environment: what was wrong with what was asked for, and whether what was resolved reaches the ranks."""

from __future__ import annotations

import collections
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_ranks import OF_THE_TEST, compare_seen
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.merged_findings import merged
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_conflicts import CONF, WAYS, Conflicts, said


def judge_nccl_env(nodes: t.Mapping[str, t.Mapping[str, t.Any]], settings: t.Mapping[str, t.Any]) -> list[Finding]:
    """Findings over the registered results of nccl_env_info, a node each. settings: the public variables of the role."""
    judged = {name: _Node(name, result["observed"]) for name, result in nodes.items()}
    of_the_fleet = [finding for node in judged.values() for finding in node.resolution()]
    return list(dict.fromkeys(of_the_fleet)) + merged(
        {name: node.findings() for name, node in judged.items()}, of_all=False
    )


class _Node:
    def __init__(self, name: str, observed: t.Mapping[str, t.Any]) -> None:
        self.name = name
        self.observed = observed
        self.resolved = observed.get("resolved") or {}
        self.written = observed.get("written") or {}
        self.entries = {entry["name"]: entry for entry in self.resolved.get("variables", [])}
        self.values = {name: entry["value"] for name, entry in self.entries.items()}

    def resolution(self) -> list[Finding]:
        """What resolve_fleet() found wrong with this node, or with all."""
        return [Finding.from_dict(entry) for entry in self.resolved.get("findings", [])]

    def findings(self) -> list[Finding]:
        """What is wrong with its files, and with what its ranks see."""
        found = [*self._files()]
        if self._is_in_place():
            found += self._proof()
            found += self._asked()
        found += Conflicts(self.name, self.observed, self.values).findings()
        found += self._libraries()
        found += self._problems()
        return found

    def _finding(self, kind: str, severity: str, subject: str, evidence: str, **more: str) -> Finding:
        return Finding(kind, severity, self.name, subject, evidence, **more)

    # ---- files

    @property
    def _outcomes(self) -> dict[str, str]:
        return {o["path"]: o["status"] for o in self.written.get("outcomes", [])}

    def _is_in_place(self) -> bool:
        """Whether the files should be there by now: resolved, allowed, and no check or skipped task."""
        pending = self.observed.get("check_mode") and any(s in ("written", "removed") for s in self._outcomes.values())
        return bool(self.resolved.get("writable")) and not pending and not self._untouched

    @property
    def _untouched(self) -> bool:
        return bool(self.written.get("skipped") or self.written.get("failed"))

    def _files(self) -> t.Iterator[Finding]:
        if self.resolved and not self.resolved.get("writable"):
            yield self._finding(
                "nccl_env_not_written",
                "error",
                "nccl_env",
                "nothing was written on this node, since what was asked for holds errors",
                expected="values without an error, or nccl_env_validation: warn, which leaves out what is wrong",
                fix="correct what the other findings name, then run again",
            )
        if self.written.get("failed"):
            yield self._finding(
                "nccl_files_not_written",
                "error",
                "nccl_env",
                " ".join(str(self.written.get("msg", "the task gave no reason")).split()),
                expected="files written",
                fix=f"ansible-playbook gpufabric.cluster.nccl_env --limit {self.name} -vvv",
            )
        for path, status in self._outcomes.items():
            if status == "foreign":
                yield self._foreign(path)
        site = self.observed.get("site", {})
        if site.get("secret") and site.get("adopted"):
            yield self._finding(
                "nccl_secret_left_out",
                "error",
                CONF,
                f"the {CONF} that was taken over holds NCCL_PSK, which is no longer in it",
                expected="NCCL_PSK in the environment of the jobs that need it",
                cause="a key is not carried over the controller and into files that all may read",
                fix="nccl_env_adopt: false after a rollback, or hand NCCL_PSK to the jobs",
            )

    def _foreign(self, path: str) -> Finding:
        bound = [name for name, entry in self.entries.items() if entry["scope"] == "node" and entry["origin"] != "site"]
        lost = f"; it keeps {', '.join(bound)} from the ranks" if path == CONF and bound else ""
        return self._finding(
            "nccl_file_foreign",
            "warning",
            path,
            f"{path} is not this collection's and was left alone{lost}",
            expected="this role's file, with the variables of the other one kept in it",
            cause="a vendor's image or script wrote it",
            fix="nccl_env_adopt: true, which takes it over, keeps its variables, and gives it back at rollback",
        )

    # ---- proof

    def _reaches(self, name: str, way: str) -> bool:
        """Whether this variable can be there at all for a rank started so."""
        if self.entries[name]["origin"] == "site" or self._outcomes.get(CONF) != "foreign":
            return True
        return way == "login" and self.entries[name]["scope"] == "uniform"

    def _proof(self) -> t.Iterator[Finding]:
        """One finding for each variable that is wrong or missing, however many ways it is so in."""
        wrong: dict[tuple[str, str, str], list[str]] = collections.defaultdict(list)
        missing: dict[str, list[str]] = collections.defaultdict(list)
        for way, effective in self._seen():
            for name, value in self.values.items():
                actual = effective.get(name)
                if way == "library" and name in OF_THE_TEST:
                    continue
                if actual is None:
                    if self._reaches(name, way):
                        missing[name].append(way)
                elif actual["value"] != value:
                    wrong[name, actual["value"], actual["source"]].append(way)
            for name, actual in effective.items():
                if name not in self.values and actual["source"] != CONF and name != "NCCL_CONF_FILE":
                    wrong[name, actual["value"], actual["source"]].append(way)
        for (name, value, source), ways in wrong.items():
            yield self._wrong_value(name, value, source, ways)
        for name, ways in missing.items():
            yield self._finding(
                "nccl_env_not_seen",
                "error",
                name,
                f"{said(ways)} does not see {name}",
                expected=f"{name}={self.values[name]}",
                cause="the file that carries it was removed or replaced after it was written",
                fix=f"ls -l {CONF} /etc/profile.d/nccl.sh; ansible-playbook gpufabric.cluster.nccl_env --limit {self.name}",
            )

    def _seen(self) -> t.Iterator[tuple[str, t.Mapping[str, t.Mapping[str, str]]]]:
        """What each way of starting a rank ends up with, and what the library itself had after reading its files."""
        for way, seen in self.observed.get("ways", {}).items():
            if not seen["problem"]:
                yield way, seen["effective"]
        asked = self.observed.get("asked")
        if asked and asked["seen"]:
            yield "library", {n: {"value": v, "source": self._source_of(n, v)} for n, v in asked["seen"].items()}

    def _source_of(self, name: str, value: str) -> str:
        """Where a value that the library has came from, by what the ways show."""
        for seen in self.observed.get("ways", {}).values():
            actual = seen["effective"].get(name)
            if actual and actual["value"] == value:
                return str(actual["source"])
        return "environment"

    def _wrong_value(self, name: str, value: str, source: str, ways: t.Sequence[str]) -> Finding:
        wanted = self.values.get(name)
        culprit = self._culprit(name, value, source)
        return self._finding(
            "nccl_env_overridden" if wanted is not None else "nccl_env_extra",
            "error" if wanted is not None else "warning",
            name,
            f"{said(ways)} has {name}={value}, from {culprit}",
            expected=f"{name}={wanted}" if wanted is not None else f"no {name}: it is not among what was resolved",
            cause=f"{'the environment' if source == 'environment' else source} comes before {CONF}",
            fix=f"remove {name} from {culprit}, or set it in nccl_env_variables if it is meant",
        )

    def _culprit(self, name: str, value: str, source: str) -> str:
        """The file that set it, as far as one was found."""
        if source != "environment":
            return source
        lines = [s for s in self.observed.get("settings", []) if s["name"] == name]
        lines.sort(key=lambda s: s["value"] != value)
        return f"{lines[0]['path']} line {lines[0]['line']}" if lines else "the environment"

    def _asked(self) -> list[Finding]:
        asked = self.observed.get("asked")
        if not asked:
            return []
        library = (self.observed.get("library") or {}).get("path", "libnccl.so.2")
        found = compare_seen(self.name, asked["logged"], self.values, f"a start of {library}")
        for text in asked["warnings"]:
            found.append(
                self._finding(
                    "nccl_library_warns",
                    "error",
                    library,
                    f"started with the ranks' settings, the library says: {text}",
                    expected="a start without a warning",
                    fix="correct the setting that the warning names",
                )
            )
        return found

    # ---- the library

    def _libraries(self) -> t.Iterator[Finding]:
        versions: dict[str, list[str]] = collections.defaultdict(list)
        for library in self.observed.get("libraries", []):
            if library["version"]:
                versions[library["version"]].append(f"{library['path']} ({library['source']})")
        if len(versions) > 1:
            said = "; ".join(f"{version}: {', '.join(paths)}" for version, paths in sorted(versions.items()))
            yield self._finding(
                "nccl_libraries_differ",
                "warning",
                "libnccl.so.2",
                f"this node has several NCCL versions: {said}",
                expected="one version, or nccl_env_libraries with the one that ranks load",
                cause="PyTorch brings its own library in a wheel, and nccl-tests takes the system's",
                fix="nccl_env_libraries: [DIRECTORY of the library that ranks load]",
            )

    def _problems(self) -> t.Iterator[Finding]:
        for problem in self.observed.get("problems", []):
            yield self._finding(problem["id"], "notice", problem["subject"], problem["evidence"])
        for way, seen in self.observed.get("ways", {}).items():
            if seen["problem"]:
                yield self._finding(
                    "nccl_env_way_untried",
                    "notice",
                    WAYS[way],
                    f"{WAYS[way]} could not be asked what it sees: {seen['problem']}",
                    fix=f"take {way} out of nccl_env_proof if ranks are not started so",
                )
