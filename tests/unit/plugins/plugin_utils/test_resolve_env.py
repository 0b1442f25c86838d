# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet's NCCL environment, from intent and hardware to each node's variables."""

from __future__ import annotations

import copy
import time
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import (
    CATALOGUE,
    catalogue_from,
    load_catalogue,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_env import resolve_fleet
from ansible_collections.gpufabric.cluster.tests.fixtures.nccl_fleet import (
    GUIDE,
    V1,
    V2,
    gid,
    hca,
    ib_node,
    roce_node,
    tcp_node,
    usual_gids,
)

Result = dict[str, t.Any]


def fleet(
    *nodes: Result, profiles: t.Sequence[str] = ("guide",), variables: Result | None = None, **settings: t.Any
) -> Result:
    return resolve_fleet({f"n{i + 1}": node for i, node in enumerate(nodes)}, profiles, variables or {}, settings)


def values(result: Result, node: str = "n1") -> dict[str, str]:
    return {v["name"]: v["value"] for v in result["nodes"][node]["variables"]}


def entry(result: Result, name: str, node: str = "n1") -> Result:
    return next(v for v in result["nodes"][node]["variables"] if v["name"] == name)


def dropped(result: Result, name: str, node: str = "n1") -> str:
    return next(str(d["reason"]) for d in result["nodes"][node]["dropped"] if d["name"] == name)


def found(result: Result, kind: str) -> list[Result]:
    return [f for f in result["findings"] if f["id"] == kind]


# ---- the guide's list


@pytest.fixture(scope="module")
def guide() -> Result:
    nodes = [roce_node(i, hcas=2) for i in (1, 2)]
    for node in nodes:
        node["hcas"] += [hca("mlx5_10", "eth9", usual_gids("10.9.0.1", "eth9"))]
    return fleet(*nodes, profiles=[], variables=GUIDE)


def test_five_names_do_not_exist(guide: Result) -> None:
    never = found(guide, "nccl_variable_never_existed")
    assert {f["subject"]: f["expected"].partition(": ")[2] for f in never} == {
        "NCCL_NCHANNELS": "NCCL_MIN_CTAS and NCCL_MAX_CTAS",
        "NCCL_IB_QP_SCALING_THRESHOLD": "NCCL_IB_SPLIT_DATA_ON_QPS",
        "NCCL_IB_REG_MR_ENABLE": "nothing does this",
        "NCCL_IB_REG_MR_THRESHOLD": "nothing does this",
        "NCCL_IB_ALIGNMENT": "nothing does this",
    }
    assert all(f["severity"] == "error" and f["node"] == "" for f in never)


def test_algo_is_dropped_and_its_right_form_shown(guide: Result) -> None:
    (finding,) = found(guide, "nccl_breaks_collectives")
    assert "allreduce:tree" in finding["expected"]
    assert "NCCL_ALGO" not in values(guide)


def test_the_hca_list_is_made_exact(guide: Result) -> None:
    (finding,) = found(guide, "nccl_hca_prefix")
    assert "takes mlx5_10 too" in finding["evidence"]
    assert values(guide)["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"
    assert entry(guide, "NCCL_IB_HCA")["scope"] == "node"


def test_the_gid_index_is_questioned(guide: Result) -> None:
    (finding,) = found(guide, "nccl_gid_index_fixed")
    assert "2.21" in finding["expected"] and finding["severity"] == "warning"


def test_exactly_two_no_ops(guide: Result) -> None:
    assert [f["subject"] for f in found(guide, "nccl_no_op")] == ["NCCL_IB_DISABLE", "NCCL_IB_RETRY_CNT"]


def test_a_users_default_takes_the_profiles_value_away() -> None:
    with_default = fleet(roce_node(1), variables={"NCCL_IB_TIMEOUT": 20})
    assert values(fleet(roce_node(1)))["NCCL_IB_TIMEOUT"] == "22"
    assert "NCCL_IB_TIMEOUT" not in values(with_default)


def test_strict_writes_nothing_and_warn_leaves_out_what_is_wrong(guide: Result) -> None:
    assert not guide["writable"] and not guide["nodes"]["n1"]["writable"]
    warn = fleet(roce_node(1), roce_node(2), profiles=[], variables=GUIDE, mode="warn")
    assert warn["writable"] and not [f for f in warn["findings"] if f["severity"] == "error"]
    assert set(values(warn)) == {
        "NCCL_IB_GID_INDEX",
        "NCCL_IB_TC",
        "NCCL_BUFFSIZE",
        "NCCL_IB_HCA",
        "NCCL_IB_TIMEOUT",
        "NCCL_IB_QPS_PER_CONNECTION",
    }


def test_the_guides_list_on_sockets() -> None:
    result = fleet(tcp_node(), profiles=[], variables=GUIDE, mode="warn")
    assert values(result) == {"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "8", "NCCL_BUFFSIZE": "1048576"}
    assert {f["subject"] for f in found(result, "nccl_pointless")} == {
        "NCCL_IB_HCA",
        "NCCL_IB_GID_INDEX",
        "NCCL_IB_TC",
        "NCCL_IB_TIMEOUT",
        "NCCL_IB_QPS_PER_CONNECTION",
    }
    assert not found(result, "nccl_hca_prefix") and not found(result, "nccl_gid_index_fixed")


# ---- profiles on hardware


def test_guide_on_roce() -> None:
    result = fleet(roce_node(1, 2), roce_node(2, 2), control_network="192.168.0.0/16", traffic_class=106)
    assert values(result) == {
        "NCCL_DEBUG": "WARN",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
        "NCCL_IB_TC": "106",
        "NCCL_IB_TIMEOUT": "22",
        "NCCL_IB_QPS_PER_CONNECTION": "4",
    }
    assert result["findings"] == [] and result["writable"]
    assert all(v["origin"] == "profile guide" and v["reason"] for v in result["nodes"]["n1"]["variables"])
    scopes = {v["name"]: v["scope"] for v in result["nodes"]["n1"]["variables"]}
    assert {name for name, scope in scopes.items() if scope == "node"} == {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"}
    assert "NCCL 2.21 and later" in dropped(result, "NCCL_IB_GID_INDEX")


def test_guide_on_infiniband() -> None:
    result = fleet(ib_node())
    assert values(result) == {
        "NCCL_DEBUG": "WARN",
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
        "NCCL_IB_TIMEOUT": "22",
    }


def test_no_hca_at_all() -> None:
    result = fleet(tcp_node())
    assert values(result) == {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "8"}
    assert [f["severity"] for f in found(result, "nccl_no_hca")] == ["warning"]
    assert result["nodes"]["n1"]["transport"] == ["socket"]
    assert not found(fleet(tcp_node(), profiles=["tcp"]), "nccl_no_hca")


def test_hardware_that_was_not_observed() -> None:
    result = fleet({"nccl_version": "2.28.9"})
    assert values(result) == {
        "NCCL_DEBUG": "WARN",
        "NCCL_IB_TIMEOUT": "22",
        "NCCL_IB_QPS_PER_CONNECTION": "4",
        "NCCL_SOCKET_NTHREADS": "2",
        "NCCL_NSOCKS_PERTHREAD": "8",
    }
    assert result["nodes"]["n1"]["transport"] is None


def test_tcp_profile_beside_hcas() -> None:
    result = fleet(roce_node(), profiles=["tcp"])
    assert values(result) == {
        "NCCL_DEBUG": "WARN",
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_NTHREADS": "2",
        "NCCL_NSOCKS_PERTHREAD": "8",
        "NCCL_BUFFSIZE": "8388608",
    }
    assert result["findings"] == []


def test_lora_leaves_buffers_and_queue_pairs_alone() -> None:
    plain, lora = fleet(roce_node(), profiles=["roce"]), fleet(roce_node(), profiles=["roce", "lora"])
    assert set(values(plain)) - set(values(lora)) == {"NCCL_IB_QPS_PER_CONNECTION"}


def test_debug_is_no_production_profile() -> None:
    result = fleet(roce_node(), profiles=["roce", "debug"], variables={"NCCL_BUFFSIZE": 8388608})
    assert values(result)["NCCL_DEBUG"] == "INFO" and "NET" in values(result)["NCCL_DEBUG_SUBSYS"]
    assert not found(result, "nccl_debug_only")


@pytest.mark.parametrize(("profile", "node"), [("infiniband", roce_node()), ("roce", ib_node()), ("roce", tcp_node())])
def test_a_profile_that_does_not_suit(profile: str, node: Result) -> None:
    (finding,) = found(fleet(node, profiles=[profile]), "nccl_profile_mismatch")
    assert profile in finding["evidence"] and finding["severity"] == "warning"


@pytest.mark.parametrize("profiles", [["nonsense"], ["tcp", "roce"]])
def test_profiles_that_cannot_be_write_nothing(profiles: list[str]) -> None:
    result = fleet(roce_node(), profiles=profiles)
    assert not result["writable"] and [f["severity"] for f in result["findings"]].count("error") == 1


def test_rails_that_are_not_connected() -> None:
    result = fleet(roce_node(), rail_only=True)
    assert values(result)["NCCL_CROSS_NIC"] == "0"


def test_selected_hcas_and_named_ones() -> None:
    node = roce_node(1, 4, selected=["mlx5_1:1", "mlx5_3:1"])
    assert values(fleet(node))["NCCL_IB_HCA"] == "=mlx5_1:1,mlx5_3:1"
    assert values(fleet(node, hcas=["mlx5_0"]))["NCCL_IB_HCA"] == "=mlx5_0:1"
    none = fleet(roce_node(1, 4, selected=[]))
    assert "NCCL_IB_HCA" not in values(none) and none["nodes"]["n1"]["transport"] == ["socket"]


def test_a_named_hca_that_is_not_there() -> None:
    result = fleet(roce_node(1), roce_node(2, 1), hcas=["mlx5_0", "mlx5_1:1"])
    (finding,) = found(result, "nccl_hca_absent")
    assert finding["node"] == "n2" and "names mlx5_1:1; this node has mlx5_0" in finding["evidence"]
    assert values(result, "n2")["NCCL_IB_HCA"] == "=mlx5_0:1"


def test_a_selected_port_that_is_down_stays_in_the_list() -> None:
    node = roce_node(1, 2, selected=["mlx5_0:1", "mlx5_1:1"])
    node["hcas"][1]["ports"][0].update(state="DOWN", gids=[])
    result = fleet(node)
    assert values(result)["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1" and not found(result, "nccl_gid_unresolved")


# ---- GIDs


def odd_node(number: int) -> Result:
    node = roce_node(number, 2)
    address = node["addresses"]["eth2"][0].partition("/")[0]
    node["hcas"][1]["ports"][0]["gids"] = [gid(0, V1, "", "eth2"), gid(1, V2, address, "eth2")]
    return node


def test_gid_index_per_node_where_this_nccl_needs_it() -> None:
    nodes = [roce_node(1, 2, "2.20.5"), roce_node(2, 2, "2.20.5")]
    for port in (h["ports"][0] for h in nodes[1]["hcas"]):
        port["gids"] = [gid(0, V1, "", port["netdev"]), gid(7, V2, "10.0.0.9", port["netdev"])]
    result = fleet(*nodes)
    assert [values(result, n)["NCCL_IB_GID_INDEX"] for n in ("n1", "n2")] == ["3", "7"]
    assert entry(result, "NCCL_IB_GID_INDEX")["scope"] == "node"


def test_hcas_of_an_old_nccl_that_disagree() -> None:
    node = {**odd_node(1), "nccl_version": "2.20.5"}
    (finding,) = found(fleet(node), "nccl_gid_unresolved")
    assert "2.21" in finding["fix"] and finding["node"] == "n1"


def test_a_fixed_index_that_is_wrong_on_one_node() -> None:
    result = fleet(roce_node(1), odd_node(2), variables={"NCCL_IB_GID_INDEX": 3}, mode="warn")
    (wrong,) = found(result, "nccl_gid_index_wrong")
    assert wrong["node"] == "n2" and "mlx5_1:1 has no GID at 3" in wrong["evidence"] and "at 1" in wrong["evidence"]
    assert "NCCL_IB_GID_INDEX" in values(result, "n1") and "NCCL_IB_GID_INDEX" not in values(result, "n2")
    (questioned,) = found(result, "nccl_gid_index_fixed")
    assert questioned["node"] == "n1"


def test_a_fixed_index_that_is_wrong_is_an_error_in_strict_mode_on_that_node_alone() -> None:
    result = fleet(roce_node(1), odd_node(2), variables={"NCCL_IB_GID_INDEX": 3})
    assert [result["nodes"][n]["writable"] for n in ("n1", "n2")] == [True, False]


def test_a_wrong_index_on_an_old_nccl_is_put_right() -> None:
    result = fleet(roce_node(1, 2, "2.20.5"), variables={"NCCL_IB_GID_INDEX": 1}, mode="warn")
    assert (values(result)["NCCL_IB_GID_INDEX"], entry(result, "NCCL_IB_GID_INDEX")["origin"]) == ("3", "hardware")


# ---- network, traffic class


def test_control_network_by_node() -> None:
    nodes = [roce_node(1), roce_node(2)]
    nodes[1]["addresses"]["eno1np0"] = nodes[1]["addresses"].pop("eth0")
    result = fleet(*nodes, control_network="192.168.0.0/16")
    assert [values(result, n)["NCCL_SOCKET_IFNAME"] for n in ("n1", "n2")] == ["=eth0", "=eno1np0"]


def test_a_node_outside_the_control_network() -> None:
    nodes = [roce_node(1), roce_node(2)]
    nodes[1]["addresses"]["eth0"] = ["172.16.0.2/16"]
    result = fleet(*nodes, control_network="192.168.0.0/16")
    (finding,) = found(result, "nccl_control_interface_absent")
    assert (finding["node"], finding["severity"]) == ("n2", "error")
    assert "NCCL_SOCKET_IFNAME" not in values(result, "n2")
    assert [result["nodes"][n]["writable"] for n in ("n1", "n2")] == [True, False]


def test_several_interfaces_in_the_control_network() -> None:
    node = roce_node(1)
    node["addresses"]["eth7"] = ["192.168.200.1/16"]
    assert values(fleet(node, control_network="192.168.0.0/16"))["NCCL_SOCKET_IFNAME"] == "=eth0,eth7"


@pytest.mark.parametrize("text", ["192.168.0.0", "here", "10.0.0.0/99"])
def test_a_bad_network(text: str) -> None:
    result = fleet(roce_node(), control_network=text)
    (finding,) = found(result, "nccl_setting_invalid")
    assert finding["subject"] == "nccl_env_control_network" and text in finding["evidence"] and not result["writable"]


@pytest.mark.parametrize(
    ("variables", "verified", "setting", "written", "questioned"),
    [
        ({}, 106, None, "106", False),
        ({}, None, None, None, False),
        ({}, 106, 104, "104", False),
        ({"NCCL_IB_TC": 106}, 106, None, "106", False),
        ({"NCCL_IB_TC": 106}, 96, None, "106", True),
        ({"NCCL_IB_TC": 106}, None, None, "106", True),
    ],
)
def test_traffic_class(
    variables: Result, verified: int | None, setting: int | None, written: str | None, questioned: bool
) -> None:
    result = fleet(roce_node(traffic_class=verified), variables=variables, traffic_class=setting)
    assert values(result).get("NCCL_IB_TC") == written
    assert bool(found(result, "nccl_traffic_class_unverified")) == questioned


@pytest.mark.parametrize("value", ["many", 256, -1])
def test_a_bad_traffic_class(value: object) -> None:
    assert found(fleet(roce_node(), traffic_class=value), "nccl_setting_invalid")


def test_interfaces_of_a_user() -> None:
    result = fleet(roce_node(), variables={"NCCL_SOCKET_IFNAME": "eth0"})
    assert values(result)["NCCL_SOCKET_IFNAME"] == "=eth0"
    absent = fleet(roce_node(), variables={"NCCL_SOCKET_IFNAME": "bond0"}, mode="warn")
    assert found(absent, "nccl_interface_absent") and "NCCL_SOCKET_IFNAME" not in values(absent)


# ---- users, sites, nodes


def test_a_user_wins_and_can_unset() -> None:
    result = fleet(roce_node(), variables={"NCCL_IB_TIMEOUT": 23, "NCCL_IB_QPS_PER_CONNECTION": None})
    assert values(result)["NCCL_IB_TIMEOUT"] == "23" and "NCCL_IB_QPS_PER_CONNECTION" not in values(result)
    assert entry(result, "NCCL_IB_TIMEOUT")["origin"] == "nccl_env_variables"
    assert dropped(result, "NCCL_IB_QPS_PER_CONNECTION") == "unset by nccl_env_variables"


def test_a_vendors_file_lies_between_profile_and_user() -> None:
    site = {"NCCL_TOPO_FILE": "/opt/topo.xml", "NCCL_IB_TIMEOUT": "21", "NCCL_IB_HCA": "=mlx5_1"}
    result = fleet(roce_node(site=site), variables={"NCCL_IB_TIMEOUT": 23})
    assert values(result)["NCCL_TOPO_FILE"] == "/opt/topo.xml"
    assert values(result)["NCCL_IB_HCA"] == "=mlx5_1"
    assert values(result)["NCCL_IB_TIMEOUT"] == "23"
    assert (entry(result, "NCCL_TOPO_FILE")["origin"], entry(result, "NCCL_TOPO_FILE")["scope"]) == ("site", "node")


@pytest.mark.parametrize("fixed", [{"NCCL_NET": "Socket"}, {"NCCL_NET": "socket"}, {"NCCL_IB_DISABLE": 1}])
def test_a_user_who_forces_sockets(fixed: Result) -> None:
    result = fleet(roce_node(), variables=fixed)
    assert result["nodes"]["n1"]["transport"] == ["socket"]
    assert "NCCL_IB_HCA" not in values(result) and values(result)["NCCL_SOCKET_NTHREADS"] == "2"


def test_a_network_plug_in_takes_nothing_away() -> None:
    result = fleet(
        roce_node(), variables={"NCCL_NET": "AWS Libfabric", "NCCL_IB_TIMEOUT": 22, "NCCL_SOCKET_NTHREADS": 2}
    )
    assert result["nodes"]["n1"]["transport"] == ["plugin"] and not found(result, "nccl_pointless")


def test_a_submit_node_gets_only_what_all_nodes_share() -> None:
    login = {"role": "submit", "hcas": [], "addresses": {"eno1": ["192.168.9.9/16"]}, "nccl_version": "2.28.9"}
    result = fleet(roce_node(1), roce_node(2), login, control_network="192.168.0.0/16")
    assert set(values(result, "n3")) <= {
        v["name"] for v in result["nodes"]["n1"]["variables"] if v["scope"] == "uniform"
    }
    assert "NCCL_SOCKET_IFNAME" not in values(result, "n3") and not found(result, "nccl_no_hca")


def test_values_that_differ_between_nodes() -> None:
    nodes = [roce_node(i) for i in range(3)]
    nodes[2]["overrides"] = {"NCCL_BUFFSIZE": 8388608}
    result = fleet(*nodes)
    (finding,) = found(result, "nccl_values_differ")
    assert finding["subject"] == "NCCL_BUFFSIZE" and "unset on n1, n2; 8388608 on n3" in finding["evidence"]
    assert entry(result, "NCCL_BUFFSIZE", "n3")["scope"] == "node"


def test_values_that_differ_and_need_not_agree_are_a_notice() -> None:
    result = fleet(roce_node(1), roce_node(2, overrides={"NCCL_IB_TIMEOUT": 23}))
    (finding,) = found(result, "nccl_values_differ")
    assert (finding["subject"], finding["severity"]) == ("NCCL_IB_TIMEOUT", "notice")


def test_values_that_differ_with_the_hardware_are_no_fault() -> None:
    result = fleet(roce_node(1), ib_node(2))
    assert not found(result, "nccl_values_differ")
    assert entry(result, "NCCL_IB_QPS_PER_CONNECTION")["scope"] == "node"
    assert entry(result, "NCCL_IB_TIMEOUT")["scope"] == "uniform"


def test_a_node_that_is_not_written_has_no_say_in_what_is_shared() -> None:
    result = fleet(roce_node(1), roce_node(2, profiles=["nonsense"]))
    assert [result["nodes"][n]["writable"] for n in ("n1", "n2")] == [True, False]
    assert entry(result, "NCCL_DEBUG")["scope"] == "uniform"


def test_profiles_and_settings_of_single_nodes() -> None:
    result = fleet(roce_node(1), roce_node(2, profiles=["tcp"], settings={"mode": "warn"}), variables={"NCCL_HCA": 1})
    assert [result["nodes"][n]["transport"] for n in ("n1", "n2")] == [["roce"], ["socket"]]
    assert {f["severity"]: f["node"] for f in found(result, "nccl_variable_unknown")} == {
        "error": "n1",
        "warning": "n2",
    }
    assert [result["nodes"][n]["writable"] for n in ("n1", "n2")] == [False, True]


# ---- versions


def test_no_library_anywhere() -> None:
    result = fleet(roce_node(version=""), roce_node(2, version=""))
    (finding,) = found(result, "nccl_version_unknown")
    assert finding["severity"] == "notice" and load_catalogue().newest in finding["evidence"]
    assert result["writable"] and result["nodes"]["n1"]["nccl_version"] == load_catalogue().newest


def test_the_users_version_counts() -> None:
    result = fleet(roce_node(version="2.28.9"), nccl_version="2.20.5")
    assert result["nodes"]["n1"]["nccl_version"] == "2.20.5" and values(result)["NCCL_IB_GID_INDEX"] == "3"


def test_a_version_that_is_none() -> None:
    result = fleet(roce_node(), nccl_version="latest")
    assert found(result, "nccl_version_invalid") and not result["writable"]


def test_mixed_versions() -> None:
    (finding,) = found(fleet(roce_node(1, version="2.28.9"), roce_node(2, version="2.27.7")), "nccl_versions_differ")
    assert "2.27.7 on n2; 2.28.9 on n1" in finding["evidence"]


def test_a_catalogue_older_than_the_library() -> None:
    result = fleet(roce_node(version="9.1.0"))
    assert found(result, "nccl_catalogue_older") and result["writable"]
    data = __import__("json").loads(CATALOGUE.read_text())
    data["newest"] = "2.20.5"
    old = resolve_fleet({"n1": roce_node()}, ["guide"], {}, {}, catalogue_from(data))
    assert found(old, "nccl_catalogue_older")


# ---- robustness and size


@pytest.mark.parametrize("nodes", [{}, {"n1": {}}, {"n1": {"hcas": [], "addresses": {}, "site": {}}}])
def test_next_to_nothing(nodes: Result) -> None:
    assert set(resolve_fleet(nodes, ["guide"], {}, {})["nodes"]) == set(nodes)


def test_settings_as_texts_of_the_command_line() -> None:
    result = fleet(roce_node(), profiles="roce,lora", rail_only="false", keep_debug="no", hcas="mlx5_0, mlx5_1:1")
    assert result["nodes"]["n1"]["profiles"] == ["roce", "lora"]
    assert values(result)["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1" and "NCCL_CROSS_NIC" not in values(result)
    assert "NCCL_ALGO" not in values(fleet(roce_node(), keep_debug="false", variables={"NCCL_ALGO": "Tree"}))


@pytest.mark.parametrize("variables", ["NCCL_DEBUG=INFO", ["NCCL_DEBUG"], 3])
def test_variables_that_are_no_mapping(variables: object) -> None:
    (finding,) = found(fleet(roce_node(overrides=variables)), "nccl_setting_invalid")
    assert finding["subject"] == "nccl_env_variables"


def test_inputs_are_left_as_they_are() -> None:
    nodes = {"n1": roce_node()}
    before = copy.deepcopy((nodes, GUIDE))
    resolve_fleet(nodes, ["guide"], GUIDE, {})
    assert (nodes, GUIDE) == before


def test_the_same_finding_of_many_nodes_is_told_once() -> None:
    nodes = [odd_node(i) for i in range(20)] + [roce_node(99)]
    (finding,) = found(fleet(*nodes, variables={"NCCL_IB_HCA": "mlx5_0,mlx5_9"}), "nccl_hca_absent")
    assert finding["node"] == ""
    many = [f for f in fleet(*[tcp_node(i) for i in range(20)], roce_node(99))["findings"] if f["id"] == "nccl_no_hca"]
    assert len(many) == 1 and "and 12 more" in many[0]["evidence"]


def test_a_thousand_hosts_with_twenty_variables_resolve_within_ten_seconds() -> None:
    nodes = {f"n{i:04}": roce_node(i, 8) for i in range(1000)}
    variables = {**GUIDE, "NCCL_CROSS_NIC": 1, "NCCL_DEBUG": "WARN", "NCCL_MIN_CTAS": 8}
    assert len(variables) == 20
    began = time.perf_counter()
    result = resolve_fleet(nodes, ["guide"], variables, {"control_network": "192.168.0.0/16", "mode": "warn"})
    assert time.perf_counter() - began < 10
    assert len(result["nodes"]) == 1000 and len(result["findings"]) < 40
