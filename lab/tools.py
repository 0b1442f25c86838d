# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs that the lab calls, and the one sentence that says how to get those that are missing."""

from __future__ import annotations

import os
import pathlib
import shutil
import typing as t

from lab.errors import LabError

APT_PACKAGES_FILE = pathlib.Path(__file__).resolve().parent / "apt-packages.txt"

# program → Debian package
RUN_TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "ssh": "openssh-client",
}
BUILD_TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "unshare": "util-linux",
    "mke2fs": "e2fsprogs",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "modprobe": "kmod",
    "depmod": "kmod",
    "xz": "xz-utils",
    "zstd": "zstd",
}
UNPRIVILEGED_BUILD_TOOLS = {
    "fakeroot": "fakeroot",
    "newuidmap": "uidmap",
}


def search_path() -> str:
    """PATH with the administrator's directories, where Debian keeps mke2fs and depmod also for other users."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def require(tools: t.Mapping[str, str]) -> None:
    """Raise LabError naming the apt command where one of the tools is absent."""
    missing = [tool for tool in tools if shutil.which(tool, path=search_path()) is None]
    if missing:
        packages = " ".join(sorted({tools[tool] for tool in missing}))
        raise LabError(f"the lab needs {', '.join(missing)}: sudo apt-get install --no-install-recommends {packages}")
