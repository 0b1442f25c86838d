# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Take what a program printed out of the document that it was saved in. PRIVATE to the collection.

A capture reaches us as a mail, a table of CSV, lines of a logger or one string of a document. Each function here knows one such
wrapping and gives any other text back as it is; none raises, and each is linear in the length of the text.
"""

from __future__ import annotations

import csv
import html
import io
import json
import quopri
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._launcher_text import collected

_MOST = 0.6  # the share of lines that must be wrapped alike
_LEAST_QUOTED = 0.4  # of a table of CSV
_LOOKED_AT = 20
_LEAST_TERMINAL = 80  # columns; mails are narrower
_LONGEST_PREFIX = 120  # what a logger writes before a record
_DEEPEST = 16  # of a document's lists and mappings

# A field of CSV in quotes, with quotes within it doubled.
_FIELD = re.compile(r'(?:^|[,;]|(?<=[^\t\n])\t)"(?:[^"]|"")*"(?=[,;\t\r]|$)', re.MULTILINE)
_DELIMITERS = ",;\t"
_BACKTICKS = re.compile(r"(`{1,2})(.*)\1$")
_PAIR = re.compile(r'([\w.@/-]{1,64})=(?:"((?:[^"\\\n]|\\.)*)"|([^\s"]*))(?:[ \t]+|$)')
_MAPPED = re.compile(r'"([\w.@-]{1,64})"[ ]{0,4}=>[ ]{0,4}"((?:[^"\\\n]|\\.)*)"')
_GLUED_FENCE = re.compile(r"^```(?=[^\s`]{1,64}[ \t])|(?<=[^\s`])```$", re.MULTILINE)
_STAMP = re.compile(r"\[?[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]{5,20}\S{0,8}$|[A-Z][a-z]{2},? [0-9 A-Za-z:,]{8,32}$")
_FOLDED = re.compile(r"\\\n[ \t]*(?:\\(?= ))?")
_FOLDS = re.compile(
    r"[:-][ \t]{1,8}\"(?:[^\"\\\n]|\\.)*\\\n"
)  # a string in quotes whose first line ends with a backslash
_QUOTED = re.compile(r"(?<=[:-] )'((?:[^']|'')*)'(?=\s|$)")
_BLANK_LINE = re.compile(r"\n[ \t]*\n")
_BREAKS = re.compile(r"[ \t]*\n(?:[ \t]*\n)*[ \t]*")
_SOFT_BREAK = re.compile(r"=3D|^.{70,75}=$|[^=]=(?:09|20)$", re.MULTILINE)
_ANSIBLE_LOG = re.compile(
    r"^[0-9-]{10} [0-9:]{8},[0-9]{3} p=[0-9]{1,10} u=\S{1,64} n=\S{1,64}(?: [A-Z]{1,16})? ?\| ?", re.MULTILINE
)
_JOURNAL_FIELD = re.compile(r"^[ \t]{0,8}MESSAGE=(.*)$", re.MULTILINE)
_TERMINAL = re.compile(
    r"(?:\x1b|\^\[|\\u001[bB]|\\x1[bB]|\\033)\[[0-?]{0,64}[ -/]{0,8}[@-~]"  # colours and cursor movement, spelled too: ^[ of cat -v
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # window titles
    r"|\x1b[ -/][0-~]"  # character sets: what `tput sgr0` ends with
    r"|\x1b[0-Z\\^-~]"
    r"|\[[0-9]{1,3}(?:;[0-9]{1,3}){0,8}m"  # a colour whose escape character got lost in a form
    r"|[^\n]\x08"  # overstrike
)
_MOVED = re.compile(r"\x1b\[[0-9;]{0,8}[Hf]")  # to a place on the screen
_CONTROL = re.compile("[\x01-\x06\x0e-\x1a\x1c-\x1f\x7f]")
_OCTAL = re.compile(r"#(0[0-3][0-7])")
_HTML = re.compile(
    r"</?(?:br|pre|code|span|font|div|p|b|strong|em|li|td|tr|samp|kbd|blockquote)\b[^<>\n]{0,256}>", re.IGNORECASE
)
_ENDS = re.compile(r"<br ?/?>|</(?:div|p|li|tr)>(?=<)", re.IGNORECASE)  # of a line, where the page has no line end
_CELLS = re.compile(r"</t[dh]>\s{0,64}<t[dh]\b[^<>\n]{0,256}>", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#x?[0-9a-fA-F]{1,6}|amp|apos|gt|lt|nbsp|quot);")
_XML = re.compile(r"\s*<(?:\?xml|[A-Za-z][\w.-]{0,64}(?:\s[^<>\n]{0,256})?>\s*<?)")
_TAG = re.compile(r"</?(?!(?:b|i|u|em|strong|span|font|a|code|br|pre|p|div|t[dhr])\b)[A-Za-z?][^<>\n]{0,256}>")
_LITERAL = re.compile(r"(?<![\w\\])(?:[rbuf]{1,2})?(?:\"((?:[^\"\\\n]|\\.)*)\"|'((?:[^'\\\n]|\\.)*)')")
_RAW_STRING = re.compile(
    r"(?<=[=(,:] )'((?:[^'\\]|\\.)*\\'(?:[^'\\]|\\.)*)'", re.DOTALL
)  # of several lines, as Perl has it
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([0-3][0-7]{2})|(.))")
_SHORT = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "a": "", "e": "\x1b", "0": ""}
_SPELLED = {
    "\\r\\n": "\n",
    "\\n": "\n",
    "\\r": "\n",
    "\\t": "\t",
    "\\u001b": "\x1b",
    "\\x1b": "\x1b",
    "\\033": "\x1b",
    '\\"': '"',
    '"': "\n",
    "\\\\": "\\",
}  # a bare quote ends or begins the string
_SPELLED_RE = re.compile("|".join(map(re.escape, _SPELLED)))
_SPELLED_LINE = re.compile(r"^.*\\n.*\\n.*$", re.MULTILINE)  # a string among other lines, of a program or a document
_SPELLED_TAB = re.compile(r"^[ \t]{0,64}\\t|\\t[\"#]", re.MULTILINE)  # a string of several lines within a program
# A line of a list of lines, as Ansible prints `stdout_lines`: in JSON, or in YAML where a line needs quotes.
_LISTED_LINE = re.compile(
    r"^[ \t]{0,64}(?:-[ \t]{1,4})?(?:\"((?:[^\"\\\n]|\\.){0,4096})\"|(?<=- )'((?:[^'\n]|''){0,4096})'),?[ \t]{0,8}\]?[ \t]{0,8}$"
    r"|^[ \t]{0,64}'((?:[^'\\\n]|\\.){0,4096})'(?:,|,?[ \t]{0,8}\])[ \t]{0,8}$",
    re.MULTILINE,
)
_LIST_BEGINS = re.compile(  # with its first element on the line of its name, as a program of Python has it
    r"^([^\"'\n]{0,128}[=:(][ \t]{0,4}\[)[ \t]{0,4}(?=([\"']).{0,4096}\2,[ \t]{0,8}\n[ \t]{0,64}[\"'])", re.MULTILINE
)
_LIST_OF_LINES = re.compile(r"(?:lines|stdout|msg|output)['\"]?[ \t]{0,4}:[ \t]{0,4}\[?[ \t]{0,4}$", re.MULTILINE)
_JSON_KEY = re.compile(r"^[ \t]{0,64}\"[^\"\n]{1,128}\"[ \t]{0,4}:", re.MULTILINE)
_ONE_LINE_A_HOST = re.compile(
    r"^(\S{1,253} \| [A-Z]{2,16} \| rc=-?[0-9]{1,4}) \| \(stdout\) ?", re.MULTILINE
)  # `ansible -o`
_STDERR_BEHIND = re.compile(r" \(stderr\) ")
_LINES_BESIDE = re.compile(r"_lines['\"]?[ \t]{0,4}:[ \t]{0,4}\[[ \t]{0,4}$", re.MULTILINE)


def unpacked(text: str) -> str:
    """The text within a mail's encoding, XML, a table, records of a logger, a JSON document, or strings of a program."""
    for unpack in _UNPACKERS:
        text = unpack(text)
    return text


