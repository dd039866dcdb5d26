"""Counts one rank's dispatches in a step: operations, collectives, copies, casts, host syncs.

Needs only torch: torchtitan's interpreter has none of our packages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
KINDS = {
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
}
WITHOUT_PAYLOAD = ("barrier", "waittensor", "wraptensor")
SYNCS = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "_unique2", "masked_select"}
"""Operations with a result that the host needs, or a shape that depends on values."""
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "_scaled_mm"}
COPIES = {"copy_", "clone", "_to_copy", "cat", "stack", "_foreach_copy_"}
COPIES |= {"chunk_cat", "split_with_sizes_copy", "all_gather_copy_in"}  # of FSDP
ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
NO_WORK = ALLOCATIONS | {"detach", "lift_fresh", "set_", "_unsafe_view"}
NO_WORK |= {"resize_", "resize_storage_bytes_"}


class StepCounter(TorchDispatchMode):
    """Counts the operations of a block after tensor wrappers have been unwrapped.

    Views and allocations are omitted: they run no kernel. Bytes are those of the tensors that an
    operation reads and writes. The host reads the value 1 from every fake tensor.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and count it."""
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        name = func._schema.name.partition("::")[2]
        if name in SYNCS:
            self.counts["host syncs"] += 1
        if name == "_local_scalar_dense" and isinstance(args[0], FakeTensor):
            return 1.0 if args[0].is_floating_point() else 1
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        results = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        if func.namespace in COLLECTIVES:
            self._count_collective(name, tensors + results)
        elif results and not (name in NO_WORK or _is_view(func)) and not _on_meta(results):
            self.count_operation(name, tensors, results)
        elif func._schema.is_mutable and name not in NO_WORK:
            self.count_operation(name, tensors, [])
        return result

    def count_copy_to_device(self, tensor: torch.Tensor) -> None:
        """Count a copy of an input from the host; on a CPU there is none."""
        self.counts["host-device copies"] += 1
        self.counts["host-device bytes"] += _bytes(tensor)

    def _count_collective(self, name: str, tensors: Iterable[torch.Tensor]) -> None:
        plain = name.replace("_", "")
        if any(word in plain for word in WITHOUT_PAYLOAD):
            return
        kind = next(kind for word, kind in KINDS.items() if word in plain)
        self.counts[kind] += 1
        # The whole tensor is the output of an all-gather and the input of a reduce-scatter.
        self.counts[f"{kind} bytes"] += max(map(_bytes, tensors))

    def count_operation(
        self, name: str, tensors: list[torch.Tensor], results: list[torch.Tensor]
    ) -> None:
        """Count an operation by its name and the tensors that it reads and returns."""
        self.operations[name] += 1
        self.counts["operations"] += 1
        written = results or [t for t in tensors if t.dtype.is_floating_point]
        if name in PRODUCTS:
            self.counts["products"] += 1
            inner = tensors[name in ("addmm", "baddbmm")].shape[-1]
            self.counts["multiply-adds"] += inner * results[0].numel()
            return
        if "attention" in name:
            self.counts["attention"] += 1
            return
        self.counts["other bytes"] += sum(map(_bytes, _distinct([*tensors, *results])))
        if name in COPIES:
            self.counts["copies"] += 1
            self.counts["copied bytes"] += sum(map(_bytes, written))
        if name in COPIES and len({t.dtype for t in (*tensors, *results)}) > 1:
            self.counts["casts"] += 1
            self.counts["cast bytes"] += sum(map(_bytes, written))


def _is_view(func: Any) -> bool:
    """Return whether an operation only returns other views of its inputs."""
    returns = func._schema.returns
    return bool(returns) and all(
        value.alias_info is not None and not value.alias_info.is_write for value in returns
    )


def _on_meta(results: Iterable[torch.Tensor]) -> bool:
    """Return whether an operation only computes a shape, as DTensor does on meta tensors."""
    return any(tensor.is_meta for tensor in results)


def _distinct(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    yield from {id(tensor): tensor for tensor in tensors}.values()


def _bytes(tensor: torch.Tensor) -> int:
    return math.prod(tensor.shape) * tensor.element_size()
