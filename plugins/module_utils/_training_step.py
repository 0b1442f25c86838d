# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One rank of a short synthetic training that is measured: started by torchrun, it answers in lines on standard output.
PRIVATE to the collection.

Each training warms up, says which collectives a step issues, times steps, then lets the profiler see as many. torch,
transformers and peft are imported only here, on a node that has them.
"""

from __future__ import annotations

import collections
import datetime
import gc
import os
import resource
import statistics
import sys
import time
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils import (
    _node_sample,
    _training_model,
    _training_trace,
)
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._training_task import Task, Training, answer_line

#: what PyTorch says when memory runs out, on a GPU and without one
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
#: what a rank that ran out of memory ends with, and one that failed otherwise
MEMORY_STATUS, FAILED_STATUS = 17, 18
MIB = 1 << 20
#: bytes of an element of the messages that are timed alone
ITEM = 4
BATCHES = 3
#: messages of one size that go apart, and the pause before each
APART, PAUSE_S = 6, 0.02
#: side of the matrices that are multiplied meanwhile, some 0.2 ms on a GPU, and 2 ms of one core; and how many a GPU has queued
WORK_SIDE = {"nccl": 4096, "gloo": 256}
QUEUED = 3


class Rank:
    """This process among the others. device: cuda:N or cpu."""

    def __init__(self, task: Task) -> None:
        import torch

        self.task = task
        self.number, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.node = int(os.environ.get("GROUP_RANK", "0"))
        local = int(os.environ["LOCAL_RANK"])
        self.device = f"cuda:{local}" if task.backend == "nccl" else "cpu"
        if task.backend == "nccl":
            if local >= torch.cuda.device_count():
                raise ValueError(
                    f"this is rank {local} of a node on which PyTorch sees {torch.cuda.device_count()} GPUs"
                )
            torch.cuda.set_device(local)
        if task.threads:
            torch.set_num_threads(task.threads)
        self._bound_memory()

    def _bound_memory(self) -> None:
        import torch

        limit = self.task.memory_mb * MIB
        if not limit:
            return
        if self.task.backend == "nccl":
            total = torch.cuda.get_device_properties(self.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(limit / total, 1.0))
        else:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    def say(self, answer: t.Mapping[str, t.Any]) -> None:
        """One write a line, so that those of several ranks do not mix."""
        sys.stdout.flush()
        os.write(1, answer_line({"rank": self.number, "node": self.node, **answer}).encode())

    def wait(self) -> None:
        """Until everything that was started is done."""
        import torch

        if self.task.backend == "nccl":
            torch.cuda.synchronize()

    def meet(self) -> None:
        """Begin together: what a late rank costs the others is not the network's."""
        import torch.distributed as dist

        dist.barrier()
        self.wait()

    def gather(self, own: t.Any) -> list[t.Any]:
        import torch.distributed as dist

        everyone: list[t.Any] = [None] * self.ranks
        dist.all_gather_object(everyone, own)
        return everyone


def main(arguments: t.Sequence[str]) -> int:
    """arguments: the task as JSON."""
    task = Task.from_json(arguments[0])
    said: dict[str, t.Any] = {"rank": int(os.environ["RANK"]), "node": int(os.environ.get("GROUP_RANK", "0"))}
    what = "start"
    try:
        rank = Rank(task)
        _join(rank)
        rank.say({"versions": _versions(task), "ranks": rank.ranks, "device": _device_name(rank)})
        for training in task.trainings:
            what = training.name
            rank.say({"training": training.name, **measure(rank, training)})
        what = "messages alone"
        for priced in price(rank, task.prices) if task.prices else ():
            if rank.number == 0:
                rank.say(priced)
        _leave()
    except (Exception, KeyboardInterrupt) as error:  # whatever it is, the controller must hear which rank and why
        text = " ".join(f"{type(error).__name__}: {error}".split())[:600]
        memory = isinstance(error, MemoryError) or any(phrase in text.lower() for phrase in OUT_OF_MEMORY)
        kind = "out_of_memory" if memory else "failed"
        os.write(1, answer_line({**said, "problem": kind, "while": what, "text": text}).encode())
        # The others wait in a collective for this rank: an orderly end of the process group would wait for them in turn.
        os._exit(MEMORY_STATUS if memory else FAILED_STATUS)
    return 0


