# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The fault catalogue: from what a log says to what probably causes it, and what to type.

One message often has several causes. Each is an entry of its own with its own weight; what else was observed (the link layer, the NCCL
version, a variable, another line) moves the weights, and all are listed, the likeliest first.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import json
import pathlib
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.fault_likeness import Likeness, likened
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.fault_words import (
    expanded,
    helped,
    names_a_symptom,
    spoken,
    words_of,
    wrapped,
)

DATA = pathlib.Path(__file__).parent / "data" / "faults.json"

# A signature in the line that failed first counts more than one somewhere else; one that only matches pages later, not less.
_IN_FIRST_FAILURE = 12
_IN_WARNING = 4
# Of the weight, where only a hint was found: the component complains, in words that nobody has explained yet.
_OF_A_HINT = 0.5
_ONLY_A_HINT = "the component complains, in words that name no cause"
# What made it go away says more of a cause than most lines.
_CURED = 50
_WORTH_SAYING = 15
# Where fewer causes than this are shown, those are named too that the text speaks of, that look like the ones shown, and that the
# text is likened to.
_ENOUGH = 4
# What the cause whose known reports are most like the text gets on top, and others by their share of its likeness.
_OF_LIKENESS = 50
_MOST_LIKENED = 5
_WORTH_A_REASON = 0.5  # of the best's likeness
# Up to this weight an entry says what happens rather than why, and stands among the guesses at why.
_ONLY_A_SYMPTOM = 20
_GUESS = 10
_OF_A_LOOK_ALIKE = 12
_OF_A_WORD = 5
_OF_A_RARE_WORD = 2  # more, where few other faults' topics have it
_MOST_FINDINGS = 20
_MOST_TEXT = 2_000_000  # characters of a context's text that are read: its beginning and its end
_SHORT_TEXT = 20_000  # up to here every line is looked at
_ALIKE_LINES = 3  # of a longer text's lines that differ only in their numbers, this many are looked at
_MOST_THINNED = 200_000
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
_EVIDENCE_LENGTH = 300
_QUOTED = 80
_SEVERITIES = ("notice", "warning", "error")
_AT_MOST = {"hint": "warning", "guess": "notice"}  # where it is shown by no more than that


@dataclasses.dataclass(frozen=True)
class Fault:
    """One cause. ``signatures``: any of them shows it; ``cures``: so does any of these settings, where the text says that it helped;
    ``hints``: any of them makes it worth a look; ``topics``: words by which people speak of it; ``requires``: all of them must occur
    too; ``base``: its weight, about the chance in a hundred that it is the cause when nothing but the signature is known; ``evidence``:
    what moves the weight, and why.
    """

    id: str
    area: str
    title: str
    severity: str
    signatures: tuple[re.Pattern[str], ...]
    cures: tuple[re.Pattern[str], ...]
    hints: tuple[re.Pattern[str], ...]
    topics: tuple[re.Pattern[str], ...]
    requires: tuple[re.Pattern[str], ...]
    base: int
    evidence: tuple[t.Mapping[str, t.Any], ...]
    cause: str
    tell_apart: tuple[t.Mapping[str, str], ...]
    fix: str
    prevent: str
    sources: tuple[str, ...]
    confidence: str


@functools.lru_cache(maxsize=1)
def catalogue() -> tuple[Fault, ...]:
    """Every fault known, in the order of the data file."""
    entries = json.loads(DATA.read_text(encoding="utf-8"))["faults"]
    return tuple(
        Fault(
            **{
                **entry,
                "signatures": tuple(_compiled(wrapped(expanded(each))) for each in entry["signatures"]),
                "cures": tuple(_compiled(each) for each in entry.get("cures", ())),
                "hints": tuple(_compiled(expanded(each)) for each in entry.get("hints", ())),
                "topics": tuple(re.compile(each, re.IGNORECASE) for each in entry.get("topics", ())),
                "requires": tuple(_compiled(each) for each in entry["requires"]),
                "evidence": tuple(
                    {key: expanded(value) if key in ("seen", "unseen") else value for key, value in each.items()}
                    for each in entry["evidence"]
                ),
                "tell_apart": tuple(entry["tell_apart"]),
                "sources": tuple(entry["sources"]),
            }
        )
        for entry in entries
    )


