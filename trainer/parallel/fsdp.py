"""Data parallelism: FSDP2, HSDP, and plain replicas, which are HSDP with one shard."""

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

from trainer.models.base import DataDependence, Model
from trainer.models.ties import tied_outside
from trainer.parallel.mesh import fsdp_mesh
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout


def shard(model: Model, mesh: DeviceMesh, *, spec: JobSpec, layout: Layout) -> None:
    """Shard weights, gradients and optimizer states by FSDP, or by HSDP if `dp_replicate` > 1.

    Gradients are *summed* over ranks, not averaged. The sum is exact even if some ranks have fewer
    sequences or none, because the loss is already divided by the number of tokens in the global
    batch.
    """
    training = spec.training
    policy = MixedPrecisionPolicy(
        param_dtype=getattr(torch, training.param_dtype),
        reduce_dtype=getattr(torch, training.reduce_dtype),
        # Activations get the dtype of the weights without this option, and rotary angles must stay
        # float32.
        cast_forward_inputs=False,
    )
    offload = OffloadPolicy()
    if spec.optimizer.cpu_offload:
        offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    fsdp = partial(fully_shard, mesh=fsdp_mesh(mesh), mp_policy=policy, offload_policy=offload)
    reshard, reshard_last = reshard_after_forward(spec, layout)

    everywhere = model.data_dependence == DataDependence.ANYWHERE
    layers = [] if everywhere else list(model.layers.values())
    # FSDP can shard a parameter only once, so a layer that shares one with another module joins the
    # root's group.
    whole = tied_outside(model, layers)
    for layer in (layer for layer in layers if layer not in whole):
        fsdp(layer, reshard_after_forward=reshard)
    # A tied embedding is used first and last, so it stays in the root's group with the final norm.
    if not model.tied:
        if model.tok_embeddings is not None:
            # The gradient of a plain embedding needs only the tokens; the gradient of an own module
            # may also need weights.
            needed = type(model.tok_embeddings) is not nn.Embedding
            sharded = fsdp(model.tok_embeddings, reshard_after_forward=reshard)
            sharded.set_unshard_in_backward(needed)
        if model.norm is not None and model.output is not None:
            fsdp([model.norm, model.output], reshard_after_forward=reshard_last)
    root = fsdp(model, reshard_after_forward=reshard_last)
    if model.data_dependence != DataDependence.NOWHERE:
        root.set_reduce_scatter_unused_params(True)

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # Otherwise FSDP uses a reduction with a factor (PREMUL_SUM), which gloo does not
            # support.
            module.set_force_sum_reduction_for_comms(True)


def reshard_after_forward(spec: JobSpec, layout: Layout) -> tuple[bool, bool]:
    """Return whether forward frees gathered weights, for layers and for the last modules.

    `default` keeps the weights of the last modules, because backward uses them first. Under
    pipeline parallelism it keeps all weights, because the next micro-batch uses them again.
    """
    match spec.parallelism.reshard_after_forward:
        case "always":
            return True, True
        case "never":
            return False, False
        case "default":
            return layout.pp == 1, False


def set_gradient_sync(model: Model, spec: JobSpec, *, last_round: bool) -> None:
    """Configure the gradient reduction of the next backward pass; call this before each pass.

    Each pass reduce-scatters gradients within a replica, so no rank keeps unsharded gradients. The
    all-reduce over replicas waits for the last round. With `reshard_after_forward="never"`, the
    reduce-scatter also waits for the last round, which costs memory and saves communication. But
    the reduce-scatter never waits if rounds may use different parameters, because FSDP would then
    mix gradients of different dtypes.
    """
    if not isinstance(model, FSDPModule):
        return
    waits = spec.parallelism.reshard_after_forward == "never"
    if waits and model.data_dependence == DataDependence.NOWHERE:
        model.set_requires_gradient_sync(last_round)
    else:
        model.set_requires_all_reduce(last_round)


def reduces(spec: JobSpec, *, last_round: bool) -> bool:
    """Return whether the pass that `set_gradient_sync` configures fully reduces gradients.

    With `reshard_after_forward="never"`, and for the all-reduce over replicas, gradients of earlier
    rounds wait for the last round.
    """
    never = spec.parallelism.reshard_after_forward == "never"
    return last_round or not (never or spec.parallelism.dp_replicate > 1)


def reshard(model: nn.Module) -> None:
    """Free the gathered weights that remain after a forward pass without a backward pass."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
