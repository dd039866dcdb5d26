"""Small models of both families, in our and in the reference implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.models.decoder import Transformer
from trainer.models.families import FAMILIES
from trainyard.training.architectures import Architecture, RopeScaling

SEQ_LEN = 48
# Heads of 16 have eight rotary frequencies. Within 64 tokens some rotate often, some seldom, and
# one is in between: each branch of the scaling is covered.
SCALED = RopeScaling(factor=8.0, original_context=64)
# A spec's scaling starts from the context of the published models.
PUBLISHED = RopeScaling(factor=8.0)
MODELS: dict[str, tuple[str, Architecture]] = {
    "llama": ("llama3", Architecture(64, 2, 4, 2, 96, 320, rope_theta=10_000.0)),
    "llama, tied": (
        "llama3",
        Architecture(64, 2, 4, 1, 96, 320, tied_embeddings=True, norm_eps=1e-6),
    ),
    "llama, scaled": (
        "llama3",
        Architecture(64, 2, 4, 4, 96, 320, rope_theta=10_000.0, rope_scaling=SCALED),
    ),
    "llama, scaled as published": (
        "llama3",
        Architecture(64, 2, 4, 2, 96, 320, rope_theta=10_000.0, rope_scaling=PUBLISHED),
    ),
    "qwen3": (
        "qwen3",
        Architecture(64, 2, 4, 2, 96, 320, own_head_dim=32, rope_theta=1e6, qk_norm=True),
    ),
    "qwen3, tied": (
        "qwen3",
        Architecture(
            64, 2, 4, 2, 96, 320, norm_eps=1e-6, own_head_dim=24, tied_embeddings=True, qk_norm=True
        ),
    ),
}


def section(family: str, arch: Architecture) -> dict[str, Any]:
    """Return the section of a spec with a shape, which a spec must be able to express."""
    scaling = arch.rope_scaling
    assert scaling is None or scaling == RopeScaling(scaling.factor)
    shape = {
        "dim": arch.dim,
        "n_layers": arch.n_layers,
        "n_heads": arch.n_heads,
        "n_kv_heads": arch.n_kv_heads,
        "ffn_dim": arch.ffn_dim,
        "vocab_size": arch.vocab_size,
        "head_dim": arch.head_dim,
        "tied_embeddings": arch.tied_embeddings,
        "rope_theta": arch.rope_theta,
        "rope_factor": 1.0 if scaling is None else scaling.factor,
        "norm_eps": arch.norm_eps,
    }
    return {"family": family, "size": "debug", **shape}


def randomize(model: nn.Module) -> None:
    """Give every weight an effective value: norms around one, matrices large enough to attend."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * drawn if "norm" in name else 0.1 * drawn)


def ours(family: str, arch: Architecture) -> Transformer:
    """Return our model on the CPU, its weights not yet set."""
    return FAMILIES[family](arch, seq_len=SEQ_LEN)


def theirs(family: str, arch: Architecture) -> Any:
    """Return the reference's model with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    scaling = arch.rope_scaling
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": arch.rope_theta}
    if scaling is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context,
        }
    config, model = {
        "llama3": (LlamaConfig, LlamaForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }[family]
    made = model(
        config(
            hidden_size=arch.dim,
            num_hidden_layers=arch.n_layers,
            num_attention_heads=arch.n_heads,
            num_key_value_heads=arch.n_kv_heads,
            head_dim=arch.head_dim,
            intermediate_size=arch.ffn_dim,
            vocab_size=arch.vocab_size,
            tie_word_embeddings=arch.tied_embeddings,
            rms_norm_eps=arch.norm_eps,
            rope_parameters=rope,
            max_position_embeddings=512,
        )
    )
    randomize(made)
    return made.eval()


def published(folder: Path, name: str, **options: Any) -> Path:
    """Write the reference's model as its own library does, and return the folder."""
    theirs(*MODELS[name]).save_pretrained(folder, **options)
    return folder


def batch() -> tuple[Tensor, Tensor]:
    """Return tokens and the tokens after them, [2, SEQ_LEN]."""
    window = torch.randint(320, (2, SEQ_LEN + 1), generator=torch.Generator().manual_seed(1))
    return window[:, :-1], window[:, 1:]
