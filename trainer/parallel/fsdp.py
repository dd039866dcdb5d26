"""Sharded data parallelism: FSDP2, HSDP and plain replicas."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from trainer.models.base import Model
from trainer.models.ties import tied_outside
from trainer.parallel.mesh import fsdp_mesh
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout


def shard(model: Model, mesh: DeviceMesh, spec: JobSpec, layout: Layout) -> None:
    """Shard weights, gradients and optimizer states: FSDP, or HSDP with `dp_replicate` above 1.

    Gradients are *summed* over ranks: the loss is already divided by the tokens of the global
    batch, so that a rank with fewer sequences, or none, weighs as much as it should.
    """
    training = spec.training
    policy = MixedPrecisionPolicy(
        param_dtype=getattr(torch, training.param_dtype),
        reduce_dtype=getattr(torch, training.reduce_dtype),
        # Activations follow the weights' type by themselves, and the rotary angles stay float32.
        cast_forward_inputs=False,
    )
    offload = OffloadPolicy()
    if spec.optimizer.cpu_offload:
        offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    fsdp = partial(fully_shard, mesh=fsdp_mesh(mesh), mp_policy=policy, offload_policy=offload)
    reshard, reshard_last = reshard_after_forward(spec, layout)

    layers = list(model.layers.values())
    # A weight is sharded once: what a layer shares with the rest of the model stays with the root.
    whole = tied_outside(model, layers)
    for layer in (layer for layer in layers if layer not in whole):
        fsdp(layer, reshard_after_forward=reshard)
    # Tied embeddings are used first and last: they stay with the root, as does the final norm.
    if not model.tied:
        if model.tok_embeddings is not None:
            fsdp(model.tok_embeddings, reshard_after_forward=reshard)
        if model.norm is not None and model.output is not None:
            fsdp([model.norm, model.output], reshard_after_forward=reshard_last)
    fsdp(model, reshard_after_forward=reshard_last)

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # Otherwise the factor becomes a reduction of its own kind, which gloo does not have.
            module.set_force_sum_reduction_for_comms(True)


def reshard_after_forward(spec: JobSpec, layout: Layout) -> tuple[bool, bool]:
    """Return whether gathered weights are freed after forward: of the layers, of the last ones.

    `default` keeps the last ones, which backward needs at once, and under pipeline parallelism all
    of them, which the next micro-batch needs again.
    """
    match spec.parallelism.reshard_after_forward:
        case "always":
            return True, True
        case "never":
            return False, False
        case "default":
            return layout.pp == 1, False


def set_gradient_sync(model: nn.Module, spec: JobSpec, *, last_round: bool) -> None:
    """Say what the next backward pass does with gradients; called before each one of a step.

    Each pass sums them over the ranks that share a replica, so that none keeps them whole; the sum
    over replicas waits for the last round. With `reshard_after_forward="never"`, which buys less
    communication with memory, gradients stay whole until the last round too.
    """
    if not isinstance(model, FSDPModule):
        return
    if spec.parallelism.reshard_after_forward == "never":
        model.set_requires_gradient_sync(last_round)
    else:
        model.set_requires_all_reduce(last_round)


def reshard(model: nn.Module) -> None:
    """Free the gathered weights that a forward without a backward leaves behind."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