def explain_log(parsed: t.Mapping[str, t.Any], context: t.Mapping[str, t.Any] | None = None) -> list[dict[str, t.Any]]:
    """What may have caused what a log shows, the likeliest first, at most 20.

    parsed: the answer of parse_nccl_log() or parse_nccl_log_stream(). context: what else is known, all optional: ``text``, the log
    itself or any other output to look for signatures in (its first and last million characters); any further key is a fact by its name
    and beats the parsed one (``{"transport": "IB"}``). Each finding: {id, title, area, severity, score, shown_by, evidence (the line),
    host, because (what moved it), cause, tell_apart: [{from, by}], fix, prevent, sources, confidence}. shown_by: ``signature``,
    ``cure``, ``hint`` (a warning at most), or ``guess``: nothing in the text shows it, but the text speaks of it, it looks like what
    is shown, or reports of it were told in such words (a notice at most; only where fewer than four causes are shown). Causes that a
    signature or a cure shows come first; hints, guesses and what only names a symptom follow. Within both, the likeness of known
    reports to the text raises a cause's score. It raises on no log.
    """
    context = context or {}
    text = _text(parsed, str(context.get("text") or ""))
    facts = {**parsed, **{key: value for key, value in context.items() if key != "text"}}
    first = _mapping(parsed.get("first_failure"))
    first_line = str(first.get("text") or "")
    speech = spoken(text)
    cures = helped(speech)
    shown = []
    for fault in catalogue():
        weighed = _weigh(fault, text, cures, first_line, facts)
        if weighed is not None and weighed.score >= _WORTH_SAYING:
            shown.append(_finding(fault, weighed, first, parsed))
    shown.sort(key=lambda finding: -finding["score"])
    room = max(0, _ENOUGH - sum(finding["shown_by"] != "hint" for finding in shown))
    guessed = _guesses(shown, speech, first, parsed) if room else []
    if shown or guessed or names_a_symptom(speech):
        likeness = likened(speech)
        if room:
            guessed += _likeliest(likeness, [*shown, *guessed], first, parsed)
        for finding in [*shown, *guessed]:
            _raise_by(likeness.get(finding["id"]), finding)
    guessed.sort(key=lambda finding: -finding["score"])
    return sorted([*shown, *guessed[:room]], key=_place)[:_MOST_FINDINGS]


def add_findings(parsed: dict[str, t.Any], text: str) -> dict[str, t.Any]:
    """The answer of parse_nccl_log() with its ``findings``; what the parse filter gives."""
    return {**parsed, "findings": explain_log(parsed, {"text": text})}


class _Weighed(t.NamedTuple):
    score: int
    shown_by: str
    evidence: str  # the line that shows it
    because: list[str]  # what moved the score


def _weigh(fault: Fault, text: str, cures: str, first_line: str, facts: t.Mapping[str, t.Any]) -> _Weighed | None:
    """None where nothing in the text shows the fault. cures: the passages that say that something helped."""
    match = None
    score = fault.base
    shown_by = "signature"
    because = []
    if first_line:
        match = _first_match(fault.signatures, first_line)
        score += _IN_FIRST_FAILURE if match else 0
    if match is None:
        match = _first_match(fault.signatures, text)
    cured = _first_match(fault.cures, cures) if cures else None
    if cured is not None:
        score += _CURED
        because.append(f"it helped: {' '.join(cured.group().split())[:_QUOTED]}")
        if match is None:
            match, shown_by = cured, "cure"
    if match is None:
        match, shown_by = _first_match(fault.hints, text), "hint"
        score = int(fault.base * _OF_A_HINT)
        because.append(_ONLY_A_HINT)
    if match is None or not all(required.search(text) for required in fault.requires):
        return None
    evidence = _line_of(match)
    if "WARN" in evidence:
        score += _IN_WARNING
    for each in fault.evidence:
        if _holds(each, text, facts):
            score += each["weight"]
            if each["because"]:
                because.append(str(each["because"]))
    return _Weighed(score, shown_by, evidence, because)


