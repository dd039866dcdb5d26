"""The model families, and `build_model`, which builds the model in a spec.

Llama 3: "The Llama 3 Herd of Models", 2024. Qwen3, dense: "Qwen3 Technical Report", 2025.

Shapes: B sequences, S tokens, D model width, H query heads, K key heads, W head width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from trainer.models.attention import Attention
from trainer.models.base import Model
from trainer.models.decoder import Block, FeedForward, Transformer
from trainer.models.own.own_model import OwnModel
from trainyard.spec.job import JobSpec
from trainyard.training.architectures import Architecture


class Llama(Transformer):
    """The Llama 3 decoder, with grouped-query attention and SwiGLU."""

    def new_block(self, arch: Architecture, dropout: float) -> Block:
        """Return a new Llama layer."""
        return Block(arch, dropout, attention=Attention(arch), feed_forward=FeedForward(arch))


class Qwen3(Transformer):
    """The Qwen3 decoder: grouped-query attention with normed queries and keys, and SwiGLU."""

    def new_block(self, arch: Architecture, dropout: float) -> Block:
        """Return a new Qwen3 layer."""
        attention = NormedAttention(arch)
        return Block(arch, dropout, attention=attention, feed_forward=FeedForward(arch))


class NormedAttention(Attention):
    """Attention with an RMSNorm over queries and keys, per head, before the rotation.

    The norm bounds the scores, which otherwise grow during training (Dehghani et al., ViT-22B,
    2023). All query heads share one weight [W], and all key heads another one.
    """

    def __init__(self, arch: Architecture) -> None:
        super().__init__(arch)
        self.q_norm = nn.RMSNorm(arch.head_dim, eps=arch.norm_eps)
        self.k_norm = nn.RMSNorm(arch.head_dim, eps=arch.norm_eps)

    def project(self, x_BSD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return normed queries [B, H, S, W], normed keys and unnormed values [B, K, S, W]."""
        q_BHSW, k_BKSW, v_BKSW = super().project(x_BSD)
        return self.q_norm(q_BHSW), self.k_norm(k_BKSW), v_BKSW


FAMILIES: dict[str, type[Transformer]] = {"llama3": Llama, "qwen3": Qwen3}


def build_model(spec: JobSpec, roots: Mapping[str, str] | None = None) -> Model:
    """Return the spec's model on the meta device, with shapes and dtypes but without memory.

    After `parallelize`, `allocate` gives the model memory and `init_weights` gives it values.
    `roots` has the path of each root by name, for the code of an own model.

    Raises:
        LaunchError: an own model cannot be built.
        DataError: the code or the folder of an own model cannot be read on this node.
    """
    with torch.device("meta"):
        if spec.model.is_own:
            model: Model = OwnModel(spec, roots or {})
        else:
            family, seq_len = FAMILIES[spec.model.family], spec.training.seq_len
            model = family(spec.architecture, seq_len=seq_len, dropout=spec.model.dropout)
    for parameter in model.parameters():  # not buffers, because rotary angles stay float32
        parameter.data = parameter.data.to(getattr(torch, spec.training.weight_dtype))
    return model
