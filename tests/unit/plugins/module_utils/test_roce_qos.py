# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""RoCE QoS on fake roots and recorded tools: read, set, refused, persisted, given back."""

from __future__ import annotations

import pathlib
import subprocess
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils import _roce_qos, _roce_qos_apply
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools import dcb
from ansible_collections.gpufabric.cluster.plugins.module_utils._roce_qos_apply import RoceQos, Wanted
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_node import FakeNode
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_qos import add_dcb, add_ecn, add_mlnx_qos, add_rdma_cm
from hypothesis import given
from hypothesis import strategies as st

GOAL = Wanted(
    trust="dscp",
    pfc=(3,),
    dscp_prio={26: 3},
    ecn={"np": {3: True}, "rp": {3: True}},
    cnp_dscp=48,
    cnp_priority=6,
    cma_tos=106,
    tclass=None,
)


@pytest.fixture
def node(tmp_path: pathlib.Path) -> FakeNode:
    node = FakeNode(tmp_path / "n1")
    return node.add_hca("mlx5_0", netdev="eth1", ipv4="10.20.0.1/24", pci="0000:1b:00.0")


def qos(node: FakeNode) -> tuple[RootedFs, Tools, RoceQos]:
    fs = RootedFs(node.root)
    return fs, Tools(fs), RoceQos(fs, Tools(fs))


def look(node: FakeNode) -> dict[str, t.Any]:
    fs, tools, _ = qos(node)
    return t.cast("dict[str, t.Any]", _roce_qos.observe(fs, tools, ["eth1"])["interfaces"][0])


def apply(node: FakeNode, goal: Wanted = GOAL, check: bool = False) -> dict[str, str]:
    _, _, roce = qos(node)
    done, _files = roce.apply([look(node)], goal, check)
    return {entry.setting: entry.status for entry in done}


def files(node: FakeNode) -> dict[str, str]:
    """Every file and link of the node but its tools' logs and state."""
    root = pathlib.Path(node.root)
    found = {}
    for path in sorted(root.rglob("*")):
        name = "/" + str(path.relative_to(root))
        if name.startswith(("/.tools", "/tool-calls", "/usr/bin")) or (path.is_dir() and not path.is_symlink()):
            continue
        found[name] = f"-> {path.readlink()}" if path.is_symlink() else path.read_text()
    return found


# ---- reading


def test_nothing_shows_anything(node: FakeNode) -> None:
    seen = look(node)
    assert (seen["tool"], seen["trust"], seen["pfc"], seen["dcbx"], seen["tclass"], seen["cma_tos"]) == (
        "",
        None,
        None,
        None,
        None,
        None,
    )
    assert seen["problem"] == "mlnx_qos is not installed; dcb is not installed"
    assert seen["ecn"] == {"source": "", "np": {}, "rp": {}, "cnp_dscp": None, "cnp_priority": None}
    assert (seen["hca"], seen["port"], seen["pci"]) == ("mlx5_0", 1, "0000:1b:00.0")


def test_read_by_mlnx_qos(node: FakeNode) -> None:
    add_mlnx_qos(node, "eth1", trust="dscp", pfc=(3,))
    seen = look(node)
    assert (seen["tool"], seen["trust"], seen["pfc"], seen["dcbx"]) == ("mlnx_qos", "dscp", [3], "host")
    assert (seen["dscp_prio"]["26"], seen["dscp_prio"]["48"]) == (3, 6)


def test_read_by_dcb(node: FakeNode) -> None:
    add_dcb(node, "eth1", table={26: 3, 48: 6}, pfc=(3,))
    seen = look(node)
    assert (seen["tool"], seen["trust"], seen["pfc"], seen["dcbx"]) == ("dcb", "dscp", [3], "host")
    assert seen["dscp_prio"] == {"26": 3, "48": 6}


def test_ecn_of_the_inbox_driver_shows_parameters_only(node: FakeNode) -> None:
    for name, value in (("np_cnp_dscp", "48"), ("np_cnp_prio", "6")):
        node.write(f"/sys/kernel/debug/mlx5/0000:1b:00.0/cc_params/{name}", f"{value}\n")
    assert look(node)["ecn"] == {"source": "debugfs", "np": {}, "rp": {}, "cnp_dscp": 48, "cnp_priority": 6}


