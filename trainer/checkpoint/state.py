"""What a checkpoint holds of model and optimizer: one flat dictionary of named tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.quantize import high_precision

WEIGHTS = "model."
OPTIMIZER = "optimizer."
_STATE = "state."


def weight_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights (`model.<name>`): the very memory, so that reading loads in place."""
    weights = cast(dict[str, Tensor], get_model_state_dict(model))
    return {f"{WEIGHTS}{name}": high_precision(tensor) for name, tensor in weights.items()}


def train_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return weights (`model.<name>`) and optimizer state (`optimizer.<name>.exp_avg`, ...).

    These are the very tensors of model and optimizer: reading into them loads both in place.
    Hyper-parameters are left out; they belong to the spec, not to the state.

    The optimizer's state must exist. For an optimizer without, PyTorch runs a hidden step to make
    one, which leaves the step counters at 1 and so changes what is trained afterwards.
    """
    assert all(
        parameter in optimizer.state
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    ), "materialize the optimizer's state before it is saved or loaded"
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    state = cast(dict[str, Tensor], get_optimizer_state_dict(model, optimizer, options=options))
    tensors = weight_tensors(model)
    for name, tensor in state.items():
        if name.startswith(_STATE):
            tensors[f"{OPTIMIZER}{name.removeprefix(_STATE)}"] = tensor
    return tensors


class TrainTensors:
    """`train_tensors`, asked of PyTorch once: names and shards take long to find."""

    def __init__(self) -> None:
        self._memory: list[int] = []
        self._tensors: dict[str, Tensor] = {}

    def __call__(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
        """Return the same dictionary as before, unless a tensor has moved to other memory.

        Some do: FSDP gives uneven shards other memory at their first forward pass.
        """
        memory = [_address(tensor) for tensor in _every_tensor(model, optimizer)]
        if memory != self._memory:
            self._tensors, self._memory = train_tensors(model, optimizer), memory
        return self._tensors


def _every_tensor(model: nn.Module, optimizer: Optimizer) -> Iterator[Tensor]:
    yield from model.state_dict(keep_vars=True).values()
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))


def _address(tensor: Tensor) -> int:
    plain = high_precision(tensor)
    return (plain._local_tensor if isinstance(plain, DTensor) else plain).data_ptr()
