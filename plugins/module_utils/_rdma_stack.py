# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The RDMA software of a node: whose stack it is, which tools it has, what of GPUDirect the kernel exposes.

PRIVATE to the collection.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

#: what the roles and people of this field run on a node, by the program that shows its presence
TOOLS = ("ibstat", "ibv_devinfo", "rdma", "iblinkinfo", "ib_write_bw", "mlxlink", "dcb", "mlnx_qos")

#: where user space finds the drivers that ibv_devinfo and NCCL use (libibverbs, ibv_get_device_list(3))
PROVIDERS = "/etc/libibverbs.d"

#: files whose presence says that a peer-memory client of the GPU driver is registered; NCCL looks at the same ones
PEERMEM = (
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "/sys/module/nvidia_peermem/version",
)

#: the kernel's half of registering GPU memory by DMA-BUF (include/rdma/ib_umem.h, since 5.12)
DMABUF_SYMBOL = " ib_umem_dmabuf_get"


def read_stack(fs: RootedFs, tools: Tools, with_gpus: bool) -> dict[str, t.Any]:
    """The software beside the devices.

    vendor_stack: release of DOCA-OFED or MLNX_OFED as installed, "" for the distribution's own; mlx5_core: whose module
    is loaded, as {loaded, version} (those of vendors' stacks carry a version, recent kernels' own none); providers: user-space
    drivers; tools: {name: path or None}; modules: RDMA modules live in the kernel; gpudirect: None without GPUs, else
    {driver, open_driver, peermem, dmabuf}, where dmabuf is None if /proc/kallsyms hides its names.
    """
    return {
        "vendor_stack": _vendor_stack(fs, tools),
        "mlx5_core": {
            "loaded": fs.exists("/sys/module/mlx5_core"),
            "version": fs.read_value("/sys/module/mlx5_core/version") or "",
        },
        "providers": [name[: -len(".driver")] for name in fs.listdir(PROVIDERS) if name.endswith(".driver")],
        "tools": {name: tools.find(name) for name in TOOLS},
        "modules": [name for name in fs.listdir("/sys/module") if re.match(r"(mlx[45]_|ib_|rdma_|nvidia)", name)],
        "gpudirect": _gpudirect(fs) if with_gpus else None,
    }


def _vendor_stack(fs: RootedFs, tools: Tools) -> str:
    """What ``ofed_info -s`` prints, else the first line of the release file of images that ship without that tool."""
    said = tools.run(["ofed_info", "-s"], timeout=10)
    text = said.stdout if said.ok else fs.read_value("/etc/mlnx-release") or ""
    return text.strip().splitlines()[0].rstrip(":") if text.strip() else ""


def _gpudirect(fs: RootedFs) -> dict[str, t.Any]:
    """Whether the kernel lets an HCA reach GPU memory: by a peer-memory client, or by DMA-BUF.

    DMA-BUF needs the kernel's half and NVIDIA's open kernel modules, since only those export buffers (NVIDIA's
    GPUDirect RDMA documentation).
    """
    version = fs.read_value("/proc/driver/nvidia/version") or ""
    first = version.splitlines()[0] if version else ""
    symbols = fs.read_value("/proc/kallsyms")
    kernel_half = None if symbols is None else DMABUF_SYMBOL in symbols
    return {
        "driver": first,
        "open_driver": "Open Kernel Module" in first,
        "peermem": next((path for path in PEERMEM if fs.exists(path)), ""),
        "dmabuf": kernel_half,
    }
