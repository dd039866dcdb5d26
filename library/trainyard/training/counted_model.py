"""Numbers of a model outside of the families, which `python -m trainer describe` counts."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from trainyard.base.model_base import SpecModel, Tokens

Counted = Annotated[int, Field(ge=0, le=10**18)]


class CountedModel(SpecModel):
    """Numbers of a hub model for the planner, printed by `python -m trainer describe`."""

    embedding: Counted
    """Number of parameters before the blocks, usually of the token embedding."""
    attention: Counted
    """Number of parameters of attention, in all blocks."""
    feed_forward: Counted
    """Number of parameters of all blocks outside of attention and norms. Every expert counts."""
    norms: Counted
    """Number of parameters of norms outside of attention, in all blocks."""
    final_norm: Counted
    """Number of parameters between the blocks and the head, usually of the final norm."""
    head: Counted
    """Number of parameters of the output matrix; 0 if the embedding is also the head."""
    active: Counted
    """Number of weights that multiply a token, without the head. Only the token's experts count."""
    attention_width: Counted
    """Sum, over the blocks with full attention, of heads x mean width of a key and a value."""
    sliding_width: Counted = 0
    """The same sum over the blocks with a sliding window."""
    window: Tokens | None = None
    """Number of tokens in the sliding window; absent without one."""
    saved_bytes: Annotated[int, Field(ge=0, le=10**18, json_schema_extra={"unit": "bytes"})]
    """Bytes per token that all blocks save for the backward pass, in bfloat16, without compilation
    and recomputation."""

    @model_validator(mode="after")
    def _check_window(self) -> Self:
        if (self.window is None) != (self.sliding_width == 0):
            raise ValueError(
                f"window={self.window} with sliding_width={self.sliding_width}; legal: both, or "
                "neither"
            )
        return self

    @property
    def parameters(self) -> int:
        """Total number of parameters; each counts once."""
        blocks = self.attention + self.feed_forward + self.norms
        return self.embedding + blocks + self.final_norm + self.head
