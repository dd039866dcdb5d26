"""What a checkpoint holds of model and optimizer: one flat dictionary of named tensors."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.optim import Optimizer

from trainer.quantize import high_precision

WEIGHTS = "model."
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
            tensors[f"optimizer.{name.removeprefix(_STATE)}"] = tensor
    return tensors