def test_global_pause_and_traffic_class_and_nccl(node: FakeNode) -> None:
    node.add_tool("ethtool", "Pause parameters for eth1:\nAutonegotiate:\toff\nRX:\t\ton\nTX:\t\toff\n", when="-a eth1")
    node.write("/sys/class/infiniband/mlx5_0/tc/1/traffic_class", "Global tclass=106\n")
    node.write("/etc/nccl.conf", "NCCL_IB_TC=104\nNCCL_IB_TC=106\n# NCCL_IB_TC=1\n")
    seen = look(node)
    assert (seen["pause"], seen["tclass"]) == ({"rx": True, "tx": False}, 106)
    fs, tools, _ = qos(node)
    assert _roce_qos.observe(fs, tools, [])["nccl_tc"] == "104"


def test_bond_is_looked_at_through_its_members(node: FakeNode) -> None:
    node.add_netdev("bond1").add_netdev("eth2")
    for member in ("eth1", "eth2"):
        node.link(f"/sys/class/net/bond1/lower_{member}", f"../{member}")
    fs, tools, _ = qos(node)
    observed = _roce_qos.observe(fs, tools, ["bond1", "eth9"])
    assert [i["interface"] for i in observed["interfaces"]] == ["eth1", "eth2"]
    assert observed["problems"][0]["subject"] == "eth9"


@pytest.mark.parametrize(
    ("trust", "pfc", "traffic_class", "verified"),
    [("dscp", (3,), 106, 106), ("pcp", (3,), 106, None), ("dscp", (), 106, None), ("dscp", (3,), 160, None)],
)
def test_traffic_class_is_verified_if_it_is_lossless(
    node: FakeNode, trust: str, pfc: tuple[int, ...], traffic_class: int, verified: int | None
) -> None:
    add_mlnx_qos(node, "eth1", trust=trust, pfc=pfc)
    fs, tools, _ = qos(node)
    assert _roce_qos.observe(fs, tools, ["eth1"], traffic_class=traffic_class)["verified_tc"] == verified
    assert _roce_qos.observe(fs, tools, [], traffic_class=traffic_class)["verified_tc"] is None


# ---- setting


@pytest.mark.parametrize("tool", ["mlnx_qos", "dcb"])
def test_apply_again_and_give_back(node: FakeNode, tool: str) -> None:
    add_mlnx_qos(node, "eth1") if tool == "mlnx_qos" else add_dcb(node, "eth1", table={10: 1})
    add_ecn(node, "eth1", on=(0, 5)).write("/sys/class/net/eth1/ecn/roce_rp/enable/3", "1\n")
    add_rdma_cm(node, "mlx5_0")
    before, untouched = look(node), files(node)
    first = apply(node)
    assert set(first.values()) <= {"applied", "already"}, first
    after = look(node)
    assert (after["trust"], after["pfc"], after["dscp_prio"]["26"], after["cma_tos"]) == ("dscp", [3], 3, 106)
    assert after["ecn"]["np"] == after["ecn"]["rp"] == {str(p): p in (0, 3, 5) for p in range(8)}
    assert (after["ecn"]["cnp_dscp"], after["ecn"]["cnp_priority"]) == (48, 6)
    assert set(apply(node).values()) == {"already"}
    _, _, roce = qos(node)
    done, _files = roce.rollback()
    assert {entry.status for entry in done} == {"restored"}
    assert look(node) == before
    assert files(node) == untouched


def test_check_mode_changes_nothing_and_says_what_it_would(node: FakeNode) -> None:
    add_mlnx_qos(node, "eth1")
    add_ecn(node, "eth1")
    untouched = files(node)
    assert apply(node, check=True)["pfc"] == "applied"
    assert files(node) == untouched
    assert all("--" not in call for call in node.tool_calls())


