# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""QEMU's command line, the console, the tools and the kernel's extraction."""

from __future__ import annotations

import lzma
import pathlib
import struct
import subprocess
import zlib

import pytest

from lab import machine, tools, vmlinux
from lab.errors import LabError
from lab.image import cached
from lab.plan import make_plan

PLAN = make_plan(2, 2)
IMAGE = cached(pathlib.Path("/cache"), "bookworm-base-1")


def command(accelerator: str = "tcg") -> list[str]:
    return machine.command(PLAN.node("n2"), IMAGE, machine.Hardware(768, 1, accelerator), 22222)


def options(name: str) -> list[str]:
    words = command()
    return [words[position + 1] for position, word in enumerate(words) if word == name]


def test_only_loopback_leads_to_a_node_and_nothing_leads_out() -> None:
    (user,) = [one for one in options("-netdev") if one.startswith("user,")]
    assert "restrict=on" in user
    assert "hostfwd=tcp:127.0.0.1:22222-:22" in user


def test_every_switched_nic_has_its_own_port_mac_and_speed() -> None:
    sockets = [one.rpartition("addr.path=")[2] for one in options("-netdev") if one.startswith("stream,")]
    assert sockets == ["switch/rail0-2", "switch/rail1-2", "switch/control-2"]
    nics = [one for one in options("-device") if one.startswith("virtio-net-pci")]
    assert [f"mac={link.mac}" in nic for link, nic in zip(PLAN.node("n2").links, nics, strict=True)] == [True] * 4
    assert all("duplex=full" in nic for nic in nics)
    assert sum("speed=100000," in nic for nic in nics) == 2


def test_the_accelerator_decides_the_processor() -> None:
    assert command("kvm")[command("kvm").index("-cpu") + 1] == "host"
    assert command()[command().index("-cpu") + 1] == "max"


def test_qemu_accepts_the_command_line(tmp_path: pathlib.Path) -> None:
    """Everything but the kernel and the network is there: QEMU stops at the first of those and at nothing before."""
    if tools.shutil.which("qemu-system-x86_64", path=tools.search_path()) is None:
        pytest.skip("QEMU is not installed")
    (tmp_path / "n2").mkdir()
    (tmp_path / "n2" / "identity.tar").write_bytes(bytes(1024))
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", tmp_path / "n2/disk.qcow2", "1M"], check=True)
    done = subprocess.run(command(), cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode != 0
    assert "switch/rail0-2" in done.stderr or "/cache/bookworm-base-1" in done.stderr


@pytest.mark.parametrize(
    ("text", "outcome"), [("", False), ("Booting", False), (f"noise\r\n{machine.READY}\r\n", True)]
)
def test_the_console_says_when_a_node_is_up(tmp_path: pathlib.Path, text: str, outcome: bool) -> None:
    (tmp_path / "n1").mkdir()
    assert machine.console_says(tmp_path, "n1") is False
    (tmp_path / "n1" / "console.log").write_text(text)
    assert machine.console_says(tmp_path, "n1") is outcome


@pytest.mark.parametrize("text", ["LAB-BOOT-FAILED no disk", "[1.0] Kernel panic - not syncing: VFS"])
def test_a_boot_that_failed_is_said_with_the_consoles_words(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1" / "console.log").write_bytes(text.encode() + b"\xff")
    with pytest.raises(LabError, match="n1 does not boot") as raised:
        machine.console_says(tmp_path, "n1")
    assert text in str(raised.value)


def test_a_missing_tool_is_said_with_the_command_that_installs_it() -> None:
    with pytest.raises(
        LabError, match="no-such-a, no-such-b: sudo apt-get install --no-install-recommends one-package$"
    ):
        tools.require({"no-such-a": "one-package", "no-such-b": "one-package", "sh": "dash"})
    tools.require({"sh": "dash"})


def test_every_tool_is_in_the_list_that_setup_installs() -> None:
    listed = set(tools.APT_PACKAGES_FILE.read_text().split())
    assert {*tools.RUN_TOOLS.values(), *tools.BUILD_TOOLS.values(), *tools.UNPRIVILEGED_BUILD_TOOLS.values()} <= listed


ELF = b"\x7fELF" + bytes(range(256)) * 40


def bz_image(payload: bytes) -> bytes:
    setup_sectors = 2
    header = bytearray((setup_sectors + 1) * 512)
    header[0x1F1] = setup_sectors
    header[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", header, 0x248, 16, len(payload))
    return bytes(header) + bytes(16) + payload + b"trailer"


def gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("pack", [lzma.compress, gzip, bytes], ids=["xz", "gzip", "unpacked"])
def test_the_kernel_is_taken_out_of_its_envelope(pack: object) -> None:
    assert callable(pack)
    assert vmlinux.extract(bz_image(pack(ELF) + struct.pack("<I", len(ELF))))[: len(ELF)] == ELF


def test_a_kernel_packed_by_zstd_is_taken_out() -> None:
    packed = subprocess.run(["zstd", "-q", "-c"], input=ELF, capture_output=True, check=True).stdout
    assert vmlinux.extract(bz_image(packed + struct.pack("<I", len(ELF)))) == ELF


@pytest.mark.parametrize("data", [b"", bytes(4096), bz_image(b"LZ4?" + ELF), bz_image(lzma.compress(b"no kernel"))])
def test_what_holds_no_kernel_is_refused(data: bytes) -> None:
    with pytest.raises(LabError, match="the distribution's kernel is"):
        vmlinux.extract(data)
