# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which network interfaces carry RoCE. PRIVATE to the collection."""

from __future__ import annotations

from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_sysfs import natural, read_devices
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs


def rdma_interfaces(fs: RootedFs) -> list[str]:
    """Interfaces of every Ethernet port of every RDMA device, VLANs with GIDs of their own included, in natural order.

    InfiniBand ports are left out: IPoIB resolves addresses by the subnet manager's rules, not by ARP flux settings.
    """
    devices, _unused = read_devices(fs, counters="none")
    ports = [port for device in devices for port in device["ports"] if port["link_layer"] == "Ethernet"]
    names = {port["netdev"] for port in ports} | {gid["netdev"] for port in ports for gid in port["gids"]}
    return sorted(names - {""}, key=natural)
