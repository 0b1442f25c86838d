# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What autotune measures, on what, and what it hands to the role nccl_env."""

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest
import yaml
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import tune_settings
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_tests_plan import NodeMeans
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search_space import space_for
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_objective import for_busbw, for_workload, speed_of
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_plan import make_plan, typed

SETTINGS: dict[str, t.Any] = {
    "collective": "all_reduce", "sizes": ["64M"], "workload": {}, "transport": "auto", "debug_variables": True,
    "leave_out": [], "trials": 25, "minutes": 30, "timeout_s": 300, "hopeless": 0.4, "iterations": 20, "warmup": 5,
    "check_collectives": ["all_reduce", "all_gather", "alltoall"], "results_dir": "results",
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 128, "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip
OMPI_INFO = """\
mca:btl:tcp:param:btl_tcp_links:value:1
mca:btl:tcp:param:btl_tcp_links:source:default
mca:btl:tcp:param:btl_tcp_sndbuf:value:4096
mca:btl:tcp:param:btl_tcp_sndbuf:source:file (/home/ops/.openmpi/mca-params.conf:1)
mca:btl:tcp:param:btl_tcp_rcvbuf:value:8192
mca:btl:tcp:param:btl_tcp_rcvbuf:source:environment
mca:btl:tcp:param:btl_tcp_if_include:value:eth0
mca:btl:tcp:param:btl_tcp_if_include:source:file (/etc/openmpi-mca-params.conf:9)
"""


def node(name: str, layer: str = "", gpus: int = 8) -> NodeMeans:
    port = {
        "device": "mlx5_0",
        "netdev": "",
        "state": "ACTIVE",
        "link_layer": layer,
        "rate_gbps": 400,
        "driver": "mlx5",
    }
    tools = {
        "ports": [port] if layer else [],
        "programs": {"all_reduce": {}, "all_gather": {}},
        "mpirun": {"version": "4.1.6"},
    }
    return NodeMeans(name, tools, gpus, {})


def planned(backend: str = "nccl", **environment: str) -> dict[str, t.Any]:
    run = {
        "backend": backend, "collective": "all_reduce", "ranks_per_node": 2 if backend == "nccl" else 1,
        "mca": {"btl": "self,tcp"}, "environment": {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT", **environment},
    }  # fmt: skip
    return {"backend": backend, "here": "n1", "runs": [run]}


def test_the_hardware_says_whose_settings_are_searched() -> None:
    for layers, backend, expected in (
        (["InfiniBand", "InfiniBand"], "nccl", "infiniband"),
        (["Ethernet", "Ethernet"], "nccl", "roce"),
        (["InfiniBand", ""], "nccl", "socket"),
        (["InfiniBand"], "nccl", "nvlink"),
        (["", ""], "mpi", "mpi_tcp"),
    ):
        nodes = [node(f"n{number}", layer) for number, layer in enumerate(layers)]
        assert tune_settings.transport_of(nodes, backend) == expected
    assert "IB was expected" in tune_settings.contradiction("roce", "Socket")
    assert tune_settings.contradiction("roce", "IB") == tune_settings.contradiction("socket", "") == ""


def test_what_is_in_force_is_a_start_and_can_be_taken_away() -> None:
    space = space_for("mpi_tcp", "")
    in_force = tune_settings.mpi_in_force(OMPI_INFO, space)
    assert in_force == {"btl_tcp_sndbuf": "4096", "btl_tcp_rcvbuf": "8192"}
    told = tune_settings.explicit({"btl_tcp_sndbuf": "1048576"}, in_force, space)
    assert told == {"btl_tcp_sndbuf": "1048576", "btl_tcp_rcvbuf": "0"}
    run = tune_settings.as_run(planned("mpi")["runs"][0], {"min_bytes": "8"}, told, talk=True)
    assert run["mca"] == {"btl": "self,tcp", **told} and run["min_bytes"] == "8"


def test_nccl_variables_of_files_and_of_the_role_are_in_force() -> None:
    way = {"effective": {"NCCL_SOCKET_NTHREADS": {"value": "4"}, "NCCL_DEBUG": {"value": "WARN"}}}
    observed = {"ways": {"login": way}, "library": {"version": "2.28.9"}}
    plan = make_plan(planned(NCCL_NSOCKS_PERTHREAD="2"), {n: node(n) for n in ("n1", "n2")}, observed, SETTINGS, "")
    assert plan.transport == "socket" and plan.versions["nccl"] == "2.28.9"
    assert plan.starts["current"] == {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "2"}
    assert plan.starts["default"] == {} and plan.starts["guide"]["NCCL_BUFFSIZE"] == "1048576"
    assert [part.collective for part in plan.others] == ["all_gather"], "alltoall_perf is not there"
    told = tune_settings.explicit({}, plan.in_force, plan.space)
    run = tune_settings.as_run(plan.template, {}, told, talk=False)
    assert run["environment"] == {"NCCL_SOCKET_NTHREADS": "-2", "NCCL_NSOCKS_PERTHREAD": "-2"}


def test_another_fabric_or_question_is_another_study() -> None:
    nodes = {n: node(n, "InfiniBand") for n in ("n1", "n2")}
    seen = {"library": {"version": "2.28.9"}}
    first = make_plan(planned(), nodes, seen, SETTINGS, "")
    assert first.study == make_plan(planned(), dict(reversed(nodes.items())), seen, SETTINGS, "").study
    newer = make_plan(planned(), nodes, {"library": {"version": "2.29.2"}}, SETTINGS, "")
    other = make_plan(planned(), nodes, seen, {**SETTINGS, "sizes": ["8M"]}, "")
    longer = make_plan(planned(), nodes, seen, {**SETTINGS, "trials": 99, "minutes": 5}, "")
    assert newer.fabric != first.fabric == other.fabric
    assert len({first.study, newer.study, other.study}) == 3 and longer.study == first.study


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"transport": "mpi_tcp"}, "autotune_transport is 'mpi_tcp', which the backend nccl does not use"),
        ({"sizes": ["64 apples"]}, "a size is a number with K, M or G behind it"),
        ({"sizes": []}, "autotune_sizes is empty"),
        ({"collective": "alltoall"}, "n1 has no program for alltoall; it has all_gather, all_reduce"),
        ({"workload": {"model": "x"}}, "autotune_workload has model; expected are config"),
        ({"workload": {"config": "/nowhere/config.json"}}, "/nowhere/config.json is no config.json"),
        ({"workload": {"config": LLAMA, "strategy": {"kind": "ddp", "rank": 3}}}, "autotune_workload: .*rank"),
    ],
)
def test_bad_settings_are_told_in_one_sentence(changes: dict[str, t.Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_plan(planned(), {n: node(n) for n in ("n1", "n2")}, {}, {**SETTINGS, **changes}, "")


def test_settings_have_their_types_whatever_templates_made_of_them() -> None:
    texts = {**SETTINGS, "trials": "9", "minutes": "2.5", "debug_variables": "True"}
    made = typed(texts)
    assert (made["trials"], made["minutes"], made["debug_variables"]) == (9, 2.5, True)
    assert not typed({**texts, "debug_variables": False})["debug_variables"]
    with pytest.raises(ValueError, match="autotune_minutes is 'soon', and a number is expected"):
        typed({**texts, "minutes": "soon"})


def test_sizes_that_follow_one_another_share_a_launch() -> None:
    assert [(p.min_bytes, p.max_bytes, p.factor) for p in for_busbw("all_reduce", ["1M", "4M", "16M"]).parts] == [
        (1 << 20, 16 << 20, 4.0)
    ]
    assert [p.min_bytes for p in for_busbw("all_reduce", ["1M", "64M", "2M"]).parts] == [1 << 20, 2 << 20, 64 << 20]


def row(size: int, busbw: float | None) -> dict[str, t.Any]:
    return {"size_bytes": size, "out_of_place": {"busbw_gbs": busbw, "time_us": size / (busbw or 1) / 1e3}}


def test_the_score_is_a_mean_over_sizes_and_nothing_without_all_of_them() -> None:
    objective = for_busbw("all_reduce", ["1M", "4M"])
    good = {"collective": "all_reduce", "ranks": 2, "rows": [row(1 << 20, 2.0), row(4 << 20, 8.0)]}
    assert objective.score([good]) == pytest.approx(4.0)
    assert objective.score([{**good, "rows": [row(1 << 20, 2.0), row(4 << 20, None)]}]) is None
    assert speed_of({"rows": []}) is None


def test_a_training_is_scored_by_its_predicted_communication(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    objective = for_workload(
        {
            "config": str(path),
            "strategy": {"kind": "ddp", "broadcast_buffers": False},
            "lora": {"rank": 8, "target_modules": ["q_proj"]},
        },
        2,
        1,
    )
    assert {part.collective for part in objective.parts} == {"all_reduce"}
    part = objective.parts[0]

    def runs(busbw: float) -> list[dict[str, t.Any]]:
        sizes = [row(part.min_bytes, busbw), row(part.max_bytes, busbw)]
        return [{"collective": "all_reduce", "ranks": 2, "rows": sizes}]

    slow, fast = objective.score(runs(1.0)), objective.score(runs(2.0))
    assert slow is not None and fast == pytest.approx(2 * slow)
    assert "ms of communication a step" in objective.say(slow)
    assert objective.score([{"collective": "broadcast", "ranks": 2, "rows": [row(8, 1.0)]}]) is None


def test_a_profile_keeps_the_users_variables_and_unsets_what_lost() -> None:
    name, text = tune_settings.profile(
        {"NCCL_SOCKET_NTHREADS": "2"}, {"NCCL_BUFFSIZE": "1048576"}, {"NCCL_DEBUG": "WARN"}, "socket", "3.6 times"
    )
    assert name == "nccl_env.yml" and "3.6 times" in text
    assert yaml.safe_load(text) == {
        "nccl_env_variables": {"NCCL_DEBUG": "WARN", "NCCL_BUFFSIZE": None, "NCCL_SOCKET_NTHREADS": "2"}
    }
    name, text = tune_settings.profile({"btl_tcp_links": "2"}, {"btl_tcp_sndbuf": "4096"}, {}, "mpi_tcp", "2 times")
    assert name == "openmpi-mca-params.conf" and text.splitlines()[1:] == [
        "btl_tcp_links = 2",
        "# without btl_tcp_sndbuf",
    ]
