# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The MPI collectives: every one gives right data, says so, and finds wrong data. MPI is played by threads of this process."""

from __future__ import annotations

import array
import copy
import io
import json
import pathlib
import queue
import threading
import typing as t
from contextlib import redirect_stdout

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils import _mpi_collectives as mpi
from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import FACTORS
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_tests_output import parse_nccl_tests

REDUCTIONS: dict[str, t.Callable[[t.Any, t.Any], t.Any]] = {
    "SUM": lambda a, b: a + b,
    "PROD": lambda a, b: a * b,
    "MAX": max,
    "MIN": min,
}


class World:
    """The shared half of a communicator: every rank puts something in, every rank sees all of it."""

    def __init__(self, ranks: int, spoil: t.Callable[[array.array[t.Any]], None] | None = None) -> None:
        self.ranks = ranks
        self.spoil = spoil
        self.slots: list[t.Any] = [None] * ranks
        self.barrier = threading.Barrier(ranks, timeout=20)

    def exchange(self, rank: int, value: t.Any) -> list[t.Any]:
        self.slots[rank] = copy.copy(value)
        self.barrier.wait()
        everything = list(self.slots)
        self.barrier.wait()
        return everything


class Comm:
    """What _mpi_collectives uses of mpi4py's Comm, in terms of exchange()."""

    def __init__(self, world: World, rank: int) -> None:
        self._world = world
        self._rank = rank

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return self._world.ranks

    def Barrier(self) -> None:
        self._world.barrier.wait()

    def allreduce(self, value: t.Any) -> t.Any:
        return sum(self._world.exchange(self._rank, value))

    def gather(self, value: t.Any, root: int) -> t.Any:
        everything = self._world.exchange(self._rank, value)
        return everything if self._rank == root else None

    def _all(self, send: t.Any, receive: t.Any) -> list[array.array[t.Any]]:
        source = receive if send is MPI.IN_PLACE else send
        return self._world.exchange(self._rank, None if source is None or source is MPI.IN_PLACE else _values(source))

    def _put(self, receive: t.Any, values: array.array[t.Any], at: int = 0) -> None:
        target = _values(receive)
        target[at : at + len(values)] = values
        if self._world.spoil is not None:
            self._world.spoil(target)

    def _reduced(self, every: list[array.array[t.Any]], op: str) -> array.array[t.Any]:
        result = every[0]
        for values in every[1:]:
            result = array.array(result.typecode, [REDUCTIONS[op](a, b) for a, b in zip(result, values)])
        return result

    def Allreduce(self, send: t.Any, receive: t.Any, op: str = "SUM") -> None:
        self._put(receive, self._reduced(self._all(send, receive), op))

    def Reduce(self, send: t.Any, receive: t.Any, op: str, root: int) -> None:
        every = self._all(send, receive)
        if self._rank == root:
            self._put(receive, self._reduced(every, op))

    def Bcast(self, data: t.Any, root: int) -> None:
        every = self._world.exchange(self._rank, _values(data))
        if self._rank != root:
            self._put(data, every[root])

    def Allgather(self, send: t.Any, receive: t.Any) -> None:
        count = len(_values(receive)) // self._world.ranks
        mine = slice(self._rank * count, (self._rank + 1) * count)
        every = self._world.exchange(self._rank, _values(receive)[mine] if send is MPI.IN_PLACE else _values(send))
        self._put(receive, sum(every[1:], every[0]))

    def Reduce_scatter_block(self, send: t.Any, receive: t.Any, op: str) -> None:
        whole = self._reduced(self._all(send, receive), op)
        count = len(whole) // self._world.ranks
        self._put(receive, whole[self._rank * count : (self._rank + 1) * count])

    def Alltoall(self, send: t.Any, receive: t.Any) -> None:
        every = self._all(send, receive)
        count = len(every[0]) // self._world.ranks
        mine = slice(self._rank * count, (self._rank + 1) * count)
        self._put(receive, sum((values[mine] for values in every[1:]), every[0][mine]))

    def Gather(self, send: t.Any, receive: t.Any, root: int) -> None:
        if send is MPI.IN_PLACE:
            count = len(_values(receive)) // self._world.ranks
            every = self._world.exchange(self._rank, _values(receive)[root * count : (root + 1) * count])
        else:
            every = self._world.exchange(self._rank, _values(send))
        if self._rank == root:
            self._put(receive, sum(every[1:], every[0]))

    def Scatter(self, send: t.Any, receive: t.Any, root: int) -> None:
        every = self._world.exchange(self._rank, None if send is None else _values(send))
        count = len(every[root]) // self._world.ranks
        if receive is not MPI.IN_PLACE:
            self._put(receive, every[root][self._rank * count : (self._rank + 1) * count])

    def Sendrecv(self, send: t.Any, to: int, tag: int, receive: t.Any, source: int) -> None:
        self._put(receive, self._world.exchange(self._rank, _values(send))[source])

    def Sendrecv_replace(self, data: t.Any, to: int, tag: int, source: int) -> None:
        self._put(data, self._world.exchange(self._rank, _values(data))[source])


def _values(buffer: t.Any) -> array.array[t.Any]:
    return t.cast("array.array[t.Any]", buffer if isinstance(buffer, array.array) else buffer[0])


