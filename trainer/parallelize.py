"""How a model is spread over ranks: an ordered recipe that the model itself knows nothing of."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from specs.job import JobSpec
from specs.layout import Layout
from trainer.model.llama import Transformer


def build_mesh(layout: Layout, device_type: str) -> DeviceMesh:
    """Return the mesh of all ranks, slowest-varying axis first, with the axes that are in use.

    `dp_shard` is always one of them. All ranks call it together, with a process group in place.
    """
    axes = {
        "pp": layout.pp,
        "dp_replicate": layout.dp_replicate,
        "dp_shard": layout.dp_shard,
        "cp": layout.cp,
        "tp": layout.tp,
    }
    used = {name: size for name, size in axes.items() if size > 1 or name == "dp_shard"}
    return init_device_mesh(device_type, tuple(used.values()), mesh_dim_names=tuple(used))


def parallelize(model: Transformer, mesh: DeviceMesh, spec: JobSpec, layout: Layout) -> None:
    """Spread a model, usually one on the meta device, over the mesh, in place.

    The order matters: what changes a single module comes before what wraps it, and sharding is
    last.
    """
    # One float32 rank has nothing to shard and nothing to cast. Sharding would still copy weights
    # and gradients: 4 % of a step of a model of 5 M parameters, and the memory of one layer.
    if layout.world_size > 1 or spec.training.param_dtype != "float32":
        shard(model, mesh, spec, layout)


def shard(model: Transformer, mesh: DeviceMesh, spec: JobSpec, layout: Layout) -> None:
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
    axes = ("dp_replicate", "dp_shard") if layout.dp_replicate > 1 else ("dp_shard",)
    fsdp = partial(fully_shard, mesh=mesh[axes], mp_policy=policy)
    reshard, reshard_last = reshard_after_forward(spec, layout)

    for layer in model.layers.values():
        fsdp(layer, reshard_after_forward=reshard)
    if model.output is not None:
        fsdp(model.tok_embeddings, reshard_after_forward=reshard)
        fsdp([model.norm, model.output], reshard_after_forward=reshard_last)
    # Tied embeddings are used first and last: they stay with the root, as does the final norm.
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


def set_gradient_sync(model: nn.Module, *, last_round: bool) -> None:
    """Have the next backward pass sum gradients over ranks, or only add them up on this rank.

    Called before each micro-batch of a step: the sum over ranks is taken once, in the last round.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last_round)