def terminal_width(lines: t.Sequence[str]) -> int:
    """The width of the terminal that broke long lines, wherever that was in a word; 0 where a mail program did it, or nobody.

    Mail programs break at blanks, before the eightieth character.
    """
    width = max(map(len, lines), default=0)
    return width if width >= _LEAST_TERMINAL else 0


def unbroken(text: str, begins: re.Pattern[str]) -> str:
    """A log whose long lines a terminal broke: what does not begin like a line, behind one that fills the terminal, belongs to that."""
    lines = text.split("\n")
    width = terminal_width(lines)
    goes_on = [
        len(before) == width and bool(line.strip()) and not begins.search(line)
        for before, line in zip(lines, lines[1:])
    ]
    full = sum(len(line) == width for line in lines)
    if not width or full < 2 or sum(goes_on) * 2 < full:
        return text
    return lines[0] + "".join(line if on else "\n" + line for on, line in zip(goes_on, lines[1:]))


def unescaped(string: str) -> str:
    """What a string of a program or document stands for, its escapes resolved."""

    def character(found: re.Match[str]) -> str:
        wide, narrow, octal, letter = found.groups()
        if letter is not None:
            return _SHORT.get(letter, letter)
        return chr(int(wide or narrow or octal, 8 if octal else 16))

    return _ESCAPE.sub(character, string) if "\\" in string else string


