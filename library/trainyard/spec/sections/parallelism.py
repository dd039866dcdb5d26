"""Sections `parallelism`, `activation_checkpoint`, `compile` and `quantization`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, create_model

from trainyard.axes import AXES, FIELDS, MESH_AXES
from trainyard.base.model_base import Auto, Fraction, SpecModel
from trainyard.spec.layout import Layout

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
    """Sizes of the parallel axes; dp_replicate x dp_shard x cp x tp x pp is the world size."""

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each axis as given in the spec; `dp_shard` may be -1."""
        return {axis.name: getattr(self, axis.name) for axis in AXES}

    def layout_after(self, before: Layout, *, world_size: int | None) -> Layout:
        """Return the layout of these sizes for an attempt that follows an attempt with the layout
        `before`.

        If `world_size` is None, the world size is the product of the sizes or, with `dp_shard=-1`,
        the world size of `before`.

        Raises:
            SpecError: the product of the sizes differs from the world size.
        """
        if world_size is None:
            product = math.prod(self.sizes[axis.name] for axis in MESH_AXES)
            world_size = before.world_size if self.dp_shard == -1 else product
        return Layout.fill(world_size=world_size, **self.sizes)

    @property
    def options(self) -> dict[str, object]:
        """Values of the fields other than the sizes of the axes."""
        return {name: value for name, value in self if name not in self.sizes}


class ActivationCheckpointSection(SpecModel):
    """Activations that the backward pass recomputes, so that they take no memory until then."""

    mode: Literal["none", "selective", "full", "memory_budget"] = "none"
    """Activations to recompute. `full` recomputes each whole block, `selective` only the cheap
    operations of a block."""
    memory_budget: Fraction = 0.5
    """Share of the activations to keep in memory (only in mode `memory_budget`)."""


class CompileSection(SpecModel):
    """Options of torch.compile."""

    enabled: bool | Auto = "auto"
    """Whether to compile each transformer block. `auto` compiles if `memory_budget` or `async_tp`
    needs the compiler. It also compiles on GPUs, except for a user's own model, a deterministic
    run, `full` recomputation under tensor parallelism, and zero-bubble pipelines."""
    backend: Literal["inductor", "aot_eager"] = "inductor"
    """Compiler backend of torch.compile."""


class QuantizationSection(SpecModel):
    """Low-precision matrix products during training."""

    recipe: Literal[
        "none", "float8_tensorwise", "float8_rowwise", "float8_rowwise_with_gw_hp", "mxfp8"
    ] = "none"
    """Recipe for the quantized linear layers; `none` disables quantization."""
    exclude: Annotated[tuple[str, ...], Field(strict=False)] = ("output",)
    """Linear layers that stay in high precision, each given by a part of its name. The head of a
    built-in model always stays in high precision."""
    min_dim: Annotated[int, Field(ge=0, le=1_048_576)] = 0
    """Minimum width of quantized linear layers. A layer with a narrower input or output stays in
    high precision, because scaling would cost more time than quantized products save."""
