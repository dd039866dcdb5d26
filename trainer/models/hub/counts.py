"""Parameters, products and activations of a hub model, counted on the meta device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from trainer.models.hub.trial import TOKENS, attend_on_meta
from trainyard.training.counted_model import CountedModel


def count_parameters(causal: Any, blocks: Iterable[nn.Module]) -> dict[str, int]:
    """Return the numbers of parameters by kind, as fields of `CountedModel`."""
    kinds = dict.fromkeys(
        ("embedding", "attention", "feed_forward", "norms", "final_norm", "head"), 0
    )
    kind_of = {id(parameter): kind for kind, parameter in _within(blocks)}
    head = causal.get_output_embeddings().parameters()
    embedding = causal.get_input_embeddings().parameters()
    kind_of |= {id(parameter): "head" for parameter in head}
    kind_of |= {id(parameter): "embedding" for parameter in embedding}  # also if the head shares it
    outside = "embedding"
    for parameter in causal.parameters():
        kind = kind_of.get(id(parameter))
        if kind in {"attention", "feed_forward", "norms"}:
            outside = "final_norm"
        kinds[kind or outside] += parameter.numel()
    return kinds


def _within(blocks: Iterable[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield each parameter of the blocks with its kind, by the classes of its modules."""
    for block in blocks:
        attention = {
            id(parameter)
            for module in block.modules()
            if "Attention" in type(module).__name__
            for parameter in module.parameters()
        }
        for module in block.modules():
            own = "norms" if "Norm" in type(module).__name__ else "feed_forward"
            for parameter in module.parameters(recurse=False):
                yield ("attention" if id(parameter) in attention else own), parameter


def count_model(causal: Any, blocks: list[nn.Module]) -> CountedModel:
    """Run a model of transformers on the meta device, in bfloat16; return its counts.

    The model stays on the meta device, in bfloat16 and with the attention function `COUNTED`.

    Args:
        causal: the model, with parameters on the meta device.
        blocks: the model's blocks.

    Raises:
        ValueError: attention of the model is not causal, or not that of `AttentionInterface`.
    """
    causal.to(device="meta", dtype=torch.bfloat16)
    grouped = {torch.ops.aten._grouped_mm: _grouped_flops}
    products = FlopCounterMode(display=False, custom_mapping=grouped)
    saved = SavedBytes(causal)
    with products, saved.within(blocks):
        attended = attend_on_meta(causal)
    if (problem := attended.problem(blocks)) is not None:
        raise ValueError(problem)
    return CountedModel(
        **count_parameters(causal, blocks),
        active=products.get_total_flops() // (2 * TOKENS),
        attention_width=attended.full,
        sliding_width=attended.sliding,
        window=attended.window,
        saved_bytes=saved.bytes // TOKENS,
    )


class SavedBytes:
    """Bytes that a forward pass saves for backward, without parameters; storages count once."""

    def __init__(self, model: nn.Module) -> None:
        self.bytes = 0
        self._storages = [parameter.untyped_storage() for parameter in model.parameters()]
        self._known = {storage._cdata for storage in self._storages}

    @contextmanager
    def within(self, blocks: Iterable[nn.Module]) -> Iterator[None]:
        """Count what blocks save in forward passes inside of the context."""
        saving = torch.autograd.graph.saved_tensors_hooks(self._add, lambda tensor: tensor)
        with ExitStack() as hooks:
            for block in blocks:
                enter = block.register_forward_pre_hook(lambda *_: saving.__enter__())
                hooks.enter_context(enter)
                hooks.enter_context(block.register_forward_hook(lambda *_: saving.__exit__()))
            yield

    def _add(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self._storages.append(storage)  # kept, so that its address is not used again
            self.bytes += storage.nbytes()
        return tensor


def _grouped_flops(left: tuple[int, ...], right: tuple[int, ...], *_: object, **__: object) -> int:
    """Return the FLOPs of a product of rows [N, K] with one of several matrices [E, K, M]."""
    return 2 * left[0] * left[1] * right[-1]
