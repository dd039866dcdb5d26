"""Activation checkpointing: the backward pass recomputes activations that forward does not keep.

`torch.utils.checkpoint` wraps the `forward` of each block, not the module. So parameter names do
not change, and the hooks of FSDP, which gather weights, run outside of the recomputed region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from trainer.torch_versions import count_no_bytes_for_device_meshes
from trainyard.spec.sections.parallelism import ActivationCheckpointSection

aten = torch.ops.aten
MATRIX_PRODUCTS = {aten.mm.default, aten.addmm.default, aten._scaled_mm.default}
KEPT = {
    # Attention is kept, because its backward pass also needs the log-sum-exp, which only another
    # forward pass would yield.
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    torch._higher_order_ops.flex_attention,
    # The absolute maximum from which float8 computes a scale is kept: 4 bytes, instead of another
    # pass over the whole tensor.
    aten.max.default,
    # Results of collectives are kept, because recomputing them would double the traffic.
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
    torch.ops._c10d_functional.all_reduce.default,
    torch.ops._c10d_functional.all_to_all_single.default,
}


def checkpoint_activations(
    blocks: Iterable[nn.Module], section: ActivationCheckpointSection, *, own_randomness: bool
) -> None:
    """Wrap each block's `forward` in place, so that backward recomputes its activations.

    Args:
        blocks: transformer blocks.
        section: `full` keeps only the input of a block; `selective` also keeps the outputs of
            attention, of collectives except all-gathers, and of every second matrix product.
            `memory_budget` sets an option of the compiler, which then selects what to recompute.
        own_randomness: whether a block may draw from torch's generators, whose state is then
            restored for the recomputation. The model families draw by keys and need no state.
    """
    match section.mode:
        case "none":
            return
        case "memory_budget":
            torch._functorch.config.activation_memory_budget = section.memory_budget
            # The partitioner cannot compute the size of a script object. The only one in a block is
            # the mesh, which holds no tensor.
            count_no_bytes_for_device_meshes()
            return
        case "full":
            contexts: dict[str, Any] = {}
        case "selective":
            contexts = {"context_fn": lambda: create_selective_checkpoint_contexts(_policy())}
    for block in blocks:
        block.forward = partial(
            checkpoint,
            block.forward,
            use_reentrant=False,
            preserve_rng_state=own_randomness,
            **contexts,
        )


def _policy() -> Callable[..., CheckpointPolicy]:
    """Return a policy for one forward pass of a block and its recomputation.

    Forward pass and recomputation count matrix products separately, so both select the same ones.
    """
    products = {False: 0, True: 0}

    def policy(ctx: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if op in MATRIX_PRODUCTS:
            products[ctx.is_recompute] += 1
            keep = products[ctx.is_recompute] % 2 == 1
        else:
            keep = op in KEPT
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return policy