def without_terminal(text: str) -> str:
    """Without what only a terminal understands: colours, titles, overstrikes, and the carriage returns of its line ends."""
    return _TERMINAL.sub("", text.replace("\r\n", "\n"))


def _from_control_characters(text: str) -> str:
    """Without control characters, lines where a terminal's cursor moved to; with those that `cat -A` or a syslog daemon spelled out."""
    text = without_terminal(_CONTROL.sub("", _MOVED.sub("\n", text)))
    if text.count("#012") > 1 or "\n" not in text.strip():
        text = _OCTAL.sub(lambda code: chr(int(code.group(1), 8)), text)
    if "^I" in text or "^M" in text or "$\n" in text:
        lines = text.count("\n")
        if text.count("$\n") > _MOST * lines:
            text = text.replace("$\n", "\n")
        if text.count("^M\n") > _MOST * lines:
            text = text.replace("^M\n", "\n")
        text = text.replace("^I", "\t") if text.count("^I") > 1 else text
    return text


def _from_log(text: str) -> str:
    """The messages of Ansible's own log, and of the journal where it shows every field of an entry."""
    if " p=" in text:
        text = _ANSIBLE_LOG.sub("", text)
    messages = _JOURNAL_FIELD.findall(text) if "MESSAGE=" in text else []
    return "\n".join(messages) if len(messages) > 1 else text


def _from_mail(text: str) -> str:
    """Quoted-printable, in which `=` is `=3D` and a long line ends with `=`."""
    if "=" not in text or not _SOFT_BREAK.search(text):
        return text
    return quopri.decodestring(text.encode("utf-8", "replace")).decode("utf-8", "replace")


def _from_xml(text: str) -> str:
    """The character data of a document; HTML's own tags are left to those who know what they mean."""
    if "<" not in text:
        return text
    if "<![CDATA[" in text:
        return "\n".join(part.partition("]]>")[0] for part in text.split("<![CDATA[")[1:])
    return _TAG.sub("\n", text) if _XML.match(text) and text.rstrip().endswith(">") else text


def _from_html(text: str) -> str:
    """A page's text; what the entities stand for is of the text only after the tags are gone."""
    if "<" in text:
        text = _HTML.sub("", _ENDS.sub("\n", _CELLS.sub("\t", text)))
    return html.unescape(text).replace("\xa0", " ") if "&" in text and _ENTITY.search(text) else text


def _from_folded_yaml(text: str) -> str:
    """A string in quotes that YAML broke: with a backslash at the break, or with a blank line for each line end."""
    if "\\\n" in text and _FOLDS.search(text):
        text = _FOLDED.sub("", text)
    return _QUOTED.sub(_unfolded, text) if ": '" in text or "- '" in text else text


def _unfolded(found: re.Match[str]) -> str:
    if not _BLANK_LINE.search(found.group(1)):
        return found.group()
    body = found.group(1).replace("''", "'")
    return "\n" + _BREAKS.sub(lambda ends: "\n" * (ends.group().count("\n") - 1) or " ", body) + "\n"


