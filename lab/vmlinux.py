# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes the kernel proper out of a distribution's self-extracting bzImage.

An emulated processor needs seconds to unpack a kernel at every boot. The image is therefore unpacked once, here; QEMU
starts the ELF file through its PVH entry. Where the payload lies is in the boot protocol's header
(Documentation/arch/x86/boot.rst: setup_sects at 0x1f1, payload_offset at 0x248, payload_length at 0x24c).
"""

from __future__ import annotations

import lzma
import struct
import subprocess
import typing as t
import zlib

from lab.errors import LabError

_SETUP_SECTS = 0x1F1
_MAGIC = 0x202
_PAYLOAD = 0x248
_SECTOR = 512


def _zstd(data: bytes) -> bytes:
    # The payload is followed by its unpacked size, which zstd takes for a second, broken frame: what it wrote counts.
    done = subprocess.run(["zstd", "--decompress", "--quiet", "--stdout"], input=data, capture_output=True, check=False)
    return done.stdout


_DECOMPRESSORS: dict[bytes, t.Callable[[bytes], bytes]] = {
    b"\xfd7zXZ\x00": lambda data: lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(data),
    b"\x1f\x8b": lambda data: zlib.decompressobj(wbits=31).decompress(data),
    b"\x28\xb5\x2f\xfd": _zstd,
    b"\x7fELF": bytes,
}


def extract(bz_image: bytes) -> bytes:
    """The ELF kernel inside bz_image. Raises LabError when there is none that it can unpack."""
    if bz_image[_MAGIC : _MAGIC + 4] != b"HdrS":
        raise LabError("the distribution's kernel is no bzImage: its boot header is missing")
    offset, length = struct.unpack_from("<II", bz_image, _PAYLOAD)
    start = ((bz_image[_SETUP_SECTS] or 4) + 1) * _SECTOR + offset
    payload = bz_image[start : start + length]
    for magic, decompress in _DECOMPRESSORS.items():
        if payload.startswith(magic):
            kernel = decompress(payload)
            if kernel.startswith(b"\x7fELF"):
                return kernel
    raise LabError(f"the distribution's kernel is packed in an unknown way: its payload begins {payload[:6].hex()}")
