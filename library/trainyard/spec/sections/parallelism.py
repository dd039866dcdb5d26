"""Sections `parallelism`, `activation_checkpoint`, `compile` and `quantization`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, create_model

from trainyard.axes import AXES, FIELDS
from trainyard.base.model_base import Auto, Fraction, SpecModel

if TYPE_CHECKING:
    from trainyard.axes.cp import ContextParallelFields
    from trainyard.axes.dp import DataParallelFields
    from trainyard.axes.pp import PipelineParallelFields
    from trainyard.axes.tp import TensorParallelFields

    class _AxisFields(
        PipelineParallelFields, TensorParallelFields, ContextParallelFields, DataParallelFields
    ):
        """The fields of the axes for type checkers."""

else:
    # pydantic collects fields from the last base to the first.
    _AxisFields = create_model("_AxisFields", __base__=FIELDS[::-1])


class ParallelismSection(_AxisFields):
    """The axes whose product is the world size: dp_replicate x dp_shard x cp x tp x pp."""

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each axis as given; `dp_shard` may be -1."""
        return {axis.name: getattr(self, axis.name) for axis in AXES}


class ActivationCheckpointSection(SpecModel):
    """Activations that backward recomputes instead of keeping."""

    mode: Literal["none", "selective", "full", "memory_budget"] = "none"
    """`full` recomputes each block, `selective` its cheap operations."""
    memory_budget: Fraction = 0.5
    """Share of the activations to keep (mode `memory_budget`)."""


class CompileSection(SpecModel):
    """torch.compile."""

    enabled: bool | Auto = "auto"
    """Compile each transformer block. `auto` compiles on GPUs, except for own models, deterministic
    runs, `full` recomputation under tensor parallelism and zero-bubble pipelines. It also compiles
    if `memory_budget` or `async_tp` needs the compiler."""
    backend: Literal["inductor", "aot_eager"] = "inductor"
    """Compiler backend."""


class QuantizationSection(SpecModel):
    """Low-precision matrix products while training."""

    recipe: Literal[
        "none", "float8_tensorwise", "float8_rowwise", "float8_rowwise_with_gw_hp", "mxfp8"
    ] = "none"
    """Recipe of the quantized linear layers."""
    exclude: Annotated[tuple[str, ...], Field(strict=False)] = ("output",)
    """Linear layers that stay in high precision, by a part of their name. The head of a built-in
    model always does."""
    min_dim: Annotated[int, Field(ge=0, le=1_048_576)] = 0
    """Linear layers with a side narrower than this stay in high precision, because scaling would
    cost more than the products save."""