def _join(rank: Rank) -> None:
    import torch
    import torch.distributed as dist

    limit = datetime.timedelta(seconds=rank.task.timeout_s)
    device = {"device_id": torch.device(rank.device)} if rank.task.backend == "nccl" else {}
    dist.init_process_group(rank.task.backend, timeout=limit, **device)


def _leave() -> None:
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()


def _versions(task: Task) -> dict[str, str]:
    import peft
    import torch
    import transformers

    said = {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__}
    if task.backend == "nccl":
        said["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return said


def _device_name(rank: Rank) -> str:
    import torch

    return torch.cuda.get_device_name(rank.device) if rank.task.backend == "nccl" else "cpu"


def measure(rank: Rank, training: Training) -> dict[str, t.Any]:
    """{issued: [[collective, bytes, count]] of one step, steps: a mapping a repeat, messages_s: how long each message took once
    all ranks were there, node_delta: what the node's processors and counters did while steps were timed, memory_mb: at most}.

    A repeat's step_s and CPU use are of a step that no profiler slowed; communication_s, exposed_s, compute_s and
    profiled_s of one that it saw; transfer_s is what its messages took once all ranks were there. Times in s.
    """
    found = _train(rank, training)
    gc.collect()  # of the model nothing is left before memory is counted anew
    return {**found, "memory_mb": _peak_memory(rank)}


def _train(rank: Rank, training: Training) -> dict[str, t.Any]:
    import torch

    whole = _training_model.build(training, rank.device)
    vocabulary = whole.get_input_embeddings().num_embeddings
    model = _training_model.spread(whole, training, rank.ranks, rank.device)
    optimizer = torch.optim.AdamW(_training_model.trained(model), lr=1e-5)
    shape = (training.batch, training.sequence)
    tokens = torch.randint(0, vocabulary, shape, device=rank.device)

    def step() -> None:
        _training_model.step(model, optimizer, training, tokens)

    for _unused in range(training.warmup):
        step()
    issued = issued_by(step)
    fs = RootedFs("/")
    before = _node_sample.take(fs)
    steps: list[dict[str, t.Any]] = [_timed(rank, step) for _unused in range(training.repeats)]
    node = _node_sample.difference(before, _node_sample.take(fs))
    _profiled(rank, step)  # a profiler's first session is slow to start
    for one in steps:
        one.update(_profiled(rank, step))
    each: list[list[float]] = []
    for one, everyone in zip(steps, zip(*rank.gather(steps))):
        one["transfer_s"] = _training_trace.transfer_s(everyone)
        each.append(_training_trace.transfers_s([other["messages_s"] for other in everyone]))
    for one in steps:
        del one["messages_s"]
    messages = [statistics.median(times) for times in zip(*each)]
    return {"issued": issued, "steps": steps, "messages_s": messages, "node_delta": node}


def issued_by(step: t.Callable[[], None]) -> list[list[t.Any]]:
    """[[collective, bytes, count]] of the collectives that one call of *step* issues."""
    from ansible_collections.gpufabric.cluster.plugins.module_utils._issued_collectives import Recorder

    with Recorder() as recorder:
        step()
    return [[collective, size, count] for (collective, size), count in collections.Counter(recorder.issued).items()]


def _timed(rank: Rank, step: t.Callable[[], None]) -> dict[str, float]:
    """step_s, and cpu_cores: how many cores this rank kept busy meanwhile."""
    rank.meet()
    own, began = time.process_time(), time.perf_counter()
    step()
    rank.wait()
    seconds = time.perf_counter() - began
    return {"step_s": seconds, "cpu_cores": (time.process_time() - own) / seconds}


def _profiled(rank: Rank, step: t.Callable[[], None]) -> dict[str, t.Any]:
    """The trace's summary of one step, and profiled_s, its time. RuntimeError where the profiler saw no GPU at work."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = rank.task.backend == "nccl"
    rank.meet()
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        began = time.perf_counter()
        step()
        rank.wait()
        seconds = time.perf_counter() - began
    events = profiler.profiler.kineto_results.events()
    found = _training_trace.summary(_activity(event) for event in events)
    if on_gpu and not found["compute_s"]:
        raise RuntimeError(
            "torch.profiler saw no GPU kernels: CUPTI cannot be used here (another profiler, or no permission)"
        )
    return {**found, "profiled_s": seconds}


def _activity(event: t.Any) -> _training_trace.Activity:
    begin = event.start_ns()
    kind = event.activity_type() if hasattr(event, "activity_type") else ""
    on_device = event.device_type().name == "CUDA"
    return _training_trace.Activity(event.name(), kind, on_device, begin, begin + event.duration_ns())


def _peak_memory(rank: Rank) -> int:
    """MiB at most so far: of the GPU's memory, or of this process's."""
    import torch

    if rank.task.backend != "nccl":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    most = int(torch.cuda.max_memory_allocated()) // MIB
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return most


def price(rank: Rank, prices: t.Mapping[str, t.Sequence[int]]) -> list[dict[str, t.Any]]:
    """[{price: collective, size_bytes, time_us, apart_us}] of messages that no training sends, size by size.

    time_us: as nccl-tests times it, messages that follow each other at once, which is how they go where a step waits for its
    communication. apart_us: each by itself beside computation, after a pause, which is how they go where computation gives
    them time; threads and connections that slept then have to wake. Both are medians; None where it cannot be told.
    """
    wanted = [(collective, size) for collective, sizes in prices.items() for size in sizes]
    sent = [_sender(rank, collective, size) for collective, size in wanted]
    following = [_following(rank, send) for send, _bytes in sent]
    apart = _apart(rank, [send for send, _bytes in sent])
    return [
        {"price": collective, "size_bytes": size, "time_us": 1e6 * seconds, "apart_us": alone and 1e6 * alone}
        for (collective, _size), (_send, size), seconds, alone in zip(wanted, sent, following, apart)
    ]


def _sender(rank: Rank, collective: str, size: int) -> tuple[t.Callable[[], t.Any], int]:
    """What sends one message of about *size* bytes and returns its handle; and how large it really is, in whole elements."""
    import torch
    import torch.distributed as dist

    divided = collective in ("all_gather", "reduce_scatter")
    count = max(size // ITEM, 1)
    own = max(count // rank.ranks, 1)
    full = torch.zeros(own * rank.ranks if divided else count, dtype=torch.float32, device=rank.device)
    share = torch.zeros(own if divided else 0, dtype=torch.float32, device=rank.device)
    sends: dict[str, t.Callable[[], t.Any]] = {
        "all_reduce": lambda: dist.all_reduce(full, async_op=True),
        "all_gather": lambda: dist.all_gather_into_tensor(full, share, async_op=True),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(share, full, async_op=True),
        "broadcast": lambda: dist.broadcast(full, 0, async_op=True),
    }
    return sends[collective], full.numel() * ITEM


def _following(rank: Rank, send: t.Callable[[], t.Any]) -> float:
    """Seconds a message: the mean of some that follow each other, the median of BATCHES such means."""
    means = []
    for batch in range(BATCHES + 1):  # the first warms up
        rank.meet()
        began = time.perf_counter()
        for _unused in range(rank.task.iterations if batch else 2):
            send().wait()
        rank.wait()
        means.append((time.perf_counter() - began) / rank.task.iterations)
    return statistics.median(means[1:])


def _apart(rank: Rank, sends: t.Sequence[t.Callable[[], t.Any]]) -> list[float | None]:
    """Seconds a message of each, as the profiler sees it on the rank that came last to it."""
    import torch

    on_gpu = rank.task.backend == "nccl"
    side = WORK_SIDE[rank.task.backend]
    matrix = torch.ones((side, side), dtype=torch.bfloat16 if on_gpu else torch.float32, device=rank.device)
    under_way: list[t.Any] = []

    def compute_until(over: t.Callable[[], bool]) -> None:
        """On a GPU some are always queued, as in training: a message has to find its place among them."""
        while not over():
            torch.mm(matrix, matrix)
            if on_gpu:
                under_way.append(torch.cuda.Event())
                under_way[-1].record()
                if len(under_way) > QUEUED:
                    under_way.pop(0).synchronize()

    def compute_for(seconds: float) -> None:
        end = time.perf_counter() + seconds
        compute_until(lambda: time.perf_counter() >= end)

    def step() -> None:
        for send in sends:
            for _unused in range(APART):
                compute_for(PAUSE_S)
                handle = send()
                if on_gpu:  # gloo never says that a reduce_scatter is completed
                    compute_until(handle.is_completed)
                handle.wait()

    shortest = _training_trace.transfers_s([found["messages_s"] for found in rank.gather(_profiled(rank, step))])
    if len(shortest) != APART * len(sends):
        return [None] * len(sends)
    return [statistics.median(shortest[number * APART :][:APART]) for number in range(len(sends))]