def _from_csv(text: str) -> str:
    """The column of a table that holds what was printed: one line of it a row, or the whole of it in one."""
    fields = list(_FIELD.finditer(text)) if '"' in text else []
    if sum(len(field.group()) for field in fields) < _LEAST_QUOTED * len(text.strip()) or not fields:
        return text
    beside = "".join(field.group()[0] + text[field.end() : field.end() + 1] for field in fields[:_LOOKED_AT])
    delimiter = max(_DELIMITERS, key=beside.count)
    try:
        rows = list(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error:
        return text
    return _column(rows, text)


def _from_markdown(text: str) -> str:
    """The column of a table of Markdown that holds what was printed, one line of it a row."""
    lines = [line.strip() for line in text.split("\n") if line.strip()] if "|" in text else []
    rows = [line[1:-1].split("|") for line in lines if line.startswith("|") and line.endswith("|") and len(line) > 1]
    if len(rows) < max(2, _MOST * len(lines)) or min(map(len, rows)) < 2:
        return text
    cells = [[_BACKTICKS.sub(r"\2", cell[cell.startswith(" ") :].rstrip()) for cell in row] for row in rows]
    return _column(cells, text)


def _column(rows: t.Sequence[t.Sequence[str]], text: str) -> str:
    records = [{str(at): field for at, field in enumerate(row)} for row in rows if row]
    column = _telling(records)
    if column is None:
        return text
    return "\n".join(record.get(column, "").rstrip("\r\n") for record in records)


def _telling(records: t.Iterable[t.Mapping[str, str] | None]) -> str | None:
    """The field of records that holds what was printed: words, different in most records, and most of them."""
    said: dict[str, set[str]] = {}
    for record in records:
        for name, value in (record or {}).items():
            if (" " in value.strip() or "\t" in value) and not _STAMP.match(value):
                said.setdefault(name, set()).add(value)
    return max(said, key=lambda name: sum(map(len, said[name]))) if said else None


def _strings(value: object, path: str = "", depth: int = 0) -> t.Iterator[tuple[str, str]]:
    """(path, string) of every string in a document, lists of strings as one string of lines."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list) and len(value) > 1 and all(isinstance(each, str) for each in value):
        yield path, "\n".join(each.rstrip("\n") for each in value)
    elif isinstance(value, (dict, list)) and depth < _DEEPEST:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from _strings(inner, f"{path}/{key if isinstance(value, dict) else ''}", depth + 1)


def _document(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _record(line: str) -> dict[str, str] | None:
    """The fields of one record: JSON behind a short prefix, or pairs `key=value`."""
    begins = line.find("{", 0, _LONGEST_PREFIX)
    if begins >= 0 and line.rstrip().endswith("}"):
        document = _document(line[begins:])
        return dict(_strings(document)) if isinstance(document, dict) and document else None
    if '="' not in line:
        return None
    fields: dict[str, str] = {}
    at = 0
    for pair in _PAIR.finditer(line):
        if pair.start() != at:
            return None
        key, quoted, bare = pair.groups()
        fields[key] = unescaped(quoted) if quoted is not None else bare
        at = pair.end()
    return fields if at == len(line) and len(fields) > 1 else None


def _from_records(text: str) -> str:
    """The field that holds the printed lines, of records of a logger or log store, one a line; the whole answer of one line's document."""
    if '{"' not in text and '="' not in text:
        return text
    lines = text.split("\n")
    records = [_record(line) for line in lines]
    if sum(record is not None for record in records) >= max(2, _MOST * sum(bool(line.strip()) for line in lines)):
        field = _telling(records)
        if field is not None and not any("\n" in record.get(field, "").strip() for record in filter(None, records)):
            return "\n".join(
                line if record is None else record.get(field, "").rstrip("\r\n")
                for record, line in zip(records, map(collected, lines))
            )
    return "\n".join(line if record is None else _answers(line, record) for record, line in zip(records, lines))


def _from_ruby(text: str) -> str:
    """The field that holds the printed lines, of mappings of Ruby, as log shippers show them."""
    pairs = _MAPPED.findall(text) if "=>" in text else []
    field = _telling([{key: unescaped(value)} for key, value in pairs]) if len(pairs) > 1 else None
    return text if field is None else "\n".join(unescaped(value) for key, value in pairs if key == field)


def _answers(line: str, record: t.Mapping[str, str]) -> str:
    """What stands before a line's document, and the strings of several lines in it; the line itself where there is none."""
    found = _of_several_lines(record.values())
    before = line.partition("{")[0].rstrip() if line.rstrip().endswith("}") else ""
    return "\n".join([before, *found]) if found else line


def _of_several_lines(strings: t.Iterable[str]) -> list[str]:
    return list(dict.fromkeys(string.strip("\n") for string in strings if "\n" in string.strip()))


def _from_document(text: str) -> str:
    """The strings of several lines within a JSON document, of a string and the list of its lines only one; or its list of records."""
    if text.lstrip()[:1] not in ("{", "["):
        return text
    document = _document(text)
    found = _of_several_lines(string for _path, string in _strings(document))
    if found:
        return "\n".join(found)
    records = [dict(_strings(each)) for each in document] if isinstance(document, list) else []
    field = _telling(records)
    return text if field is None else "\n".join(record.get(field, "").rstrip("\r\n") for record in records)


def _from_strings(text: str) -> str:
    """Strings that spell line ends, in a program's source or in what a program shows of its data; and quotes that one escapes."""

    def string(found: re.Match[str]) -> str:
        double, single = found.groups()
        body = double if double is not None else single
        if "\\n" not in body:
            return found.group()
        said = unescaped(body)
        return f"\n{said}" if said.endswith("\n") else f"\n{said}\n"

    if "\\n" in text and not _LINES_BESIDE.search(text):
        text = _LITERAL.sub(string, text)
    if "\\'" in text:
        text = _RAW_STRING.sub(lambda found: "\n" + found.group(1).replace("\\'", "'") + "\n", text)
    return text


def _from_spelled_line_ends(text: str) -> str:
    """What spells most of its line ends, or a line of it that does: a string that was cut off, or stands without its quotes."""
    spelled = text.count("\\n")
    if spelled > text.count("\n"):
        quotes_are_its_own = text.count('"') - text.count('\\"') > spelled
        text = _SPELLED_RE.sub(
            lambda found: '"' if quotes_are_its_own and found.group() == '"' else _SPELLED[found.group()], text
        )
    elif not _LIST_OF_LINES.search(text):  # which Ansible prints beside the string that it was cut from
        text = _SPELLED_LINE.sub(
            lambda line: _SPELLED_RE.sub(lambda found: _SPELLED[found.group()], line.group()), text
        )
    return text.replace("\\t", "\t") if _SPELLED_TAB.search(text) else text


def _from_one_line_a_host(text: str) -> str:
    """The answers of `ansible -o`, each below its host."""
    return _STDERR_BEHIND.sub("\n", _ONE_LINE_A_HOST.sub(r"\1 >>\n", text)) if " | (stdout)" in text else text


def _from_fences(text: str) -> str:
    """Fences of Markdown on lines of their own, where a chat wrote one right before or behind a line."""
    return _GLUED_FENCE.sub("\n", text) if "```" in text else text


def _from_lists(text: str) -> str:
    """A list of lines, as Ansible shows it in JSON or YAML, or as a program of Python has it; the lists of other documents are their own."""
    if not _LIST_OF_LINES.search(text) and _JSON_KEY.search(text):
        return text
    return _LISTED_LINE.sub(_unlisted, _LIST_BEGINS.sub(r"\1\n", text))


def _unlisted(found: re.Match[str]) -> str:
    """The line that an element of a list of lines spells."""
    double, of_yaml, of_python = found.groups()
    if of_yaml is not None:
        return str(of_yaml).replace("''", "'")
    if of_python is not None:
        return _SPELLED_RE.sub(
            lambda escape: '"' if escape.group() == '"' else _SPELLED[escape.group()], of_python
        ).replace("\\'", "'")
    return _SPELLED_RE.sub(lambda escape: _SPELLED[escape.group()] if escape.group() != '"' else "", double)


_UNPACKERS = (
    _from_control_characters,
    _from_log,
    _from_mail,
    _from_xml,
    _from_html,
    _from_folded_yaml,
    _from_csv,
    _from_markdown,
    _from_records,
    _from_ruby,
    _from_document,
    _from_strings,
    _from_spelled_line_ends,
    _from_one_line_a_host,
    _from_lists,
    _from_fences,
)
