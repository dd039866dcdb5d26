"""Names and row order of torchtitan's weights, for Trainyard's families.

torchtitan 0.3.0 and 0.2.x are known. Their names differ in two places: since 0.3.0 the projections
of attention lie in `qkv_linear`, and the output head is `lm_head` instead of `output`. If a recipe
of 0.3.0 fuses the projections, their weights are saved one by one, but their moments as `wqkv`.
"""

from __future__ import annotations

import re

from torch import Tensor

from trainyard.training.architectures import Architecture

_TOP = {
    "tok_embeddings": "tok_embeddings",
    "norm": "norm",
    "lm_head": "output",
    "output": "output",
}
_LAYER = {
    "attention_norm": "attention_norm",
    "attention.qkv_linear.wq": "attention.wq",
    "attention.qkv_linear.wk": "attention.wk",
    "attention.qkv_linear.wv": "attention.wv",
    "attention.wq": "attention.wq",
    "attention.wk": "attention.wk",
    "attention.wv": "attention.wv",
    "attention.q_norm": "attention.q_norm",
    "attention.k_norm": "attention.k_norm",
    "attention.wo": "attention.wo",
    "ffn_norm": "feed_forward_norm",
    "feed_forward.w1": "feed_forward.w1",
    "feed_forward.w2": "feed_forward.w2",
    "feed_forward.w3": "feed_forward.w3",
}
FUSED = "attention.qkv_linear.wqkv"
PROJECTIONS = ("attention.wq", "attention.wk", "attention.wv")
_BLOCK = re.compile(r"layers\.([0-9]{1,5})\.(.+)")
TURNED = frozenset({"llama3"})
"""Families whose features torchtitan rotates in pairs of neighbours. The trainer rotates each
feature with the one half a head further, so the rows of queries and keys change their order."""


def our_names(theirs: str) -> tuple[str, ...]:
    """Return the trainer's name of a parameter of torchtitan; empty if no family has it.

    Fused projections have three names, those of queries, keys and values.
    """
    module, dot, last = theirs.rpartition(".")
    if not dot or last != "weight":
        return ()
    if module in _TOP:
        return (f"{_TOP[module]}.weight",)
    block = _BLOCK.fullmatch(module)
    if block is None:
        return ()
    parts = PROJECTIONS if block[2] == FUSED else (_LAYER.get(block[2]),)
    return tuple(f"layers.{int(block[1])}.{part}.weight" for part in parts if part)


def is_fused(theirs: str) -> bool:
    """Return whether an entry of torchtitan belongs to fused projections."""
    return f".{FUSED}." in theirs


def fused_rows(arch: Architecture) -> int:
    """Return the number of rows of fused projections."""
    return arch.attention_dim + 2 * arch.n_kv_heads * arch.head_dim


def part_of(fused: Tensor, name: str, arch: Architecture) -> Tensor:
    """Return the rows of one projection from fused ones.

    For each head of keys, the rows hold its heads of queries, then its keys, then its values.
    """
    queries = arch.n_heads // arch.n_kv_heads
    heads = fused.unflatten(0, (arch.n_kv_heads, queries + 2, arch.head_dim))
    places = {
        "wq": slice(queries),
        "wk": slice(queries, queries + 1),
        "wv": slice(queries + 1, queries + 2),
    }
    return heads[:, places[name.split(".")[-2]]].flatten(0, 2)


def in_our_order(tensor: Tensor, name: str, *, family: str, arch: Architecture) -> Tensor:
    """Return a weight or one of its moments with the rows in the trainer's order.

    Args:
        tensor: tensor in torchtitan's order.
        name: the trainer's name of the weight.
        family: family of the model.
        arch: shape of the model.
    """
    heads = {"attention.wq": arch.n_heads, "attention.wk": arch.n_kv_heads}
    count = next((n for part, n in heads.items() if name.endswith(f".{part}.weight")), None)
    if count is None or family not in TURNED:
        return tensor
    return tensor.unflatten(0, (count, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()
