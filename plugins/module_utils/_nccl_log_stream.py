# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Turn a log of any size and coding into blocks of whole lines of UTF-8 bytes, in constant memory. PRIVATE to the collection."""

from __future__ import annotations

import bz2
import codecs
import io
import lzma
import typing as t
import zlib

BLOCK = (
    2 << 20
)  # bytes read at a time: large enough for the C loops of re and bytes.find, small beside any node's memory
LONGEST_LINE = 1 << 20  # a line that is longer is cut there, so that a file without line ends stays within this too


class _Decompressor(t.Protocol):
    """What bz2's and lzma's decompressors have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gunzip:
    """zlib's decompressor with the face of the other two."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 16)

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def needs_input(self) -> bool:
        return not self._zlib.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return self._zlib.decompress(self._zlib.unconsumed_tail + data, max(0, max_length))


_COMPRESSIONS: tuple[tuple[bytes, str, t.Callable[[], _Decompressor]], ...] = (
    (b"\x1f\x8b", "gzip", _Gunzip),
    (b"BZh", "bzip2", bz2.BZ2Decompressor),
    (b"\xfd7zXZ\x00", "xz", lzma.LZMADecompressor),
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

    def _raw(self) -> t.Iterator[bytes]:
        while True:
            block = self._file.read(BLOCK)
            if not block:
                return
            yield block

    def _plain(self) -> t.Iterator[bytes]:
        """The blocks without their compression. What a cut-off stream still holds is given before its end is missed."""
        blocks = self._raw()
        head = next(blocks, b"")
        opener = None
        for magic, name, opens in _COMPRESSIONS:
            if head.startswith(magic):
                self.compression, opener, first_bytes = name, opens, magic
        if opener is None:
            yield head
            yield from blocks
            return
        stream = opener()
        data = head
        while data:
            yield stream.decompress(data, BLOCK)
            while not (stream.needs_input or stream.eof):
                yield stream.decompress(b"", BLOCK)
            data = stream.unused_data if stream.eof else b""
            if data.startswith(first_bytes):  # one compressed file behind the other is one file
                stream = opener()
                continue
            if data:
                return
            data = next(blocks, b"")
        if not stream.eof:
            raise EOFError("the compressed file is cut off")

    def _survived(self, blocks: t.Iterator[bytes]) -> t.Iterator[bytes]:
        try:
            yield from blocks
        except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as error:
            self.problem = f"reading ended early after {self.bytes_read} bytes: {error}"

    def __iter__(self) -> t.Iterator[bytes]:
        decoder: codecs.IncrementalDecoder | None = None
        carry = b""
        for block in self._survived(self._plain()):
            if not self.bytes_read and block:
                utf16 = _utf16(block)
                if utf16:
                    self.coding, decoder = utf16, codecs.getincrementaldecoder(utf16)("replace")
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
        if carry:
            yield carry


def whole_text(source: Source, most: int) -> str:
    """The text of a log or capture, uncompressed and decoded, and no more of it than `most` bytes and a block: gzip may hold any size."""
    pieces: list[bytes] = []
    size = 0
    for block in LogBlocks(source):
        pieces.append(block)
        size += len(block)
        if size > most:
            break
    return b"".join(pieces).decode("utf-8", errors="replace")
