"""`config.json` of published weights: reads and writes it, compares it with a spec. No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.training.architectures import Architecture, RopeScaling

MODEL_TYPES = {"llama3": "llama", "qwen3": "qwen3"}
"""`model_type` in the hub's configurations, by family."""
_CLASSES = {"llama3": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}

# Field of `Architecture`, the field in the spec that sets it, and the key in `config.json`.
_FIELDS = (
    ("dim", "dim", "hidden_size"),
    ("n_layers", "n_layers", "num_hidden_layers"),
    ("n_heads", "n_heads", "num_attention_heads"),
    ("n_kv_heads", "n_kv_heads", "num_key_value_heads"),
    ("head_dim", "head_dim", "head_dim"),
    ("ffn_dim", "ffn_dim", "intermediate_size"),
    ("vocab_size", "vocab_size", "vocab_size"),
    ("tied_embeddings", "tied_embeddings", "tie_word_embeddings"),
    ("rope_theta", "rope_theta", "rope_theta"),
    ("rope_scaling", "rope_factor", "rope_scaling"),
    ("norm_eps", "norm_eps", "rms_norm_eps"),
)
# Features that the families do not support, with the values in `config.json` that disable them.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "hidden_act": (None, "silu"),
    "use_sliding_window": (None, False),
    "attention_dropout": (None, 0, 0.0),
}
# The fields of `RopeScaling`, in order.
_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


@dataclasses.dataclass(frozen=True)
class SpecialIds:
    """Ids of the special tokens of a model's training data."""

    bos: int | None
    eos: int
    pad: int | None


def differences(config: Mapping[str, Any], family: str, arch: Architecture) -> Iterator[str]:
    """Yield a message for each field in which a `config.json` differs from the model in a spec."""
    found = config.get("model_type")
    if found != MODEL_TYPES[family]:
        yield f"model_type is {found!r}, but model.family={family!r} is {MODEL_TYPES[family]!r}"
    for name, legal in _PLAIN.items():
        if config.get(name) not in legal:
            yield f"{name} is {config[name]!r}, but this model has only {legal[-1]!r}"
    if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        yield "layer_types name other layers than full_attention, which this model has not"
    theirs = _shape(config)
    for field, spec_field, key in _FIELDS:
        ours = getattr(arch, field)
        if theirs[field] != ours:
            here, there = _in_words(ours), _in_words(theirs[field])
            yield f"{key} is {there}, but model.{spec_field} is {here}"


def config_of(
    family: str, arch: Architecture, *, seq_len: int, dtype: str, ids: SpecialIds | None = None
) -> dict[str, Any]:
    """Return the `config.json` of a model.

    Args:
        family: `model.family` in the spec.
        arch: shape of the model.
        seq_len: number of tokens in its training sequences.
        dtype: dtype of the exported weights, such as `bfloat16`.
        ids: ids of the special tokens of the exported tokenizer; None if unknown.
    """
    scaling = arch.rope_scaling
    stretched = 0 if scaling is None else int(scaling.factor * scaling.original_context)
    return {
        "architectures": [_CLASSES[family]],
        "model_type": MODEL_TYPES[family],
        "hidden_size": arch.dim,
        "num_hidden_layers": arch.n_layers,
        "num_attention_heads": arch.n_heads,
        "num_key_value_heads": arch.n_kv_heads,
        "head_dim": arch.head_dim,
        "intermediate_size": arch.ffn_dim,
        "vocab_size": arch.vocab_size,
        "tie_word_embeddings": arch.tied_embeddings,
        "rope_theta": arch.rope_theta,
        "rope_scaling": None
        if scaling is None
        else {"rope_type": "llama3"}
        | dict(zip(_SCALING, dataclasses.astuple(scaling), strict=True)),
        "rms_norm_eps": arch.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": max(seq_len, stretched),
        "torch_dtype": dtype,
        # null if unknown, because `transformers` replaces absent ids by its own defaults.
        "bos_token_id": ids and ids.bos,
        "eos_token_id": ids and ids.eos,
        "pad_token_id": ids and ids.pad,
    }


def _shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """Map each field of `Architecture` to its value in a config; an absent value is None.

    An absent optional key gets its default in the Llama and Qwen3 code. Newer configs store base
    and scaling of the rotary positions in one field, `rope_parameters`.
    """
    heads = config.get("num_attention_heads")
    width = config.get("hidden_size")
    head_dim = config.get("head_dim")
    if head_dim is None and isinstance(heads, int) and isinstance(width, int) and heads > 0:
        head_dim = width // heads
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    values = {name: config.get(key) for name, _, key in _FIELDS}
    return values | {
        "n_kv_heads": config.get("num_key_value_heads", heads),
        "head_dim": head_dim,
        "tied_embeddings": config.get("tie_word_embeddings", False),
        "rope_theta": rope.get("rope_theta", config.get("rope_theta", 10_000.0)),
        "rope_scaling": _scaling(rope),
        "norm_eps": config.get("rms_norm_eps", 1e-6),
    }


def _scaling(rope: Mapping[str, Any]) -> RopeScaling | str | None:
    """Return the scaling in a config; None without scaling, and a text for an unsupported kind."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3" or any(name not in rope for name in _SCALING):
        return str(dict(rope))
    return RopeScaling(*(rope[name] for name in _SCALING))


def _in_words(value: object) -> str:
    if isinstance(value, RopeScaling):
        return ", ".join(f"{k} {v}" for k, v in dataclasses.asdict(value).items())
    return "absent" if value is None else repr(value)
