"""Bytes of activations that one micro-batch keeps for the backward pass.

Letters: d is the width of the model, q the total width of the queries, k the total width of the
keys, f the feed-forward width, and c the bytes of an element in computation.
"""

from __future__ import annotations

from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.precision import quantizes
from trainyard.training.counted_model import CountedModel

BYTES = {"float32": 4, "bfloat16": 2}
MEASURED = "float8_tensorwise"
"""The only float8 recipe with measured memory; the savings of other recipes are unknown."""


def activations_of_a_block(spec: JobSpec, layout: Layout, *, tokens: int) -> int:
    """Return the bytes that a block saves for the backward pass without recomputation.

    A token has 4d + 2q + 2k + 4f elements: input and output of each norm, queries, keys, values,
    output of attention, gate, SiLU of the gate, up projection, and the product of the last two.
    Fused attention saves no scores, and rotation saves nothing. Norms of queries and keys also
    save their inputs, q + k. Under tensor parallelism, the inputs of column-wise products (the
    outputs of the norms) are unsharded on each rank; without sequence parallelism, the inputs of
    the norms are unsharded too.
    """
    a = spec.architecture
    c = BYTES[spec.training.param_dtype]
    if a.counted is not None:
        return tokens * _counted(spec, a.counted, tp=layout.tp)
    kv_dim = a.n_kv_heads * a.head_dim
    whole = 2 * a.dim * c
    sharded = (2 * a.attention_dim + 2 * kv_dim + 4 * a.ffn_dim) * c
    if a.qk_norm:
        sharded += (a.attention_dim + kv_dim) * _input_of_a_norm_per_feature(spec)
    if spec.parallelism.cp_method == "allgather_kv":
        sharded += 2 * kv_dim * c * (layout.cp - 1)  # keys and values from the other ranks
    if spec.model.dropout > 0:
        sharded += 2 * a.dim  # per residual branch, a mask with one byte per element
    if spec.parallelism.sequence_parallel:
        sharded += 2 * _input_of_a_norm(spec)
    else:
        whole += 2 * _input_of_a_norm(spec)
    return tokens * (whole + sharded // layout.tp)


def _counted(spec: JobSpec, model: CountedModel, *, tp: int) -> int:
    """Return the bytes per token that a mean block of a hub model saves.

    Under tensor parallelism, inputs and outputs of the two norms stay unsharded.
    """
    a, c = spec.architecture, BYTES[spec.training.param_dtype]
    saved = model.saved_bytes * c // (BYTES["bfloat16"] * a.n_layers)
    whole = min(saved, 2 * a.dim * c + 2 * _input_of_a_norm(spec))
    return whole + (saved - whole) // tp


def width_of_the_feed_forward(spec: JobSpec) -> int:
    """Return the number of features in the feed-forward layer of a block, as SwiGLU has them.

    For a hub model, it is the width of a SwiGLU with as many weights as multiply a token. So
    several chosen experts count together.
    """
    a = spec.architecture
    if a.counted is None:
        return a.ffn_dim
    return max(0, a.counted.active - a.counted.attention) // (3 * a.dim * a.n_layers)


def saved_of_a_block(spec: JobSpec, layout: Layout, *, tokens: int) -> int:
    """Return `activations_of_a_block` without the activations that a compiled block recomputes.

    Inductor recomputes elementwise results. Without float8, this is the SiLU. With float8, these
    are also the outputs of the norms and the product of SiLU and up projection, because float8
    matrix products save their own casts. These rules are derived from the memory peaks of an H200
    (docs/planner.md).
    """
    everything = activations_of_a_block(spec, layout, tokens=tokens)
    compiles = spec.compile.enabled is True and spec.compile.backend == "inductor"
    if not compiles or spec.architecture.counted is not None:
        return everything
    a, section = spec.architecture, spec.quantization
    widths = {"attention.wq": a.attention_dim, "feed_forward.w1": a.ffn_dim}
    widths["feed_forward.w2"] = a.ffn_dim
    in_float8 = section.recipe == MEASURED and all(
        quantizes(section, f"layers.0.{name}", a.dim, width) for name, width in widths.items()
    )
    c = BYTES[spec.training.param_dtype]
    whole, sharded = (2 * a.dim * c, 2 * a.ffn_dim * c) if in_float8 else (0, a.ffn_dim * c)
    return everything - tokens * (whole + sharded // layout.tp)


def kept_of_a_block(spec: JobSpec, layout: Layout, *, tokens: int) -> int:
    """Return the bytes that one block keeps until its backward pass.

    `full` keeps the input of the block. `selective` also keeps the output of attention, and every
    second matrix product: queries, values, gate and the output of the block; of a hub model, half
    of all activations are assumed. `memory_budget` interpolates between `full` and `none`.
    """
    a = spec.architecture
    c = BYTES[spec.training.param_dtype]
    block_input = tokens * width_of_the_stream(spec, layout)
    everything = saved_of_a_block(spec, layout, tokens=tokens)
    match spec.activation_checkpoint.mode:
        case "none":
            return everything
        case "full":
            return block_input
        case "selective" if a.counted is not None:
            return block_input + (everything - block_input) // 2
        case "selective":
            kv_dim = a.n_kv_heads * a.head_dim
            return (
                block_input
                + tokens * (2 * a.attention_dim + a.dim + kv_dim + a.ffn_dim) * c // layout.tp
            )
        case "memory_budget":
            share = spec.activation_checkpoint.memory_budget
            return block_input + round(share * (everything - block_input))


def width_of_the_stream(spec: JobSpec, layout: Layout) -> int:
    """Return the bytes per token of the residual stream on a rank."""
    shared = layout.tp if spec.parallelism.sequence_parallel else 1
    return spec.architecture.dim * BYTES[spec.training.param_dtype] // shared


def activations_of_the_head(spec: JobSpec, *, tokens: int) -> int:
    """Return the bytes that the final norm and the head save, without the logits."""
    output_of_the_norm = spec.architecture.dim * BYTES[spec.training.param_dtype]
    return tokens * (_input_of_a_norm(spec) + output_of_the_norm)


def _input_of_a_norm(spec: JobSpec) -> int:
    """Return the bytes per token that a norm of the residual stream saves, without its output."""
    return spec.architecture.dim * _input_of_a_norm_per_feature(spec)


def _input_of_a_norm_per_feature(spec: JobSpec) -> int:
    """Return the bytes per feature that an RMS norm saves, without its output.

    On CUDA, the norm is a single operation, which saves its input. On a CPU it consists of
    several operations, which save a float32 input (a copy, unless the input is already float32)
    and the normalized values.
    """
    if spec.resources.device == "cpu":
        return 2 * BYTES["float32"]
    return BYTES[spec.training.param_dtype]
