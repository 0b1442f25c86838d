# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The grammar of sysctl.d: names, values, lines; nothing that a file may hold makes it raise."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._sysctl_conf import (
    Assignment,
    dotted,
    key_name,
    parse,
    proc_name,
    render,
    same_value,
)
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("net.core.rmem_max", "net/core/rmem_max"),
        ("net/core/rmem_max", "net/core/rmem_max"),
        ("net.ipv4.conf.rail1/100.rp_filter", "net/ipv4/conf/rail1.100/rp_filter"),
        ("net/ipv4/conf/rail1.100/rp_filter", "net/ipv4/conf/rail1.100/rp_filter"),
        ("/proc/sys/net/ipv4/conf/rail1.100/rp_filter", "net/ipv4/conf/rail1.100/rp_filter"),
        (" vm.swappiness ", "vm/swappiness"),
        ("net.ipv4.conf.*.rp_filter", "net/ipv4/conf/*/rp_filter"),
    ],
)
def test_first_separator_decides(name: str, path: str) -> None:
    assert proc_name(name) == path


@pytest.mark.parametrize("path", ["net/core/rmem_max", "net/ipv4/conf/rail1.100/arp_ignore", "vm/overcommit_memory"])
def test_dotted_comes_back(path: str) -> None:
    assert proc_name(dotted(path)) == path


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("4096 131072 6291456", "4096\t131072\t6291456\n", True),
        ("4096 131072", "4096 131072 6291456", False),
        ("0x10", "16", True),
        ("010", "8", True),
        ("08", "8", False),
        ("-1", "-1", True),
        ("fq", "fq_codel", False),
        ("", "", True),
        ("1", "1.0", False),
    ],
)
def test_values_are_compared_as_the_kernel_reads_them(one: str, other: str, same: bool) -> None:
    assert same_value(one, other) is same
    assert same_value(other, one) is same


def test_lines_of_every_kind() -> None:
    text = (
        "# a comment\n; another\n\n"
        "net.core.rmem_max=1\n"
        "  net/core/wmem_max  =  2  \n"
        "-net.ipv4.tcp_x = 3\n"
        "-net.ipv4.conf.all.rp_filter\n"
        "net.ipv4.conf.*.rp_filter = 2\n"
        "kernel.core_pattern = |/usr/bin/catch %p=%s # no comment\n"
        "nonsense\n"
        "= 5\n"
    )
    found, problems = parse(text.splitlines(), "/etc/sysctl.d/x.conf")
    assert [(a.name, a.value, a.line, a.lenient) for a in found] == [
        ("net/core/rmem_max", "1", 4, False),
        ("net/core/wmem_max", "2", 5, False),
        ("net/ipv4/tcp_x", "3", 6, True),
        ("net/ipv4/conf/all/rp_filter", None, 7, True),
        ("net/ipv4/conf/*/rp_filter", "2", 8, False),
        ("kernel/core_pattern", "|/usr/bin/catch %p=%s # no comment", 9, False),
    ]
    assert [problem.split(": ")[0] for problem in problems] == ["/etc/sysctl.d/x.conf:10", "/etc/sysctl.d/x.conf:11"]
    assert found[4].is_glob and not found[0].is_glob
    assert found[0].where == "/etc/sysctl.d/x.conf:4"


@pytest.mark.parametrize(
    "name", ["", "vm", "net.core.*", "net..x", "../etc/passwd", "a b.c", "net.core.x=1", "net.core.x\n"]
)
def test_no_key_gets_one_sentence(name: str) -> None:
    if name.endswith("\n"):
        assert key_name(name) == "net/core/x"
        return
    with pytest.raises(ValueError, match="kernel_tuning_sysctl: "):
        key_name(name, "kernel_tuning_sysctl")


def test_what_is_rendered_is_parsed_back() -> None:
    text = render(
        [("net/core/rmem_max", "1", "why"), ("net/ipv4/conf/r.1/rp_filter", "2", ""), ("net/x/y", "3", "")],
        {"net/x/y": "unsupported"},
    )
    found, problems = parse(text.splitlines(), "f")
    assert found == [
        Assignment("net/core/rmem_max", "1", "f", 2),
        Assignment("net/ipv4/conf/r.1/rp_filter", "2", "f", 3),
    ]
    assert problems == []
    assert "left out here (unsupported): net.x.y = 3" in text


@given(st.text(max_size=400))
def test_no_text_raises(text: str) -> None:
    for assignment in parse(text.splitlines(), "f")[0]:
        assert assignment.name
    same_value(text, text[::-1])
