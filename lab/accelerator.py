# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides between KVM and software emulation. A /dev/kvm that opens may still hang its guest, so it is tried once."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import subprocess
import tempfile

from lab.paths import write_atomically
from lab.progress import Progress

_DEVICE = pathlib.Path("/dev/kvm")
_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")
_PROBE_S = 6.0


def choose(cache: pathlib.Path, kernel: pathlib.Path, progress: Progress) -> str:
    """`kvm` or `tcg`. The answer of a probe is remembered until this machine boots again."""
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return "tcg"
    asked = f"{_BOOT_ID.read_text('ascii').strip()} {platform.release()}"
    remembered = cache / "accelerator.json"
    try:
        answer = json.loads(remembered.read_text("utf-8"))
        if answer["asked"] == asked and answer["accelerator"] in ("kvm", "tcg"):
            return str(answer["accelerator"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no answer yet, or an unreadable one: ask again
    with progress.step("trying whether KVM runs a kernel here"):
        accelerator = "kvm" if _kvm_boots(kernel) else "tcg"
    write_atomically(remembered, json.dumps({"asked": asked, "accelerator": accelerator}).encode())
    return accelerator


def _kvm_boots(kernel: pathlib.Path) -> bool:
    """Boot the kernel alone. It finds no root file system, panics and so ends QEMU: within the time or never."""
    with tempfile.TemporaryFile() as console:
        command = [
            *("qemu-system-x86_64", "-accel", "kvm", "-machine", "pc", "-cpu", "host", "-m", "256", "-no-reboot"),
            *("-display", "none", "-nodefaults", "-no-user-config", "-serial", "stdio"),
            *("-kernel", str(kernel), "-append", "console=ttyS0 panic=-1"),
        ]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.DEVNULL,
                timeout=_PROBE_S,
                check=False,
            )
        except (subprocess.TimeoutExpired, OSError):
            return False
        console.seek(0)
        return done.returncode == 0 and b"Kernel panic" in console.read()
