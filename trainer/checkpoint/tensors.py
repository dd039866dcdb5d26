"""The tensors of a checkpoint: their names, and their bytes in the format of `torch.save`."""

from __future__ import annotations

import gc
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from operator import is_, itemgetter
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
"""Maximum number of bytes per message between ranks, unless a memory limit requires less."""


def weight_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights, named `model.<name>`, in the model's own memory, which a load fills.

    A tied parameter appears once, under its first name in module order, as in `named_parameters`.
    So weights have the same names as optimizer state.
    """
    tied = tied_weights(model)
    return {
        stored: high_precision(tensor)
        for name, tensor in model.state_dict().items()
        if (stored := f"{WEIGHTS}{name}") not in tied
    }


def tied_weights(model: nn.Module) -> dict[str, str]:
    """Return the additional names of tied parameters, each with the parameter's checkpoint name."""
    return {f"{WEIGHTS}{name}": f"{WEIGHTS}{first}" for name, first in aliases(model)}


def train_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return weights (`model.<name>`) and optimizer state (`optimizer.<name>.exp_avg`, ...).

    The tensors use the memory of model and optimizer, so reading into the tensors loads both in
    place. Hyper-parameters are omitted, because the spec holds them. The names equal those of
    `torch.distributed.checkpoint.state_dict`, which takes ten times as long.

    The optimizer's state must already exist (`materialize_state`).
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
    """Return the part of a tensor in this rank's memory."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


class TrainTensors:
    """Caches `train_tensors` while no tensor moves in memory, so that saves can reuse their plan.

    The training thread calls this at each save. Checking for moved tensors is much faster than
    listing all tensors by name.
    """

    def __init__(self) -> None:
        self._places: _Places | None = None
        self._tensors: dict[str, Tensor] = {}
        self._buffers: list[str] = []

    def __call__(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
        """Return the same dictionary as before, unless a tensor has moved in memory.

        FSDP moves uneven shards during their first forward pass. The dictionary keeps the memory of
        its tensors alive, so that no other tensor can get the same address.
        """
        if self._places is not None and self._places.hold(model, optimizer):
            return self._tensors
        tensors = train_tensors(model, optimizer)
        same_names = [*tensors] == [*self._tensors]
        if same_names and _views(tensors.values()) == _views(self._tensors.values()):
            self._tensors.update(tensors)  # new objects in the same memory: plans stay valid
        else:
            self._tensors = tensors
            parameters = {f"{WEIGHTS}{name}" for name, _ in model.named_parameters()}
            self._buffers = [
                name for name in tensors if name.startswith(WEIGHTS) and name not in parameters
            ]
        places = _Places(model, optimizer)
        # A hook for a module's state may create tensors that are valid only at one moment.
        self._places = places if places.include(tensors.values()) else None
        return self._tensors

    def copied_buffers(self) -> dict[str, Tensor]:
        """Return copies of this rank's part of saved buffers that a forward pass may change.

        The built-in model families have no such buffers, but a batch norm has.
        """
        return {name: local_part(self._tensors[name]).clone() for name in self._buffers}


class _Places:
    """The tensors of a model and its optimizer, with their places in memory.

    The training thread waits for `hold`. Most of the time of `hold` goes into reads of uncached
    memory. Therefore `hold` reads the dictionaries of modules and tensors, but only few of the
    objects in these dictionaries. The objects, including replaced buffers, stay alive until the
    next listing, so that no other object gets their identity.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        modules: list[nn.Module] = [model]
        for module in modules:  # the loop appends to the list while iterating
            modules += [child for child in module._modules.values() if child is not None]
        self._model, self._optimizer, self._state = model, optimizer, optimizer.state
        self._modules = [module.__dict__ for module in modules]
        self._dictionaries: list[dict[Any, Any]] = [
            *chain.from_iterable(map(_THREE, self._modules)),
            optimizer.state,
            *optimizer.state.values(),
        ]
        self._objects = self._referred()
        # Weights are listed as copies that `state_dict` makes by `detach`, so their addresses are
        # compared. The optimizer's tensors are listed themselves, because a save reads their
        # addresses again. A model may replace a buffer by another view of the same memory, such as
        # a longer part.
        self._parameters = _each(module["_parameters"] for module in self._modules)
        self._buffers = _each(module["_buffers"] for module in self._modules)
        self._addresses = _addresses(self._parameters)
        self._views = _views(self._buffers)

    def hold(self, model: nn.Module, optimizer: Optimizer) -> bool:
        """Return whether no object was added, removed or replaced, and no weight has moved."""
        if not (
            model is self._model and optimizer is self._optimizer and optimizer.state is self._state
        ):
            return False
        # `del` of a part of a `ModuleList`, even of an empty part, replaces its dictionary.
        in_use = chain.from_iterable(map(_THREE, self._modules))
        objects = self._referred()
        return (
            all(map(is_, in_use, self._dictionaries))
            and len(objects) == len(self._objects)
            and all(map(is_, objects, self._objects))  # `==` would compare the values of tensors
            and _addresses(self._parameters) == self._addresses
            and _views(self._buffers) == self._views
        )

    def include(self, tensors: Iterable[Tensor]) -> bool:
        """Return whether each tensor lies in the memory of a tensor in the dictionaries.

        False for TorchScript modules, because `hold` cannot see changes in their mappings.
        """
        kept = [t for t in self._objects if isinstance(t, Tensor)]
        return all(isinstance(each, dict) for each in self._dictionaries) and (
            {*map(_address, tensors)} <= {*map(_address, kept)}
        )

    def _referred(self) -> list[object]:
        # Returns the values of each dictionary, in a quarter of the time that `values()` takes.
        return gc.get_referents(*self._dictionaries)


