"""Names and shapes of published weights; both families use the same ones. No torch."""

from __future__ import annotations

from trainyard.training.architectures import Architecture

_TOP = {
    "tok_embeddings": "model.embed_tokens",
    "norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attention_norm": "input_layernorm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "attention.wo": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
}


def published_name(name: str) -> str:
    """Return the hub's name for a parameter such as `layers.0.attention.wq.weight`."""
    module = name.removesuffix(".weight")
    if module in _TOP:
        return f"{_TOP[module]}.weight"
    _, index, part = module.split(".", 2)
    return f"model.layers.{index}.{_LAYER[part]}.weight"


def shapes_of(arch: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter, by the trainer's names, in the order of computation."""
    kv_dim = arch.n_kv_heads * arch.head_dim
    layer = {
        "attention_norm": (arch.dim,),
        "attention.wq": (arch.attention_dim, arch.dim),
        "attention.wk": (kv_dim, arch.dim),
        "attention.wv": (kv_dim, arch.dim),
        "attention.q_norm": (arch.head_dim,),
        "attention.k_norm": (arch.head_dim,),
        "attention.wo": (arch.dim, arch.attention_dim),
        "feed_forward_norm": (arch.dim,),
        "feed_forward.w1": (arch.ffn_dim, arch.dim),
        "feed_forward.w3": (arch.ffn_dim, arch.dim),
        "feed_forward.w2": (arch.dim, arch.ffn_dim),
    }
    if not arch.qk_norm:
        del layer["attention.q_norm"], layer["attention.k_norm"]
    shapes: dict[str, tuple[int, ...]] = {"tok_embeddings": (arch.vocab_size, arch.dim)}
    for index in range(arch.n_layers):
        shapes |= {f"layers.{index}.{part}": shape for part, shape in layer.items()}
    shapes["norm"] = (arch.dim,)
    if not arch.tied_embeddings:
        shapes["output"] = (arch.vocab_size, arch.dim)
    return {f"{name}.weight": shape for name, shape in shapes.items()}
