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

from trainer.errors import LaunchError

SDPA, EAGER = "trainyard_sdpa", "trainyard_eager"
"""Names of the attention functions at transformers; `EAGER` materializes all scores."""
EXPERTS = "trainyard_grouped"


class Documents:
    """The documents of the sequences in a forward pass."""

    def __init__(self, segments_BS: Tensor) -> None:
        self.segments_BS = segments_BS
        self.masked = False
        """Whether the forward pass has built a mask that separates the documents."""


_DOCUMENTS: ContextVar[Documents | None] = ContextVar("documents", default=None)


@contextmanager
def within_documents(segments_BS: Tensor | None, *, field: str) -> Iterator[None]:
    """Restrict attention to documents in the forward pass inside of the context.

    Args:
        segments_BS: document index of each token, int32; None for no restriction.
        field: field and value in the spec, for messages.

    Raises:
        LaunchError: the forward pass has built no mask, so its attention ignores documents.
    """
    documents = None if segments_BS is None else Documents(segments_BS)
    token = _DOCUMENTS.set(documents)
    try:
        yield
    finally:
        _DOCUMENTS.reset(token)
    if documents is not None and not documents.masked:
        raise LaunchError(
            f"{field}: attention of this architecture takes no mask from data.document_masks; "
            "legal: false"
        )


@cache
def register() -> None:
    """Register the functions at transformers; repeated calls have no effect."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.masking_utils import eager_mask, sdpa_mask

    AttentionInterface.register(SDPA, _sdpa)
    AttentionInterface.register(EAGER, _eager)
    AttentionMaskInterface.register(SDPA, partial(_masked, sdpa_mask))
    AttentionMaskInterface.register(EAGER, partial(_masked, eager_mask))
    ALL_EXPERTS_FUNCTIONS.register(EXPERTS, _experts)


def needs_eager(model: Any) -> bool:
    """Return whether a model's attention cannot use SDPA, for example because it has sinks."""
    capped = getattr(model.config, "attn_logit_softcapping", None) is not None
    return capped or not model._supports_sdpa


def _masked(build: Callable[..., Any], **options: Any) -> Any:
    """Build a mask, restricted to the documents of the forward pass."""
    from transformers.masking_utils import and_masks, causal_mask_function
    from transformers.masking_utils import packed_sequence_mask_function as same_document

    # The caller's padding mask has only ones: without it, transformers would read values of the
    # position ids to find packed sequences, for which the host waits.
    options["attention_mask"] = None
    documents = _DOCUMENTS.get()
    if documents is not None:
        documents.masked = True
        pattern = options.get("mask_function", causal_mask_function)
        options["mask_function"] = and_masks(pattern, same_document(documents.segments_BS))
        options["allow_is_causal_skip"] = False
    return build(**options)


def _sdpa(module: nn.Module, *tensors: Any, **options: Any) -> Any:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    _refuse_dropout(module, options)
    return sdpa_attention_forward(module, *tensors, **options)


def _eager(module: nn.Module, *tensors: Any, **options: Any) -> Any:
    """Call the attention in the module's file, which handles the architecture's sinks and caps."""
    _refuse_dropout(module, options)
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
