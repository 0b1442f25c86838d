# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Take away what terminals, launchers and log collectors add to a program's lines. PRIVATE to the collection."""

from __future__ import annotations

import json
import re

# What collectors of logs (Docker, journald, cloud services) call the line that they wrap into JSON; some write a time before it.
_COLLECTED = re.compile(
    r'[^{"\n]{0,80}\{.{0,4096}?"(?:log|line|msg|message|MESSAGE|text|textPayload|body|event|_raw)"\s{0,9}:\s{0,9}'
    r'"((?:[^"\\]|\\.){0,8192})"'
)
# Colours survive copying without their ESC byte, so that is optional for the "m" form.
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,32}[ -/]{0,4}[@-~]|\x1b\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|\[[0-9;]{1,12}m")
# mpirun --tag-output (Open MPI 4 "[1,0]<stdout>:", PRRTE "[prterun-host-1@1,0]<stdout>: "), with or without a time stamp.
# A tag stands in mid-line too: a launcher writes one before every piece that it reads, and nccl-tests flushes half rows.
_TAG = re.compile(
    r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?:[A-Z]{2,5} )?\d{4})?"
    r"(?:\[[^\[\]\s]{0,200}?\d+,\d+\])?(?:\[[^\[\]\s]{1,200}:\d+\])?<std(?:out|err|diag)>:"
)
_FRAME = re.compile(
    r"^[|\u2502\u2503] ?(?=[^|\u2502\u2503]*[|\u2502\u2503]\s{0,8}$)|\s{0,256}[|\u2502\u2503]\s{0,8}$"
)  # a box, a pane
_ELEMENT = re.compile(r"^\s{0,64}(['\"])(.*)\1,$")  # of a list of lines
_BREAK = re.compile(r"<br ?/?>\s{0,8}$", re.IGNORECASE)
_ESCAPED_MARK = re.compile(r"\\(?=[_*#<>=~|+.!\[\]()-])")  # Markdown's
_MARKDOWN = re.compile(r"\\[_*#\[\]]")
_NBSP_READ_AS_LATIN_1 = re.compile("\u00c2[\u00a0 ]")  # a web page's two bytes of one blank
_NEWLINE = re.compile(r"\r\n|\n|\r")
_ESCAPED_NEWLINE = re.compile(r"\\r\\n|\\n")
_CLOSING = frozenset("|\u2502\u2503>")
# What stands before a line's own text: srun -l "12: ", pdsh "node01: ", clush, "[0] ", torchrun "[trainer0|0]:", kubectl, docker.
LABEL = re.compile(
    r"^\s{0,8}(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{0,16}\s+)?(?:\[[^\]\s]{1,80}\]:?\s?|[\w.\-/]{1,120}\s?[:|]\s?){0,2}"
)


def lines_of(text: str) -> list[str]:
    """The lines of a captured output: without colours and launcher tags, whatever ended them, UTF-16 read as UTF-8 mended.

    A text in which newlines were escaped (Ansible's or a JSON document's "stdout") is unfolded.
    """
    text = text.replace("\x00", "").replace("\ufeff", "")
    if "\x1b" in text or "m" in text:
        text = _ANSI.sub("", text)
    if "\u00c2" in text:
        text = _NBSP_READ_AS_LATIN_1.sub(" ", text)
    if "<std" in text:
        text = _TAG.sub("", text)
    if text.count("\\n") > 4 * text.count("\n") + 2:
        text = _ESCAPED_NEWLINE.sub("\n", text)
    lines = _NEWLINE.split(text)
    lines = list(map(collected, lines)) if '{"' in text else lines
    return (
        list(map(without_marks, lines)) if "\\" in text or "|" in text or "<br" in text or "\u2502" in text else lines
    )


def without_marks(line: str) -> str:
    """One line without a frame around it, without HTML's line end, and without Markdown's escapes."""
    if line.rstrip()[-1:] in _CLOSING:
        line = _BREAK.sub("", line) if line.rstrip()[-1:] == ">" else _FRAME.sub("", line)
    if line.endswith(("',", '",')):
        line = _ELEMENT.sub(r"\2", line)
    return without_escapes(line)


def without_escapes(text: str) -> str:
    """A text without Markdown's escapes, where it has one before a mark that programs print and nobody else escapes."""
    return _ESCAPED_MARK.sub("", text) if "\\" in text and _MARKDOWN.search(text) else text


def collected(line: str) -> str:
    """The line that a log collector wrapped into JSON; any other line as it is."""
    match = _COLLECTED.match(line) if '{"' in line[:82] else None
    if match is None:
        return line
    try:
        return str(json.loads(f'"{match.group(1)}"')).rstrip("\r\n")
    except ValueError:
        return match.group(1)


def without_tags(line: str) -> str:
    """One line without colours and without the tags that mpirun writes into it."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    return _TAG.sub("", line) if "<std" in line else line