def _guesses(
    shown: t.Sequence[t.Mapping[str, t.Any]], speech: str, first: t.Mapping[str, t.Any], parsed: t.Mapping[str, t.Any]
) -> list[dict[str, t.Any]]:
    """What few or no shown causes leave open: faults that are mistaken for the shown ones, and those that the text speaks of."""
    alike: dict[str, tuple[str, str]] = {}
    for finding in shown[:2]:
        if finding["severity"] == "error" and finding["shown_by"] == "signature":
            for other in finding["tell_apart"]:
                alike.setdefault(other["from"], (f"looks like: {finding['title']}", finding["evidence"]))
    if not alike and not first and not names_a_symptom(speech):
        return []
    seen = {finding["id"] for finding in shown}
    hidden = [fault for fault in catalogue() if fault.id not in seen]
    spoken_of = [words_of(fault.topics, speech) for fault in hidden]
    shared_by = collections.Counter(itertools.chain.from_iterable(spoken_of))
    guesses = []
    for fault, words in zip(hidden, spoken_of, strict=True):
        score = _GUESS + (_OF_A_LOOK_ALIKE if fault.id in alike else 0)
        score += sum(_OF_A_WORD + _OF_A_RARE_WORD // shared_by[word] for word in words)
        if score < _WORTH_SAYING:
            continue
        because, evidence = alike.get(fault.id, ("", ""))
        said = f"the text speaks of {', '.join(words)}" if words else ""
        weighed = _Weighed(score, "guess", evidence, [each for each in (because, said) if each])
        guesses.append(_finding(fault, weighed, first, parsed))
    return guesses


def _likeliest(
    likeness: t.Mapping[str, Likeness],
    named: t.Sequence[t.Mapping[str, t.Any]],
    first: t.Mapping[str, t.Any],
    parsed: t.Mapping[str, t.Any],
) -> list[dict[str, t.Any]]:
    """The causes to which the text is likened most, of those that are not named yet; their likeness is all of their score."""
    by_id = {fault.id: fault for fault in catalogue()}
    seen = {finding["id"] for finding in named}
    new = [name for name in likeness if name not in seen]
    return [_finding(by_id[name], _Weighed(0, "guess", "", []), first, parsed) for name in new[:_MOST_LIKENED]]


def _raise_by(likeness: Likeness | None, finding: dict[str, t.Any]) -> None:
    if likeness is None:
        return
    finding["score"] += round(_OF_LIKENESS * likeness.share)
    if likeness.share >= _WORTH_A_REASON or not (finding["because"] or finding["evidence"]):
        finding["because"].append(f"reports of it speak of {', '.join(likeness.words)}")


def _place(finding: t.Mapping[str, t.Any]) -> tuple[bool, int]:
    """A cause that the text shows stands before what it only hints at or is likened to."""
    shows_a_cause = finding["shown_by"] in ("signature", "cure") and finding["id"] not in _symptoms()
    return not shows_a_cause, -finding["score"]


@functools.lru_cache(maxsize=1)
def _symptoms() -> frozenset[str]:
    return frozenset(fault.id for fault in catalogue() if fault.base <= _ONLY_A_SYMPTOM)


def _holds(condition: t.Mapping[str, t.Any], text: str, facts: t.Mapping[str, t.Any]) -> bool:
    if "seen" in condition:
        return _compiled(condition["seen"]).search(text) is not None
    if "unseen" in condition:
        return _compiled(condition["unseen"]).search(text) is None
    if "fact" in condition:
        value = _fact(facts, condition["fact"])
        return value is not None and _compiled(condition["matches"]).search(str(value)) is not None
    version = version_of(facts.get("nccl_version"))
    if version is None:
        return False
    if "nccl_below" in condition:
        return version < (version_of(condition["nccl_below"]) or ())
    return version >= (version_of(condition["nccl_at_least"]) or ())


def version_of(text: object) -> tuple[int, ...] | None:
    """(2, 21, 5) of "2.21.5+cuda12.4"; None where there is no number."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", str(text or ""))
    return tuple(int(part) for part in match.groups() if part) if match else None


def _fact(facts: t.Mapping[str, t.Any], path: str) -> t.Any:
    """A fact by its dotted path; of the line that failed first where the log has no such key of its own."""
    value: t.Any = facts
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value if value is not None else _mapping(facts.get("first_failure")).get(path)


def _finding(
    fault: Fault, weighed: _Weighed, first: t.Mapping[str, t.Any], parsed: t.Mapping[str, t.Any]
) -> dict[str, t.Any]:
    evidence = weighed.evidence
    host = first.get("host") if evidence and evidence in str(first.get("text") or "") else _host_of(evidence, parsed)
    return {
        "id": fault.id,
        "title": fault.title,
        "area": fault.area,
        "severity": min(fault.severity, _AT_MOST.get(weighed.shown_by, "error"), key=_SEVERITIES.index),
        "score": weighed.score,
        "shown_by": weighed.shown_by,
        "evidence": evidence,
        "host": host,
        "because": weighed.because,
        "cause": fault.cause,
        "tell_apart": [dict(each) for each in fault.tell_apart],
        "fix": fault.fix,
        "prevent": fault.prevent,
        "sources": list(fault.sources),
        "confidence": fault.confidence,
    }


def _host_of(evidence: str, parsed: t.Mapping[str, t.Any]) -> str | None:
    for note in parsed.get("notable") or []:
        if evidence and str(note.get("text") or "") in evidence and note.get("hosts"):
            return str(note["hosts"][0])
    return None


def _text(parsed: t.Mapping[str, t.Any], given: str) -> str:
    """What signatures are looked for in: the text given, else the lines that the reader kept; and what only the whole log shows."""
    kept = [_thinned(given.replace("\x00", ""))]
    if not given:
        kept = [f"{name} set by environment to {value}" for name, value in _mapping(parsed.get("environment")).items()]
        if parsed.get("transport"):
            kept.append(f"Using network {parsed['transport']}")
        kept += [f"NCCL {note.get('level') or ''} {note.get('text') or ''}" for note in parsed.get("notable") or []]
    versions = _mapping(parsed.get("versions")).get("nccl") or []
    if len({version_of(version) for version in versions}) > 1:
        kept.append(f"two NCCL versions: {', '.join(versions)}")
    return "\n".join(kept)


def _thinned(text: str) -> str:
    """A long text without most of the lines that only repeat others: signatures are many, and a log says the same thing often."""
    if len(text) <= _SHORT_TEXT:
        return text
    seen: dict[str, int] = {}
    lines = []
    for line in _ends_of(text, _MOST_TEXT).split("\n"):
        key = _NUMBERS.sub("", line[:_EVIDENCE_LENGTH])
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= _ALIKE_LINES:
            lines.append(line[:4000])
    return _ends_of("\n".join(lines), _MOST_THINNED)


def _ends_of(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most // 2] + "\n" + text[-(most // 2) :]


def _mapping(value: t.Any) -> t.Mapping[str, t.Any]:
    return value if isinstance(value, dict) else {}


def _first_match(patterns: t.Iterable[re.Pattern[str]], text: str) -> re.Match[str] | None:
    return next((match for match in (pattern.search(text) for pattern in patterns) if match), None)


def _line_of(match: re.Match[str]) -> str:
    """The line on which the match begins."""
    text = match.string
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.start())
    line = text[start : len(text) if end < 0 else end].strip()
    if len(line) > _EVIDENCE_LENGTH:
        middle = max(0, match.start() - start - _EVIDENCE_LENGTH // 3)
        line = line[middle : middle + _EVIDENCE_LENGTH]
    return line


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)