class MPI:
    IN_PLACE = "in place"
    SUM, PROD, MAX, MIN = "SUM", "PROD", "MAX", "MIN"
    FLOAT, DOUBLE, INT, SIGNED_CHAR, UNSIGNED_CHAR = "F", "D", "I", "B", "U"
    LONG_LONG, UNSIGNED, UNSIGNED_LONG_LONG = "L", "N", "G"

    def __init__(self, comm: Comm) -> None:
        self.COMM_WORLD = comm

    @staticmethod
    def Get_library_version() -> str:
        return "Example MPI v1.0, built by nobody"


def play(
    arguments: list[str], ranks: int, spoil: t.Callable[[array.array[t.Any]], None] | None = None
) -> tuple[int, str]:
    """Run the program on *ranks* threads: (exit status of rank 0, what was printed)."""
    world = World(ranks, spoil)
    options = mpi.parser().parse_args(arguments)
    results: queue.Queue[tuple[int, t.Any]] = queue.Queue()

    def rank(number: int) -> None:
        try:
            results.put((number, mpi.run(MPI(Comm(world, number)), options)))
        except BaseException as error:
            world.barrier.abort()
            results.put((number, error))

    printed = io.StringIO()
    with redirect_stdout(printed):
        threads = [threading.Thread(target=rank, args=(number,)) for number in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    outcomes = dict(results.get() for _ in range(ranks))
    for outcome in outcomes.values():
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes[0], printed.getvalue()


SMALL = ["-b", "64", "-e", "4K", "-f", "4", "-n", "2", "-w", "1"]


@pytest.mark.parametrize("collective", sorted(FACTORS))
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_collective_is_right_and_reads_as_nccl_tests(collective: str, ranks: int, tmp_path: pathlib.Path) -> None:
    report = tmp_path / "report.json"
    status, text = play([collective, *SMALL, "-J", str(report)], ranks)
    assert status == 0
    parsed = parse_nccl_tests(text)
    assert parsed["completed"] and parsed["failure"] is None and parsed["validated"]
    assert parsed["collective"] == collective.replace("_", "")
    assert parsed["ranks"] == ranks
    assert parsed["out_of_bounds"] == [[0, "OK"]]
    from_json = parse_nccl_tests(report.read_text())
    assert from_json["completed"] and from_json["failure"] is None
    assert len(parsed["rows"]) == len(from_json["rows"]) == 4
    for printed, exact in zip(parsed["rows"], from_json["rows"]):
        assert printed[:4] == exact[:4] and printed[7] == exact[7] == 0 and printed[11] == exact[11]
        assert printed[4] == pytest.approx(exact[4], abs=0.01)
    for row in from_json["tables"][0]["rows"]:
        half = row["out_of_place"]
        assert half["algbw"] == pytest.approx(row["size"] / half["time_us"] / 1e3, rel=1e-6)
        assert half["busbw"] == pytest.approx(half["algbw"] * FACTORS[collective](ranks), rel=1e-6)
        assert half["per_iteration"]["min_us"] <= half["per_iteration"]["p50_us"] <= half["per_iteration"]["max_us"]


@pytest.mark.parametrize("datatype", sorted(mpi.TYPES))
@pytest.mark.parametrize("operation", mpi.OPERATIONS)
def test_every_type_and_operation(datatype: str, operation: str) -> None:
    status, text = play(["all_reduce", "-b", "128", "-e", "128", "-n", "1", "-d", datatype, "-o", operation], 3)
    assert status == 0, text
    assert parse_nccl_tests(text)["rows"][0][1:3] == [datatype, operation]


@pytest.mark.parametrize("collective", sorted(set(FACTORS) - {"scatter"}))
def test_wrong_data_are_counted(collective: str) -> None:
    def spoil(values: array.array[t.Any]) -> None:
        if len(values):
            values[0] += 1

    status, text = play([collective, *SMALL], 2, spoil)
    assert status == 1
    parsed = parse_nccl_tests(text)
    assert parsed["failure"] == "wrong_results"
    assert parsed["rows"][0][7] >= 1


def test_without_check_nothing_is_counted() -> None:
    _, text = play(["all_reduce", *SMALL, "-c", "0"], 2)
    assert not parse_nccl_tests(text)["validated"]


def test_a_part_of_a_buffer_has_its_own_values() -> None:
    """Data that went to the wrong rank or came shifted must differ from what is expected there."""
    assert mpi.pattern("f", 64, 0) != mpi.pattern("f", 64, 1)
    assert mpi.pattern("f", 64, 0) != mpi.pattern("f", 64, 0, offset=64)
    assert mpi.pattern("f", 300, 2, 40)[0:260] == mpi.pattern("f", 340, 2)[40:300]
    assert mpi.wrong_elements(array.array("i", [1, 2, 3]), array.array("i", [1, 9, 3])) == 1
    assert mpi.wrong_elements(array.array("i", [1, 2]), array.array("i", [1, 2, 3])) == 1


def test_percentiles_of_single_iterations() -> None:
    spread = mpi.spread([float(n) for n in range(1, 101)])
    assert (spread["min_us"], spread["p50_us"], spread["p99_us"], spread["max_us"]) == (1.0, 51.0, 100.0, 100.0)
    assert mpi.spread([3.0])["cv_pct"] == 0.0


def test_the_report_holds_no_environment(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_PSK", "planted-secret")
    report = tmp_path / "report.json"
    _, text = play(["all_reduce", *SMALL, "-J", str(report)], 2)
    assert "planted-secret" not in report.read_text() + text
    assert json.loads(report.read_text())["backend"] == "mpi"
