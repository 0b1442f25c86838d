# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which collectives PyTorch issues, seen in its dispatcher, whoever calls them: DDP's reducer in C++, FSDP in Python.
PRIVATE to the collection.
"""

from __future__ import annotations

import typing as t

try:
    import torch
    from torch.distributed.tensor import DTensor
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError:  # only a node that trains has it
    torch = None
    DTensor = TorchDispatchMode = object

#: operators of the namespaces c10d and _c10d_functional, by nccl-tests' name of the collective
COLLECTIVES = {
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "broadcast_": "broadcast",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_": "reduce",
}
#: operators that send nothing that is worth counting
SILENT = ("wait_tensor", "barrier", "_wrap_tensor_autograd")


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Collects (collective, bytes of its whole buffer) of every collective that is issued while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.issued: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: t.Any, types: t.Any, args: t.Any = (), kwargs: t.Any = None) -> t.Any:
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # let it unfold into plain tensors, whose collectives come here again
        if func.namespace in ("c10d", "_c10d_functional"):
            name = func._schema.name.partition("::")[2]
            if name not in SILENT:
                self.issued.append((COLLECTIVES.get(name, name), max((_bytes(one) for one in args), default=0)))
        return func(*args, **(kwargs or {}))


def _bytes(given: t.Any) -> int:
    if isinstance(given, torch.Tensor):
        return int(given.numel() * given.element_size())
    return sum(map(_bytes, given)) if isinstance(given, (list, tuple)) else 0
