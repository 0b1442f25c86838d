# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sockets and their congestion control: read from ss, and really moved in another process of this machine."""

from __future__ import annotations

import pathlib
import socket
import subprocess
import sys

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils import _tcp_sockets
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from hypothesis import given
from hypothesis import strategies as st

LISTING = """\
LISTEN 0      128          0.0.0.0:22        0.0.0.0:*     users:(("sshd",pid=310,fd=3))
\t bbr cwnd:10
ESTAB  0      0          10.9.0.2:22      10.9.0.1:40122 users:(("sshd",pid=612,fd=4),("sshd",pid=600,fd=4))
\t bbr wscale:7,7 rto:204 rtt:0.2/0.1 bbr:(bw:10Mbps,mrtt:0.2)
ESTAB  0      0          10.9.0.2:22      10.9.0.1:40124 users:(("sshd",pid=700,fd=4))
\t cubic wscale:7,7 rto:204
TIME-WAIT 0   0          10.9.0.2:22      10.9.0.1:40126
ESTAB  0      0          10.9.0.2:2049    10.9.0.1:700
\t bbr wscale:7,7
"""


def test_reads_who_holds_a_socket() -> None:
    assert _tcp_sockets.sockets_with(LISTING, "bbr") == [(310, 3), (612, 4)]
    assert _tcp_sockets.sockets_with(LISTING, "cubic") == [(700, 4)]
    assert _tcp_sockets.sockets_with(LISTING, "reno") == []


@given(st.text(max_size=300))
def test_no_listing_raises(text: str) -> None:
    _tcp_sockets.sockets_with(text, "bbr")


def test_a_recorded_tree_has_no_sockets(tmp_path: pathlib.Path) -> None:
    assert _tcp_sockets.move_sockets(Tools(RootedFs(str(tmp_path))), "bbr", "cubic") == 0


PROGRAM = """
import socket, sys
s = socket.socket(); s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
print(s.fileno(), flush=True); sys.stdin.readline()
print(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode(), flush=True)
"""


def test_moves_the_socket_of_another_process() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin and process.stdout
        descriptor = process.stdout.readline().strip()
        if not descriptor:
            pytest.skip("this machine has no cubic")
        moved = _tcp_sockets._move(process.pid, int(descriptor), "reno")
        process.stdin.write("\n")
        process.stdin.flush()
        algorithm = process.stdout.readline().strip()
    if not moved:
        pytest.skip("this kernel does not let one process copy another's descriptor (pidfd_getfd)")
    assert algorithm == "reno"


def test_a_process_that_is_gone_is_no_error() -> None:
    assert _tcp_sockets._move(2**22 - 1, 3, "reno") is False
    assert socket.TCP_CONGESTION == 13
