# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filters that read captured outputs of fabric tools: text in, mapping out; they raise on no text."""

from __future__ import annotations

import functools
import re
import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.gpufabric.cluster.plugins.module_utils._captured_text import unbroken, unescaped, unpacked
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_log import parse_nccl_log as read_nccl_log
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_log_stream import whole_text
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_tests_output import parse_nccl_tests
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.ibdev2netdev import parse_ibdev2netdev
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.iblinkinfo import parse_iblinkinfo
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.ibnetdiscover import parse_ibnetdiscover
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.ibstat import parse_ibstat
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.ibstatus import parse_ibstatus
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.ibv_devinfo import parse_ibv_devinfo
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.lldp import parse_lldp
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.mlnx_qos import parse_mlnx_qos
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.mlxlink import parse_mlxlink
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.rdma_link import parse_rdma_link
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.show_gids import parse_show_gids
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.faults import add_findings

# A string of JSON, or Python's bytes, perhaps within CompletedProcess(args=..., returncode=0, stdout=b'...').
_QUOTED = re.compile(r"""\s*(?:.{0,4000}?\bstdout=)?b?(["'])(.*?)\1(?:, stderr=.*)?[),]{0,2}\s*\Z""")
_NCCL_BEGINS = re.compile(
    r":[0-9]{1,10}:[0-9]{1,10} \[-?[0-9]|\bNCCL (?:INFO|WARN|ATTN|ERROR|version)\b"
)  # a line of a log
_MOST_BYTES = 256 << 20  # of a compressed capture, uncompressed

Parser = t.Callable[[str], "dict[str, t.Any]"]


def parse_nccl_log(text: str) -> dict[str, t.Any]:
    """What the log says, and what the fault catalogue makes of it."""
    return add_findings(read_nccl_log(unbroken(unpacked(text), _NCCL_BEGINS)), text)


PARSERS: dict[str, Parser] = {
    parser.__name__: parser
    for parser in (
        parse_ibdev2netdev,
        parse_iblinkinfo,
        parse_ibnetdiscover,
        parse_ibstat,
        parse_ibstatus,
        parse_ibv_devinfo,
        parse_lldp,
        parse_mlnx_qos,
        parse_mlxlink,
        parse_nccl_log,
        parse_nccl_tests,
        parse_rdma_link,
        parse_show_gids,
    )
}


def _text_of(name: str, value: object) -> str:
    """The text of a registered result: `stdout`, `stdout_lines`, or the bytes of a slurped file, compressed or in UTF-16 too."""
    if isinstance(value, str):
        return _with_line_ends(str(value))
    if isinstance(value, bytes):
        return _with_line_ends(whole_text(value, _MOST_BYTES))
    if isinstance(value, (list, tuple)) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    raise AnsibleFilterError(
        f"{name}: expected the text that the tool printed, or a list of its lines, found {type(value).__name__}"
    )


def _with_line_ends(text: str) -> str:
    """Without NULs; and a text without any line end gets those that it spells: alone CRs, or the \\n of a string within JSON."""
    text = text.replace("\x00", "").lstrip("\ufffd")  # what is left of UTF-16 that was read as UTF-8
    if "\n" in text.strip() or text.lstrip()[:1] in ("{", "["):
        return text
    if "\r" in text.strip():
        return text.replace("\r", "\n")
    quoted = _QUOTED.match(text)
    if quoted:
        return unescaped(quoted.group(2))
    spelled = unpacked(text)
    return spelled if "\n" in spelled.strip() else text.replace("\\n", "\n").replace("\\t", "\t")


def _filter(parser: Parser) -> t.Callable[[object], dict[str, t.Any]]:
    @functools.wraps(parser)
    def apply(value: object) -> dict[str, t.Any]:
        return parser(_text_of(parser.__name__, value))

    return apply


class FilterModule:
    """The parse filters, each documented in parse_*.yml beside this file."""

    def filters(self) -> dict[str, t.Callable[[object], dict[str, t.Any]]]:
        """All filters by name."""
        return {name: _filter(parser) for name, parser in PARSERS.items()}
