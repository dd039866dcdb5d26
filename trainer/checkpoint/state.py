"""What a checkpoint holds of model and optimizer: one flat dictionary of named tensors."""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.models.ties import aliases
from trainer.parallel.quantize import high_precision

WEIGHTS = "model."
OPTIMIZER = "optimizer."


def weight_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights (`model.<name>`): the very memory, so that reading loads in place.

    A tied parameter is there once, under its first name in the order of the module: the one that
    `named_parameters` gives, under which the optimizer's state is stored too.
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

    These are the very tensors of model and optimizer: reading into them loads both in place.
    Hyper-parameters are left out; they belong to the spec, not to the state. Names are those that
    `torch.distributed.checkpoint.state_dict` gives, which takes ten times as long for them.

    The optimizer's state must exist.
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


class TrainTensors:
    """`train_tensors`, the very same as long as no memory has moved: plans made for them hold."""

    def __init__(self) -> None:
        self._memory: list[int] = []
        self._tensors: dict[str, Tensor] = {}

    def __call__(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
        """Return the same dictionary as before, unless a tensor has moved to other memory.

        Some do: FSDP gives uneven shards other memory at their first forward pass.
        """
        tensors = train_tensors(model, optimizer)
        memory = [_address(tensor) for tensor in tensors.values()]
        if memory != self._memory:
            self._tensors, self._memory = tensors, memory
        return self._tensors


def _address(tensor: Tensor) -> int:
    return (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).data_ptr()
