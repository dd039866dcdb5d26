"""Attention and experts of hub models, registered with the interfaces of transformers.

Shapes: B sequences, S tokens of a sequence.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from trainer.errors import LaunchError

SDPA, EAGER = "trainyard_sdpa", "trainyard_eager"
"""Names of the attention functions at transformers; `EAGER` materializes all scores. With a block
mask, both are flex attention."""
SMALLEST_HEAD = 16
"""Smallest width of a head in flex attention's kernels."""
EXPERTS = "trainyard_grouped"


class AttentionScope:
    """What the masks of a forward pass depend on, apart from the architecture."""

    def __init__(self, segments_BS: Tensor | None, *, flex: bool) -> None:
        self.segments_BS, self.flex = segments_BS, flex
        self.masked = False
        """Whether the forward pass has built a mask that separates the documents."""


_SCOPE: ContextVar[AttentionScope | None] = ContextVar("attention", default=None)


@contextmanager
def attention_scope(segments_BS: Tensor | None, *, flex: bool, field: str) -> Iterator[None]:
    """Restrict attention to documents in the forward pass inside of the context.

    Args:
        segments_BS: document index of each token, int32; None for no restriction.
        flex: whether flex attention is possible in the forward pass.
        field: field and value in the spec, for messages.

    Raises:
        LaunchError: the forward pass has built no mask, so its attention ignores documents.
    """
    scope = AttentionScope(segments_BS, flex=flex)
    token = _SCOPE.set(scope)
    try:
        yield
    finally:
        _SCOPE.reset(token)
    if segments_BS is not None and not scope.masked:
        raise LaunchError(
            f"{field}: attention of this architecture takes no mask from data.document_masks; "
            "legal: false"
        )


@cache
def register() -> None:
    """Register the functions at transformers; repeated calls have no effect."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import eager_mask, sdpa_mask

    AttentionInterface.register(SDPA, partial(_attend, sdpa_attention_forward))
    AttentionInterface.register(EAGER, partial(_attend, _eager))
    AttentionMaskInterface.register(SDPA, partial(_masked, sdpa_mask))
    AttentionMaskInterface.register(EAGER, partial(_masked, eager_mask))
    ALL_EXPERTS_FUNCTIONS.register(EXPERTS, _experts)


def needs_eager(model: Any) -> bool:
    """Return whether a model's attention cannot use SDPA, for example because it has sinks."""
    capped = getattr(model.config, "attn_logit_softcapping", None) is not None
    return capped or not model._supports_sdpa


def supports_flex(model: Any) -> bool:
    """Return whether a model declares flex attention, and its heads have a width for the kernels.

    `_masked` decides for each mask.
    """
    if not model._supports_flex_attn:
        return False
    config = model.config
    named = (getattr(config, name, None) for name in ("head_dim", "qk_head_dim", "v_head_dim"))
    widths = [width for width in named if width]
    smallest = min(widths or [config.hidden_size // config.num_attention_heads])
    return smallest >= SMALLEST_HEAD


def _masked(build: Callable[..., Any], **options: Any) -> Any:
    """Build a mask, restricted to the documents of the forward pass.

    Where flex attention is possible, it replaces masks and scores that would have S x S elements.
    SDPA without a mask stores none.
    """
    from transformers import masking_utils
    from transformers.masking_utils import packed_sequence_mask_function as same_document

    # The caller's padding mask has only ones: without it, transformers would read values of the
    # position ids to find packed sequences, for which the host waits.
    options["attention_mask"] = None
    scope = _SCOPE.get() or AttentionScope(None, flex=False)
    if scope.segments_BS is not None:
        scope.masked = True
        pattern = options.get("mask_function", masking_utils.causal_mask_function)
        options["mask_function"] = masking_utils.and_masks(
            pattern, same_document(scope.segments_BS)
        )
        options["allow_is_causal_skip"] = False
    if scope.flex and not (build is masking_utils.sdpa_mask and _only_causal(options)):
        build = masking_utils.flex_attention_mask
    return build(**options)


def _only_causal(options: dict[str, Any]) -> bool:
    """Return whether SDPA needs no mask, because no window or document restricts attention."""
    window = options.get("local_size")
    within = window is None or options["kv_length"] < window
    return within and options.get("allow_is_causal_skip", True)


def _attend(dense: Callable[..., Any], module: nn.Module, *tensors: Any, **options: Any) -> Any:
    """Attend by flex attention if the mask is a block mask, else by the other function.

    `tensors` are queries, keys, values and usually the mask. Dropout of scores is refused.
    """
    from transformers.integrations.flex_attention import flex_attention_forward

    _refuse_dropout(module, options)
    mask = options.get("attention_mask", tensors[-1])
    attend = flex_attention_forward if isinstance(mask, BlockMask) else dense
    return attend(module, *tensors, **options)


def _eager(module: nn.Module, *tensors: Any, **options: Any) -> Any:
    """Call the attention in the module's file, which handles the architecture's sinks and caps."""
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        raise LaunchError(
            f"model.hugging_face: {type(module).__name__} has no eager_attention_forward; "
            "legal: an architecture that supports SDPA"
        )
    return eager(module, *tensors, **options)


def _refuse_dropout(module: nn.Module, options: dict[str, Any]) -> None:
    if options.get("dropout"):
        raise LaunchError(
            f"model.hugging_face: {type(module).__name__} drops attention scores with probability "
            f"{options['dropout']}, which no layout could repeat; legal: attention dropout 0"
        )


def _experts(module: nn.Module, hidden: Tensor, *routing: Tensor) -> Tensor:
    """Multiply each token with its experts; read no values, and give every expert a gradient.

    On the meta device the grouped product refuses float32, so a batched product gives the shapes.
    """
    from transformers.integrations import moe

    refused = hidden.is_meta and hidden.dtype == torch.float32
    multiply = moe.batched_mm_experts_forward if refused else moe.grouped_mm_experts_forward
    product: Tensor = multiply(module, hidden, *routing)
    return product
