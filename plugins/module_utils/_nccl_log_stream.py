# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Turn a log of any size and coding into blocks of whole lines of UTF-8 bytes, in constant memory. PRIVATE to the collection."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import typing as t
import zlib

BLOCK = (
    2 << 20
)  # bytes read at a time: large enough for the C loops of re and bytes.find, small beside any node's memory
LONGEST_LINE = 1 << 20  # a line that is longer is cut there, so that a file without line ends stays within this too


def _gunzip(raw: t.BinaryIO) -> t.BinaryIO:
    return t.cast("t.BinaryIO", gzip.GzipFile(fileobj=raw))


def _bunzip(raw: t.BinaryIO) -> t.BinaryIO:
    return t.cast("t.BinaryIO", bz2.BZ2File(raw))


def _unxz(raw: t.BinaryIO) -> t.BinaryIO:
    return t.cast("t.BinaryIO", lzma.LZMAFile(raw))  # noqa: SIM115  # the caller's file decides how long it lives


_COMPRESSIONS: tuple[tuple[bytes, str, t.Callable[[t.BinaryIO], t.BinaryIO]], ...] = (
    (b"\x1f\x8b", "gzip", _gunzip),
    (b"BZh", "bzip2", _bunzip),
    (b"\xfd7zXZ\x00", "xz", _unxz),
)

Source = t.Union[str, bytes, bytearray, t.BinaryIO, t.Iterable[t.Union[str, bytes]]]


class _Pieces(io.RawIOBase):
    """A file over an iterable of lines or pieces, str or bytes."""

    def __init__(self, pieces: t.Iterable[str | bytes]) -> None:
        self._pieces = iter(pieces)
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: t.Any) -> int:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = piece.encode("utf-8", "replace") if isinstance(piece, str) else bytes(piece)
        taken, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)


def _opened(source: Source) -> t.BinaryIO:
    if isinstance(source, str):
        return io.BytesIO(source.encode("utf-8", "replace"))
    if isinstance(source, (bytes, bytearray)):
        return io.BytesIO(source)
    if hasattr(source, "read"):
        return t.cast("t.BinaryIO", source)
    return t.cast("t.BinaryIO", io.BufferedReader(_Pieces(source), BLOCK))


def _utf16(head: bytes) -> str | None:
    """Which UTF-16 it is, by its mark or, without one, by where the zero bytes of its ASCII stand."""
    if head.startswith(codecs.BOM_UTF16_LE):
        return "utf-16-le"
    if head.startswith(codecs.BOM_UTF16_BE):
        return "utf-16-be"
    even, odd = head[0:512:2].count(0), head[1:512:2].count(0)
    half = len(head[:512]) // 2
    if half >= 8 and odd > half * 0.7 and even < half * 0.1:
        return "utf-16-le"
    if half >= 8 and even > half * 0.7 and odd < half * 0.1:
        return "utf-16-be"
    return None


class LogBlocks:
    """Iterate over a log's blocks of whole lines; ``problem`` says afterwards why reading ended early, where it did."""

    def __init__(self, source: Source) -> None:
        self._file = _opened(source)
        self.coding = "utf-8"
        self.compression: str | None = None
        self.bytes_read = 0
        self.problem: str | None = None

    def _read(self, stream: t.BinaryIO) -> bytes:
        try:
            return stream.read(BLOCK)
        except (EOFError, OSError, zlib.error, lzma.LZMAError, ValueError) as error:
            # A compressed log of a killed job ends in mid-stream: what came before it counts.
            self.problem = f"reading ended early after {self.bytes_read} bytes: {error}"
            return b""

    def __iter__(self) -> t.Iterator[bytes]:
        head = self._read(self._file)
        stream = self._file
        for magic, name, opener in _COMPRESSIONS:
            if head.startswith(magic):
                self.compression = name
                stream = opener(t.cast("t.BinaryIO", io.BufferedReader(_Chained(head, self._file), BLOCK)))
                head = self._read(stream)
                break
        utf16 = _utf16(head)
        decoder = codecs.getincrementaldecoder(utf16)("replace") if utf16 else None
        self.coding = utf16 or "utf-8"
        carry = b""
        block = head
        while block:
            self.bytes_read += len(block)
            if decoder:
                block = decoder.decode(block).replace("\ufeff", "").encode("utf-8", "replace")
            block = carry + block
            end = block.rfind(b"\n") + 1
            if not end and len(block) > LONGEST_LINE:
                end = len(block)
            if end:
                yield block[:end]
            carry = block[end:]
            block = self._read(stream)
        if carry:
            yield carry


class _Chained(io.RawIOBase):
    """A stream whose first bytes were already read."""

    def __init__(self, head: bytes, rest: t.BinaryIO) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: t.Any) -> int:
        taken = self._head[: len(buffer)] or self._rest.read(len(buffer)) or b""
        self._head = self._head[len(taken) :] if self._head else b""
        buffer[: len(taken)] = taken
        return len(taken)
