"""Activation checkpointing: what backward computes again instead of keeping it.

Each block is run under `torch.utils.checkpoint`, by its `forward` rather than in a wrapper module:
names of parameters stay what they are, and the hooks of FSDP stay outside.
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
    # Attention: its inputs alone would not do, as its backward needs the log-sum-exp.
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    torch._higher_order_ops.flex_attention,
    # One number of a tensor, which float8 scales by: a pass over all of it to find it again.
    aten.max.default,
    # What has crossed the network does not cross it again.
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
    torch.ops._c10d_functional.all_reduce.default,
    torch.ops._c10d_functional.all_to_all_single.default,
}


def checkpoint_activations(
    blocks: Iterable[nn.Module], section: ActivationCheckpointSection, *, own_randomness: bool
) -> None:
    """Have the backward of each block compute again what the section does not keep; in place.

    Args:
        blocks: the transformer blocks.
        section: `full` keeps the input of a block, `selective` also what attention gives, what
            came over the network, and every second matrix product. `memory_budget` is a setting of
            the compiler, which chooses by itself.
        own_randomness: whether a block draws from torch's generators. Ours draw by keys, so that
            nothing needs to be restored when a block is run again.
    """
    match section.mode:
        case "none":
            return
        case "memory_budget":
            torch._functorch.config.activation_memory_budget = section.memory_budget
            # It is the one object of its kind in a block, and holds no tensor.
            count_no_bytes_for_device_meshes()
            return
        case "full":
            contexts: dict[str, Any] = {}
        case "selective":
            contexts = {"context_fn": _selective_contexts}
    for block in blocks:
        block.forward = partial(
            checkpoint,
            block.forward,
            use_reentrant=False,
            preserve_rng_state=own_randomness,
            **contexts,
        )


def _selective_contexts() -> Any:
    return create_selective_checkpoint_contexts(_policy())


def _policy() -> Callable[..., CheckpointPolicy]:
    """Return a policy for one run of a block and its repetition, which count products alike."""
    products = {False: 0, True: 0}

    def policy(ctx: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if op in MATRIX_PRODUCTS:
            products[ctx.is_recompute] += 1
            keep = products[ctx.is_recompute] % 2 == 1
        else:
            keep = op in KEPT
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return policy
