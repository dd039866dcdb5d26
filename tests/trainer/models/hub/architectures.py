"""Small models of eight architectures of `transformers`, and jobs that train them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tests.trainer.runs import SmallJob

ROWS, WIDTH, LAYERS = 320, 32, 4
SHAPE: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": ROWS,
    "max_position_embeddings": 256,
    "pad_token_id": 258,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "initializer_range": 0.1,
}
EXPERTS = {"num_experts_per_tok": 2}
SLIDING = ["sliding_attention", "full_attention"] * (LAYERS // 2)
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 12},
    "gemma3_text": {
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "sliding_window": 12,
        "layer_types": SLIDING,
        "tie_word_embeddings": True,
    },
    "qwen3": {"head_dim": 16},
    "phi": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "gpt_oss": {
        "head_dim": 8,
        "sliding_window": 12,
        "layer_types": SLIDING,
        "num_local_experts": 4,
        **EXPERTS,
    },
    "olmo2": {},
    "mixtral": {"num_local_experts": 4, **EXPERTS},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "first_k_dense_replace": 1,
        **EXPERTS,
    },
}
WITH_TENSOR_PLAN = ("mistral", "gemma3_text", "qwen3", "phi", "olmo2")


def write_config(folder: Path, kind: str, **changes: Any) -> dict[str, Any]:
    """Write the `config.json` of a small model; return the fields of its shape in a spec."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(kind, **{**SHAPE, **ARCHITECTURES.get(kind, {}), **changes})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config.to_diff_dict() | {"model_type": kind}))
    return {
        "dim": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "n_kv_heads": config.num_key_value_heads,
        "head_dim": getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads,
        "ffn_dim": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "tied_embeddings": config.tie_word_embeddings,
    }


def save_published(folder: Path, kind: str, **changes: Any) -> Any:
    """Write a random model by `transformers`; return it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(3)
    config = AutoConfig.for_model(kind, **{**SHAPE, **ARCHITECTURES[kind], **changes})
    auto: Any = AutoModelForCausalLM  # its functions have no types
    model = auto.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(torch.randn_like(buffer))
    model.save_pretrained(folder)
    return model


def hub_spec(shape: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of a job that trains the model in `data:model`."""
    return {
        "name": "hub",
        "model": {"hugging_face": "data:model", **shape},
        "data": {"source": "text", "path": "data:text.txt"},
        "training": {"steps": 4, "seq_len": 32, "global_batch_size": 8, "micro_batch_size": 2},
        "optimizer": {"lr": 3e-3},
        "lr_schedule": {"warmup_steps": 1},
        "parallelism": {"sequence_parallel": False},
        "checkpoint": {"interval_steps": 0, "preflight": False},
        "resources": {"device": "cpu"},
    }


def hub_job(folder: Path, kind: str, *, config: dict[str, Any] | None = None) -> SmallJob:
    """Return a short job that trains a small model of an architecture."""
    shape = write_config(folder / "data" / "model", kind, **(config or {}))
    return SmallJob(folder, hub_spec(shape))
