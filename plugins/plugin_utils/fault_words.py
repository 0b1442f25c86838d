# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How people speak of faults: the words that patterns of the catalogue share, what cured a fault, and what a report talks about.

A log has one line for a failure; a report about it says the same in a hundred ways. Patterns name such a group of words, and
expanded() puts it in.
"""

from __future__ import annotations

import itertools
import re
import typing as t

#: groups of words that a pattern of the catalogue names; the page of the catalogue shows their names
WORDS: t.Mapping[str, str] = {
    "<complains>": r"[^\n]{0,200}?(?:[Ee]rror|ERROR(?!_)|(?<!=)WARN|[Ff]ail|FAIL|[Tt]imed? ?out|refused|denied|[Cc]annot|[Uu]nable)",
    "<hangs>": (
        r"(?i:\bhang(?:s|ing)?\b|\bhung\b|\bstuck\b|\bfr(?:eez|oz)\w*|\bdead-?locks?|\bdead-?locked\b|\bstall\w*|\bstands? still\b"
        r"|\bblock(?:s|ed)\b|\bnever (?:returns?|ends?|finish\w*|starts?|completes?)\b|\bno (?:further |more )?(?:output|progress|response)\b"
        r"|\bnothing (?:happens|more|is printed|comes)\b|\bfor ?ever\b|\bstops? (?:at|after|here|there|responding)\b|\binfinite loop\b)"
    ),
    "<slow>": (
        r"(?i:\bslow\w*|\blow(?:er)? (?:\w+ )?(?:bandwidth|busbw|throughput|performance|speed)\b|\bhalf (?:of )?(?:the|its|what|as)\b"
        r"|\bdegrad\w*|\btimes (?:too )?slow\w*|\bbottleneck|\bfar (?:below|from)\b|\bonly (?:about |around |~ ?)?\d[\d.]* ?(?:%|[GM]i?[Bb])"
        r"|\b(?:bandwidth|busbw|throughput|performance|speed)\b[^\n]{0,60}\b(?:low|poor|bad|small|drops?|dropped|half|worse|only|limited|stays)\b"
        r"|\bscal\w+[^\n]{0,30}\b(?:bad|poor)\w*|\b\d+ ?% of (?:the )?(?:link|line|expect\w*|peak|theor\w*)"
        r"|\b\d[\d.]* ?[GM]i?[Bb](?:/s|ps|it/s)\b[^\n]{0,40}\b(?:expected|should be|instead of)\b)"
    ),
    "<helps>": (
        r"(?i:(?<!not )(?<!n't )(?<!never )(?<!no longer )(?<!not be )\b(?:works|worked|working|workaround|helps|helped|fixe[sd]|solve[sd]|resolve[sd]"
        r"|runs|ran|fine|passes|passed|gone|disappear\w*|avoids|cure[sd]|succeed\w*|way out|successful\w*|go(?:es)? away|went away"
        r"|(?:did|does) the trick|br(?:ings?|ought) (?:it|them) back|recover(?:s|ed)"
        r"|ma(?:kes?|de) (?:it|them|this|everything) (?:work|run|start|go|pass)|it (?:starts|started|connects|connected|passes)"
        r"|gets? (?:it |me |us )?(?:through|around)|got (?:it |me |us )?(?:through|working))\b)"
    ),
}

_SYMPTOM = re.compile(
    rf"{WORDS['<hangs>']}|{WORDS['<slow>']}"
    r"|(?i:\bfail(?:s|ed|ure|ures|ing)?\b|\berrors?\b|\bcrash\w*|\bdies\b|\bdied\b|\baborts?\b|\baborted\b|\bkilled\b|\btime[ds]?[ -]?outs?\b"
    r"|\bexceptions?\b|\bcannot\b|\bcan'?t\b|\bunable\b|\bnot (?:work\w*|found|possible|start\w*|use\w*|recogni[sz]ed|detected)\b|\bdoes ?n[o']t\b"
    r"|\bnot\b|\bno\b|\bnobody\b|\bnothing\b|\bnever\b|\bonly\b|\balthough\b|\binstead\b|\bdiffer\w*|\brefuses?\b|\bgone\b|\banymore\b|\bany more\b"
    r"|\bwrong\b|\bwhy\b|\bproblems?\b|\bissues?\b|\brefused\b|\bdenied\b|\bmissing\b|\bdown\b"
    r"|\bNaNs?\b|\bgarbage\b|\bcorrupt\w*\b|\bunexpected\w*\b|\bworse\b|\bhalf\b|\bwithout\b|\bcured\b|\bbrings? it back\b|\brequired?s?\b)"
)
# A blank between two words of a message; not one that is repeated or left out, and none of a class of characters.
_BLANK = re.compile(r"(?<=[a-z,]) (?=[a-zA-Z])")
_OF_NCCL = re.compile(r"\bNCCL (?:INFO|TRACE|CALL)\b")
_OF_A_TABLE = re.compile(r"^[^\n#]{0,40}#[^\n]*$", re.MULTILINE)
_MOST_SPEECH = 40_000
_MOST_WORDS = 3
_HELPS = re.compile(WORDS["<helps>"])
_BEFORE, _AFTER = 160, 140  # characters between a setting and the word that says that it helped
_MOST_PASSAGES = 200


def expanded(pattern: str) -> str:
    """A pattern of the catalogue with its groups of words put in."""
    for name, words in WORDS.items():
        pattern = pattern.replace(name, words)
    return pattern


def wrapped(pattern: str) -> str:
    """A pattern that also matches where a message is broken into lines of a terminal's width, as MPI and Libfabric do."""
    return _BLANK.sub(r"\\s", pattern)


def spoken(text: str) -> str:
    """What people wrote around a log: its lines without NCCL's own information, the first and the last of them."""
    speech = "\n".join(line for line in text.split("\n") if not _OF_NCCL.search(line))
    return speech if len(speech) <= _MOST_SPEECH else f"{speech[: _MOST_SPEECH // 2]}\n{speech[-_MOST_SPEECH // 2 :]}"


def helped(speech: str) -> str:
    """The passages of *speech* around each word that says that something helped: a setting in one of them is a cure."""
    passages: list[str] = []
    end = 0
    for match in itertools.islice(_HELPS.finditer(speech), _MOST_PASSAGES):
        start = max(end, match.start() - _BEFORE)
        end = max(end, match.end() + _AFTER)
        passages.append(speech[start:end])
    return "\n".join(passages)


def names_a_symptom(speech: str) -> bool:
    """Whether somebody complains; the head of a table of nccl-tests, which has a column for errors, does not."""
    return _SYMPTOM.search(_OF_A_TABLE.sub("", speech)) is not None


def words_of(topics: t.Iterable[re.Pattern[str]], speech: str) -> list[str]:
    """The different words in *speech* that belong to a fault's topics, in their order, at most three."""
    words: dict[str, None] = {}
    for topic in topics:
        for match in topic.finditer(speech):
            words.setdefault(match.group().strip().lower(), None)
            if len(words) == _MOST_WORDS:
                return list(words)
    return list(words)
