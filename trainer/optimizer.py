"""The optimizer, and its state before the first step."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import AdamW

from specs.job import JobSpec


def build_optimizer(model: nn.Module, spec: JobSpec) -> AdamW:
    """Return AdamW over all parameters; matrices and embeddings decay, norms do not.

    The learning rate is that of the spec's peak until the loop sets another one.
    """
    section = spec.optimizer
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": section.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return AdamW(
        groups, lr=section.lr, betas=(section.beta1, section.beta2), eps=section.eps, fused=True
    )


def materialize_state(optimizer: AdamW) -> None:
    """Create the state that the first step would create: zero moments, zero steps.

    Saving or loading needs the state to be there. torch's way to make it is a hidden step, after
    which `step` is not what an optimizer without it would hold. Does nothing where it exists.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