_THREE = itemgetter("_modules", "_parameters", "_buffers")


def _each(dictionaries: Iterable[dict[str, Tensor | None]]) -> list[Tensor]:
    return [t for tensors in dictionaries for t in tensors.values() if t is not None]


def _addresses(tensors: Iterable[Tensor]) -> list[int]:
    local = [t._local_tensor if type(t) is DTensor else t for t in tensors]
    return [t.data_ptr() if type(t) is Tensor else _address(t) for t in local]


_View = tuple[int, torch.Size, tuple[int, ...], torch.dtype]


def _views(tensors: Iterable[Tensor]) -> list[_View]:
    """Return address, shape, strides and dtype of each tensor; a DTensor's shape is global."""
    return [(_address(t), t.shape, t.stride(), t.dtype) for t in tensors]


def _address(tensor: Tensor) -> int:
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    if type(local) not in (Tensor, nn.Parameter):
        local = getattr(local, "_tensor", local)  # as in `high_precision`
    return local.data_ptr()


class TensorFrame(NamedTuple):
    """The bytes that `torch.save` puts around a tensor's elements: `head + elements + tail`."""

    head: bytes
    tail: bytes


@lru_cache(maxsize=65_536)
def frame_of(dtype: torch.dtype, shape: torch.Size) -> TensorFrame:
    """Return the frame of a contiguous tensor; it depends only on dtype and shape.

    To get the frame, `torch.save` saves a tensor with memory that is reserved but not touched.
    """
    tensor = torch.empty(shape, dtype=dtype)
    recorder = _Recorder(tensor)
    with without_zip_checksums():
        torch.save(tensor, cast(IO[bytes], recorder))
    assert recorder.numbers == tensor.nbytes, "torch.save writes a tensor's memory unchanged"
    return TensorFrame(bytes(recorder.head), bytes(recorder.tail))


@contextmanager
def without_zip_checksums() -> Iterator[None]:
    """Turn off the CRC-32 of `torch.save`, which would double the time of a save."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


class _Recorder(io.IOBase):
    """A file that keeps all written bytes except those in the memory of the tensor."""

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
    """Return the memory of a contiguous CPU tensor as bytes, a uint8 tensor `[n]`."""
    return tensor.reshape(-1).view(torch.uint8)


def memory_of(bytes_: Tensor) -> memoryview:
    """Return the memory of a uint8 tensor `[n]`, for reads and writes."""
    return memoryview(cast(Any, bytes_.numpy()))
