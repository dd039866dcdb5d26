"""Rules for low precision and compilation: shapes of the model, and hardware of the nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from itertools import product
from typing import Literal

from trainyard.base.problems import Problem, multiples, nearest
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.parallelism import QuantizationSection
from trainyard.training.known_devices import LEAST_CAPABILITY, Slot, known_device
from trainyard.training.rounding import Rounding

BFLOAT16_ONLY = ("float8_rowwise", "float8_rowwise_with_gw_hp", "mxfp8")
"""Recipes whose kernels return only bfloat16."""
MULTIPLE = {"float8": 16, "mxfp8": 32}
"""Number that must divide each matrix width, by number format. Tensor cores multiply float8 in
pieces of 16 numbers; in MX, 32 numbers share one scale."""
LINEAR_LAYERS = {
    "n_heads": ("attention.wq", "attention.wo"),
    "n_kv_heads": ("attention.wk", "attention.wv"),
    "ffn_dim": ("feed_forward.w1", "feed_forward.w2", "feed_forward.w3"),
}
"""Linear layers of a block, by the spec field that sets one width of the layer. TP shards this
width. The other width is `dim`."""
FROM_SHARDED = ("attention.wo", "feed_forward.w2")
"""Layers with an input of the sharded width. The weights of these layers have `dim` rows."""


def number_format(spec: JobSpec) -> Literal["float8", "mxfp8"] | None:
    """Return the number format of quantized products; None without quantization."""
    if spec.quantization.recipe == "none":
        return None
    return "mxfp8" if spec.quantization.recipe == "mxfp8" else "float8"


def rounding_of(spec: JobSpec) -> Rounding:
    """Return the least precise rounding in a step of the job."""
    training, recipe = spec.training, spec.quantization.recipe
    if recipe != "none":
        return recipe
    if "bfloat16" in (training.param_dtype, training.weight_dtype):
        return "bfloat16"
    return "bfloat16_reduce" if training.reduce_dtype == "bfloat16" else "float32"


def quantizes(section: QuantizationSection, name: str, *widths: int) -> bool:
    """Return whether a linear layer is multiplied in low precision.

    Args:
        section: recipe and excluded layers.
        name: full name of the layer in the model.
        widths: both widths of the layer's matrix before sharding.
    """
    return (
        section.recipe != "none"
        and min(widths) >= section.min_dim
        and not any(part in name for part in section.exclude)
    )


def slots_for(spec: JobSpec, slots: Collection[Slot]) -> list[Slot]:
    """Return the slots that a job may use, by their kind of device."""
    device = spec.resources.device
    return [slot for slot in slots if device in {"auto", slot.device}]


def can_quantize(spec: JobSpec, slot: Slot) -> bool:
    """Return whether a slot supports the job's number format.

    A CPU emulates every format; an unknown GPU is assumed to support the format.
    """
    numbers, device = number_format(spec), known_device(slot.name)
    return numbers is None or slot.device == "cpu" or device is None or device.can(numbers)


def widths(spec: JobSpec, layout: Layout) -> Iterator[Problem]:
    """Widths of quantized layers and tokens of a sequence on a rank: multiples of `MULTIPLE`.

    The number of tokens matters because products for weight gradients sum over tokens. The recipe
    `float8_rowwise_with_gw_hp` does not quantize these products, so it has no rule for tokens. The
    layers of a user's own model are unknown until it is built; the trainer checks them then.
    """
    numbers = number_format(spec)
    if numbers is None:
        return
    block = MULTIPLE[numbers]
    fields = {} if spec.model.is_own else _quantized_fields(spec)
    if spec.architecture.dim % block and "dim" in fields:
        fields = {"dim": 1}  # most other problems result from this one
    for field, unit in fields.items():
        value, shards = getattr(spec.architecture, field), 1 if field == "dim" else layout.tp
        if value * unit % (block * shards) == 0:
            continue
        step = block * shards // math.gcd(block * shards, unit)
        yield Problem(
            pointer=f"/model/{field}",
            detail=f"{field}={value} gives layers that are {value * unit / shards:g} wide on each "
            f"rank, but {spec.quantization.recipe} needs multiples of {block}; "
            f"{nearest(value, multiples(step, value))}",
        )
    yield from _tokens(spec, layout, block)


def _tokens(spec: JobSpec, layout: Layout, block: int) -> Iterator[Problem]:
    tokens, cp = spec.training.seq_len, layout.cp
    if spec.quantization.recipe == "float8_rowwise_with_gw_hp" or tokens % (block * cp) == 0:
        return
    yield Problem(
        pointer="/training/seq_len",
        detail=f"seq_len={tokens} gives each rank {tokens / cp:g} tokens of a sequence, but "
        f"{spec.quantization.recipe} needs multiples of {block}; "
        f"{nearest(tokens, multiples(block * cp, tokens))}",
    )


def _quantized_fields(spec: JobSpec) -> dict[str, int]:
    """Return the width of one unit of each spec field that sets a width of quantized layers."""
    found = {field for field, _, _ in _quantized_layers(spec)}
    units = {"dim": 1, **_units(spec)}
    return {field: unit for field, unit in units.items() if found and field in {"dim", *found}}


def _units(spec: JobSpec) -> dict[str, int]:
    """Return the width of one unit of each field in `LINEAR_LAYERS`; a head is `head_dim` wide."""
    head_dim = spec.architecture.head_dim
    return {"ffn_dim": 1, "n_heads": head_dim, "n_kv_heads": head_dim}


def quantized_elements(spec: JobSpec) -> int:
    """Return the mean number of quantized weights in a block."""
    found = sum(elements for _, _, elements in _quantized_layers(spec))
    return found // spec.architecture.n_layers


def shards_of_rows(spec: JobSpec, layout: Layout) -> int | None:
    """Return the number of ranks over which FSDP and TP divide the rows of float8 weights.

    Return None if FSDP does not gather weights on the device. Without such a gather, no weights are
    scaled for float8.
    """
    if not spec.is_sharded(layout) or spec.optimizer.cpu_offload:
        return None
    return layout.dp_shard * layout.cp * layout.tp


def gathered_in_float8(spec: JobSpec, layout: Layout) -> int:
    """Return how many weights of a block FSDP gathers in float8, as a mean over the blocks.

    FSDP gathers weights in float8 under two conditions: the recipe is `float8_tensorwise`, and the
    ranks divide the rows of the weights evenly (as in `trainer.parallel.quantize`).
    """
    shards = shards_of_rows(spec, layout)
    if spec.quantization.recipe != "float8_tensorwise" or shards is None:
        return 0
    even = (elements for _, rows, elements in _quantized_layers(spec) if rows % shards == 0)
    return sum(even) // spec.architecture.n_layers


def _quantized_layers(spec: JobSpec) -> Iterator[tuple[str, int, int]]:
    """Yield the field of the sharded width, the number of rows and the number of weights of each
    quantized layer."""
    a = spec.architecture
    for field, unit in _units(spec).items():
        width = getattr(a, field) * unit
        for index, name in product(range(a.n_layers), LINEAR_LAYERS[field]):
            if quantizes(spec.quantization, f"layers.{index}.{name}", a.dim, width):
                yield field, a.dim if name in FROM_SHARDED else width, a.dim * width


def memory_budget(spec: JobSpec, _: Layout) -> Iterator[Problem]:
    """A memory budget needs the compiler, which selects the activations to keep."""
    if spec.activation_checkpoint.mode == "memory_budget" and spec.compile.enabled is not True:
        yield Problem(
            pointer="/activation_checkpoint/mode",
            detail="mode='memory_budget' needs compile.enabled=true: torch.compile decides what is "
            "kept; legal without it: none, selective, full",
        )


def compiled_recomputation(spec: JobSpec, layout: Layout) -> Iterator[Problem]:
    """Full recomputation is illegal with compiled blocks under tensor parallelism.

    torch 2.13 saves a device mesh with the tensors of such a block, and miscounts the tensors.
    """
    if layout.tp > 1 and spec.compile.enabled is True and spec.activation_checkpoint.mode == "full":
        yield Problem(
            pointer="/activation_checkpoint/mode",
            detail=f"mode='full' with compile.enabled=true and tp={layout.tp}: the compiler cannot "
            "recompute the communication of a block; legal: none, selective, memory_budget, or "
            "compile.enabled=false",
        )


PRECISION: tuple[Callable[[JobSpec, Layout], Iterator[Problem]], ...] = (
    widths,
    memory_budget,
    compiled_recomputation,
)


def depends_on_hardware(spec: JobSpec) -> bool:
    """Return whether the rule `hardware` has anything to check for a job."""
    return spec.quantization.recipe != "none" or spec.parallelism.async_tp


def hardware(spec: JobSpec, slots: Collection[Slot]) -> Iterator[Problem]:
    """If nodes are known, a slot must support the recipe, and one, perhaps another, `async_tp`.

    Only slots of the job's kind of device count. On GPUs, the recipes in `BFLOAT16_ONLY` need
    `param_dtype = bfloat16`.

    Args:
        spec: the job.
        slots: slots of the nodes; empty if the nodes are unknown.
    """
    if not depends_on_hardware(spec):
        return
    own = slots_for(spec, slots)
    kinds = {slot.device for slot in own} | {spec.resources.device} - {"auto"}
    recipe, dtype = spec.quantization.recipe, spec.training.param_dtype
    if kinds == {"cuda"} and recipe in BFLOAT16_ONLY and dtype != "bfloat16":
        yield Problem(
            pointer="/training/param_dtype",
            detail=f"param_dtype={dtype!r}, but products of {recipe} on a GPU give bfloat16 only; "
            "legal: bfloat16",
        )
    if own and not any(can_quantize(spec, slot) for slot in own):
        yield Problem(pointer="/quantization/recipe", detail=_without_tensor_cores(spec, own))
    if own and spec.parallelism.async_tp and not any(_symmetric(slot) for slot in own):
        yield Problem(
            pointer="/parallelism/async_tp",
            detail="async_tp=true needs GPUs that reach each other's memory by NVLink, but the "
            f"nodes have {_named(own)}; legal here: false",
        )


def _without_tensor_cores(spec: JobSpec, slots: Collection[Slot]) -> str:
    numbers = number_format(spec)
    assert numbers is not None, "a job without quantization runs on every slot"
    major, minor = LEAST_CAPABILITY[numbers]
    known = (known_device(slot.name) for slot in slots)
    float8 = all(device is None or device.can("float8") for device in known)
    legal = "none, float8_tensorwise, float8_rowwise, float8_rowwise_with_gw_hp"
    return (
        f"recipe={spec.quantization.recipe!r} needs compute capability {major}.{minor} or higher, "
        f"but the nodes have {_named(slots)}; legal here: {legal if float8 else 'none'}"
    )


def _symmetric(slot: Slot) -> bool:
    device = known_device(slot.name)
    return slot.device == "cuda" and (device is None or device.nvlink)


def _named(slots: Collection[Slot]) -> str:
    """Return each name of a device once; the name of a known GPU includes its compute
    capability."""
    words = []
    for slot in slots:
        device = known_device(slot.name)
        capability = f" ({'.'.join(map(str, device.capability))})" if device else ""
        words.append(f"{device.name if device else slot.name}{capability}")
    return ", ".join(dict.fromkeys(words))
