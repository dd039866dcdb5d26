"""The tensors of a checkpoint: their names, and their bytes as `torch.save` writes them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import IO, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.models.ties import aliases
from trainer.parallel.quantize import high_precision

WEIGHTS = "model."
OPTIMIZER = "optimizer."
LARGEST_PIECE = 64 * 2**20
"""Bytes that one rank sends to another at once, unless a limit of memory is lower."""


def weight_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights (`model.<name>`), in the model's own memory: reading into them loads it.

    A tied parameter appears once, under its first name in the order of the module, which
    `named_parameters` gives too: weight and optimizer state agree.
    """
    tied = tied_weights(model)
    return {
        stored: high_precision(tensor)
        for name, tensor in model.state_dict().items()
        if (stored := f"{WEIGHTS}{name}") not in tied
    }


def tied_weights(model: nn.Module) -> dict[str, str]:
    """Return the further names of tied parameters, each with the one that a checkpoint has."""
    return {f"{WEIGHTS}{name}": f"{WEIGHTS}{first}" for name, first in aliases(model)}


def train_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return weights (`model.<name>`) and optimizer state (`optimizer.<name>.exp_avg`, ...).

    The memory is that of model and optimizer: reading into the tensors loads both in place.
    Hyper-parameters are left out; they belong to the spec. The names equal those of
    `torch.distributed.checkpoint.state_dict`, which takes ten times as long.

    The optimizer's state must exist (`materialize_state`).
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    tensors = weight_tensors(model)
    for parameter in (each for group in optimizer.param_groups for each in group["params"]):
        state = optimizer.state.get(parameter, {})
        materialized = state or not parameter.requires_grad
        assert materialized, "materialize the optimizer's state before it is saved or loaded"
        for key, value in state.items():
            tensors[f"{OPTIMIZER}{names[parameter]}.{key}"] = value
    return tensors


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's memory of a tensor."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


class TrainTensors:
    """`train_tensors`, kept while no tensor moves in memory, so that the plan of a save is kept.

    The training thread calls it at each save. Looking at the memory of parameters, buffers and
    optimizer state takes a fraction of the time of listing them by name.
    """

    def __init__(self) -> None:
        self._memory = _Memory([], [])
        self._tensors: dict[str, Tensor] = {}
        self._aliases = False
        self._buffers: list[str] = []

    def __call__(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
        """Return the same dictionary as before, unless a tensor has moved to other memory.

        FSDP moves uneven shards at their first forward pass. The dictionary keeps the memory of its
        tensors: no other tensor gets an address in it.
        """
        if self._aliases and _memory(model, optimizer) == self._memory:
            return self._tensors
        tensors = train_tensors(model, optimizer)
        if _views(tensors.values()) != _views(self._tensors.values()):
            self._tensors = tensors
            parameters = {f"{WEIGHTS}{name}" for name, _ in model.named_parameters()}
            self._buffers = [
                name for name in tensors if name.startswith(WEIGHTS) and name not in parameters
            ]
        self._memory = _memory(model, optimizer)
        # A hook of a module's state may make tensors of its own, whose values are of one moment.
        self._aliases = {*map(_address, tensors.values())} <= {*self._memory.addresses}
        return self._tensors

    def copied_buffers(self) -> dict[str, Tensor]:
        """Return copies of this rank's part of the saved buffers, which a forward pass may change.

        The families have no such buffers, a batch norm has.
        """
        return {name: local_part(self._tensors[name]).clone() for name in self._buffers}


class _Memory(NamedTuple):
    """Where the tensors of model and optimizer lie."""

    addresses: list[int]
    """Of parameters, buffers and optimizer state of this rank."""
    buffers: list[_View]
    """Code of a model may replace a buffer by another view of the same memory, such as a longer
    part of it; nothing does that with parameters, and to look at all would take five times as
    long."""


def _memory(model: nn.Module, optimizer: Optimizer) -> _Memory:
    groups = list(optimizer.state.values())
    buffers: list[Tensor | None] = []
    modules: list[nn.Module | None] = [model]
    for module in modules:  # grows; in a quarter of the time of `model.modules()`
        if module is None:
            continue
        if module._parameters:
            groups.append(module._parameters)
        if module._buffers:
            groups.append(module._buffers)
            buffers += module._buffers.values()
        modules += module._modules.values()
    # The training thread waits: most tensors are plain ones, or plain ones in a DTensor.
    tensors = [t for group in groups for t in group.values() if t is not None]
    local = [t._local_tensor if type(t) is DTensor else t for t in tensors]
    addresses = [t.data_ptr() if type(t) is Tensor else _address(t) for t in local]
    return _Memory(addresses, _views(t for t in buffers if t is not None))


_View = tuple[int, torch.Size, tuple[int, ...], torch.dtype]


def _views(tensors: Iterable[Tensor]) -> list[_View]:
    """Return address, shape, strides and type of each tensor; a DTensor has the shape of all."""
    return [(_address(t), t.shape, t.stride(), t.dtype) for t in tensors]


def _address(tensor: Tensor) -> int:
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    if type(local) not in (Tensor, nn.Parameter):
        local = getattr(local, "_tensor", local)  # as `high_precision`
    return local.data_ptr()


class TensorFrame(NamedTuple):
    """`head + numbers + tail` is the file that `torch.save` writes of a tensor."""

    head: bytes
    tail: bytes


@lru_cache(maxsize=65_536)
def frame_of(dtype: torch.dtype, shape: torch.Size) -> TensorFrame:
    """Return the frame of a contiguous tensor, the same for all of its type and shape.

    `torch.save` itself writes it, of a tensor whose memory is reserved and never touched.
    """
    tensor = torch.empty(shape, dtype=dtype)
    recorder = _Recorder(tensor)
    with without_zip_checksums():
        torch.save(tensor, cast(IO[bytes], recorder))
    assert recorder.numbers == tensor.nbytes, "torch.save writes a tensor's memory unchanged"
    return TensorFrame(bytes(recorder.head), bytes(recorder.tail))


@contextmanager
def without_zip_checksums() -> Iterator[None]:
    """Turn off the CRC-32 of `torch.save`: with it a save takes twice as long."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


class _Recorder(io.IOBase):
    """A file that keeps all written bytes except those of the tensor's own memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._start = tensor.data_ptr()
        self._end = self._start + tensor.nbytes
        self.head, self.tail = bytearray(), bytearray()
        self.numbers = 0

    def write(self, data: memoryview) -> int:
        address = np.frombuffer(data, np.uint8).ctypes.data if data.nbytes else 0
        if self._start <= address < self._end:
            self.numbers += data.nbytes
        elif self.numbers:
            self.tail += data
        else:
            self.head += data
        return data.nbytes

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return len(self.head) + self.numbers + len(self.tail)


def byte_view(tensor: Tensor) -> Tensor:
    """Return the memory of a contiguous CPU tensor as bytes, uint8 `[n]`."""
    return tensor.reshape(-1).view(torch.uint8)


def memory_of(bytes_: Tensor) -> memoryview:
    """Return the memory of a uint8 tensor `[n]`, to write from or read into."""
    return memoryview(cast(Any, bytes_.numpy()))
