"""Sections `parallelism`, `activation_checkpoint`, `compile` and `quantization`: how it runs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.models import Auto, Fraction, Ranks, SpecModel

PipelineSchedule = Literal[
    "GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"
]


class ParallelismSection(SpecModel):
    """The axes whose product is the world size: dp_replicate x dp_shard x cp x tp x pp."""

    dp_replicate: Ranks = 1
    """Replicas of the sharded model (HSDP when above 1)."""
    dp_shard: Annotated[int, Field(ge=-1, le=65_536, json_schema_extra={"unit": "ranks"})] = -1
    """Ranks that share one replica's weights (FSDP); -1 fills the slots asked for."""
    cp: Ranks = 1
    """Context parallel: ranks that share one sequence."""
    tp: Ranks = 1
    """Tensor parallel: ranks that share each matrix."""
    pp: Ranks = 1
    """Pipeline parallel: stages of layers."""
    reshard_after_forward: Literal["default", "always", "never"] = "default"
    """Free gathered weights after the forward pass; `default`: yes, unless pipeline parallel is on,
    and never for the last layers, which backward needs at once."""
    pp_schedule: PipelineSchedule = "1F1B"
    """Pipeline schedule."""
    pp_microbatches: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Micro-batches of one run of the pipeline; those of the shortest step when absent."""
    pp_layers_per_stage: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Layers of a pipeline stage; balanced when absent."""
    pp_stage_modules: Annotated[tuple[tuple[str, ...], ...], Field(strict=False)] = ()
    """Modules of each pipeline stage, by name; balanced when empty."""
    async_tp: bool = False
    """Overlap tensor-parallel communication with computation (CUDA with symmetric memory)."""
    sequence_parallel: bool = True
    """Shard activations between tensor-parallel regions along the sequence."""
    loss_parallel: bool = True
    """Compute the loss on logits sharded along the vocabulary."""
    cp_method: Literal["allgather_kv", "ulysses"] = "allgather_kv"
    """How context-parallel ranks attend to each other's keys."""


class ActivationCheckpointSection(SpecModel):
    """What backward recomputes instead of keeping."""

    mode: Literal["none", "selective", "full", "memory_budget"] = "none"
    """`full` recomputes each block, `selective` its cheap operations."""
    memory_budget: Fraction = 0.5
    """Share of the activations that is kept (mode `memory_budget`)."""


class CompileSection(SpecModel):
    """torch.compile."""

    enabled: bool | Auto = "auto"
    """Compile each transformer block. `auto` compiles on GPUs, except own models, deterministic
    runs, `full` recomputation under tensor parallelism and zero-bubble pipelines; it also compiles
    where `memory_budget` or `async_tp` needs the compiler."""
    backend: Literal["inductor", "aot_eager"] = "inductor"
    """Compiler backend."""


class QuantizationSection(SpecModel):
    """Low-precision matrix products while training."""

    recipe: Literal[
        "none", "float8_tensorwise", "float8_rowwise", "float8_rowwise_with_gw_hp", "mxfp8"
    ] = "none"
    """Recipe of the quantized linear layers."""
    exclude: Annotated[tuple[str, ...], Field(strict=False)] = ("output",)
    """Linear layers that stay in high precision, by a part of their name; our head always does."""
    min_dim: Annotated[int, Field(ge=0, le=1_048_576)] = 0
    """Linear layers that are narrower on either side stay in high precision: scaling them would
    cost more than the products win."""