@pytest.mark.parametrize("tool", ["mlnx_qos", "dcb"])
def test_firmware_controlled_dcbx_is_refused_and_the_owner_said(node: FakeNode, tool: str) -> None:
    if tool == "mlnx_qos":
        add_mlnx_qos(node, "eth1", dcbx="Firmware controlled")
    else:
        add_dcb(node, "eth1", dcbx="ieee")
    add_ecn(node, "eth1")
    untouched = files(node)
    _, _, roce = qos(node)
    done, outcomes = roce.apply([look(node)], GOAL)
    assert [(d.setting, d.status) for d in done] == [("all", "refused")]
    assert "firmware" in done[0].why and "switch" in done[0].why
    assert outcomes == []
    assert files(node) == untouched


def test_lldp_agent_is_refused_too(node: FakeNode) -> None:
    add_dcb(node, "eth1", dcbx="lld-managed ieee")
    assert apply(node) == {"all": "refused"}


def test_unsupported_is_said_and_the_rest_set(node: FakeNode) -> None:
    add_ecn(node, "eth1", on=())
    done = apply(node)
    assert (done["trust and pfc"], done["cma_tos"], done["ecn np 3"]) == ("unsupported", "unsupported", "applied")


def test_failing_tool_is_one_failed_setting(node: FakeNode) -> None:
    add_mlnx_qos(node, "eth1", broken="--pfc")
    add_ecn(node, "eth1", on=())
    done = apply(node)
    assert (done["pfc"], done["trust"], done["ecn np 3"]) == ("failed", "applied", "applied")


def test_boot_script_does_what_was_applied(node: FakeNode) -> None:
    """The script, run with the fake node's paths, brings a freshly booted node to the same state."""
    add_mlnx_qos(node, "eth1")
    add_ecn(node, "eth1")
    apply(node)
    script = node.path(_roce_qos_apply.SCRIPT)
    assert script.stat().st_mode & 0o111
    assert node.path(_roce_qos_apply.WANTS).is_symlink()
    wanted = look(node)
    add_mlnx_qos(node, "eth1")
    add_ecn(node, "eth1")
    assert look(node) != wanted
    text = (
        script.read_text()
        .replace("/sys/", f"{node.root}/sys/")
        .replace("mlnx_qos -i", f"{node.root}/usr/bin/mlnx_qos -i")
    )
    subprocess.run(["sh", "-c", text], check=True, timeout=30)
    assert look(node) == wanted


def test_unit_is_a_unit(node: FakeNode) -> None:
    add_mlnx_qos(node, "eth1")
    apply(node)
    unit = node.path(_roce_qos_apply.UNIT).read_text()
    assert f"ExecStart={_roce_qos_apply.SCRIPT}\n" in unit and "WantedBy=multi-user.target" in unit


def test_traffic_class_override_goes_back_to_none(node: FakeNode) -> None:
    add_mlnx_qos(node, "eth1", trust="dscp", pfc=(3,))
    node.write("/sys/class/infiniband/mlx5_0/tc/1/traffic_class", "Global tclass=0\n")
    steps = _roce_qos_apply.plan(look(node), Wanted(tclass=106))
    assert [(s.setting, s.have, s.want, s.path) for s in steps] == [
        ("tclass", "0", "106", "/sys/class/infiniband/mlx5_0/tc/1/traffic_class")
    ]


# ---- dcb's text


def test_dcb_texts() -> None:
    assert dcb.parse_pfc(
        "pfc-cap 8 macsec-bypass off delay 0\nprio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off \n"
    ) == [3]
    assert dcb.parse_pfc("pfc-cap 8\n") is None
    assert dcb.parse_dscp("dscp-prio 0:0 24:2 24:3 48:6 \n") == {0: [0], 24: [2, 3], 48: [6]}
    assert dcb.parse_dscp("") == {}
    assert dcb.parse_dcbx("host ieee \n") == ["host", "ieee"]
    assert dcb.parse_dcbx("") is None


@given(st.text(alphabet=st.characters(), max_size=400))
def test_no_text_raises(text: str) -> None:
    for read in (dcb.parse_pfc, dcb.parse_dscp, dcb.parse_dcbx):
        read(text)
        read(f"prio-pfc {text}\ndscp-prio {text}")
