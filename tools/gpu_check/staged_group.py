"""A process group for tests, in which gloo runs every collective on copies in the host's memory.

NCCL refuses several ranks on one GPU. With this group ranks share a GPU, and layouts compute with
its kernels. Copies wait for the device, and collectives run in sequence, so only the numbers are
meaningful, not the speed. Tensors of a CPU are copied by the same code.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import GroupName
from torch.utils._pytree import tree_flatten, tree_map_only

BACKEND = "staged"
# Names of the collectives in several versions of torch; the first argument is the output.
COLLECTIVES = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
)


class StagedGroup(dist.ProcessGroup):
    """Runs collectives with a gloo group, on copies of the tensors."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # no backend of its own
        self._gloo = dist.ProcessGroup(store, rank, size)
        kind = dist.ProcessGroup.BackendType.GLOO
        self._gloo._set_default_backend(kind)
        backend = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        backend._set_sequence_number_for_group()
        self._gloo._register_backend(torch.device("cpu"), kind, backend)

    def getBackendName(self) -> str:  # noqa: N802 (torch calls it)
        """Return the name under which this backend is registered."""
        return BACKEND

    @property
    def group_name(self) -> GroupName:
        """Name under which torch registered the group; the inherited name would be a backend's."""
        return GroupName(dist.distributed_c10d._world.pg_names[self])

    def barrier(self, *_: Any, **__: Any) -> dist.Work:
        """Wait for all ranks on the host; device options are ignored."""
        return self._gloo.allreduce([torch.zeros(1)])

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> dist.Work:
        """Send a copy of each tensor; gloo keeps the copy until it is sent."""
        return self._gloo.send([_copy(tensor) for tensor in tensors], rank, tag)

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> dist.Work:
        """Receive into copies; `wait` on the result writes the copies to the tensors."""
        copies = [_copy(tensor) for tensor in tensors]
        return _Received(self._gloo.recv(copies, rank, tag), copies, tensors)


def _collective(name: str) -> Any:
    def run(self: StagedGroup, written: Any, *others: Any, **options: Any) -> dist.Work:
        copies = tree_map_only(Tensor, _copy, written)
        given = tree_map_only(Tensor, _copy, others)
        work: dist.Work = getattr(self._gloo, name)(copies, *given, **options)
        work.wait()
        for tensor, copy in zip(_tensors(written), _tensors(copies), strict=True):
            tensor.detach().copy_(copy)
        return work

    return run


for _name in COLLECTIVES:
    if hasattr(dist.ProcessGroup, _name):
        setattr(StagedGroup, _name, _collective(_name))


class _Received(dist.Work):
    """A message that is being received."""

    def __init__(self, work: dist.Work, copies: list[Tensor], tensors: list[Tensor]) -> None:
        super().__init__()
        self._work, self._copies, self._tensors = work, copies, tensors

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the message, and write it to the tensors."""
        self._work.wait() if timeout == timedelta(0) else self._work.wait(timeout)
        for tensor, copy in zip(self._tensors, self._copies, strict=True):
            tensor.detach().copy_(copy)
        return True

    def is_completed(self) -> bool:
        """Return whether the message has arrived."""
        return self._work.is_completed()


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, Tensor)]


def register() -> None:
    """Register the backend `staged` for CPUs and GPUs; call this once per process."""
    dist.Backend.register_backend(BACKEND, StagedGroup, devices=["cpu", "cuda"])
