"""Sections `training`, `optimizer`, `lr_schedule` and `validation`: how it learns."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import Auto, PositiveSteps, Seed, Sequences, SpecModel, Steps, Tokens

Rate = Annotated[float, Field(gt=0, le=100)]


class TrainingSection(SpecModel):
    """Length, batch and precision of the run."""

    steps: PositiveSteps = 100
    """Optimizer steps after which the job has succeeded."""
    seq_len: Annotated[Tokens, Field(ge=2, le=10_000_000)] = 128
    """Length of one sequence."""
    global_batch_size: Sequences = 16
    """Sequences in one optimizer step, over all ranks; fixed for the life of the job."""
    micro_batch_size: Sequences = 4
    """Sequences that one rank runs at once; the last micro-batch of a step may hold fewer."""
    seed: Seed = 0
    """Seed of initial weights, data order and dropout."""
    max_grad_norm: Annotated[float, Field(ge=0)] | None = 1.0
    """Gradients are scaled down to this global L2 norm; never when 0, or null."""
    param_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which forward and backward compute; that of the weights is `weight_dtype`."""
    weight_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which weights and their gradients are kept; bfloat16 loses the smaller updates."""
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which gradients are summed over ranks."""
    log_every_steps: PositiveSteps | Auto = "auto"
    """Steps between two lines with values; the data digest is written for every step. `auto` is 1
    on CPUs and 10 on GPUs, where a line with values waits for the device."""
    gc_freq: PositiveSteps = 50
    """Steps between two collections of garbage, after the same step on all ranks; between them
    none runs."""
    deterministic: bool = False
    """Repeat a run on the same layout and GPUs to the last bit: slower on GPUs, and nothing new on
    CPUs, where runs repeat anyway."""
    tensorboard: bool = False
    """Write the values as TensorBoard files too, into `tensorboard/` of the run directory."""


class OptimizerSection(SpecModel):
    """The optimizer."""

    name: Literal["adamw", "adam"] = "adamw"
    """AdamW decouples weight decay from the gradient; Adam has none."""
    lr: Rate = 3e-4
    """Peak learning rate."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moment."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of the second moment."""
    eps: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.1
    """Decay of matrices and embeddings; what has one dimension, as norms, is never decayed."""
    no_decay: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Matrices that do not decay either, by a part of their name, such as `tok_embeddings`."""
    state_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which both moments are kept; bfloat16 halves their memory; betas up to 0.996 then."""
    cpu_offload: bool = False
    """Keep weights, gradients and optimizer states in the memory of the host."""


class LrScheduleSection(SpecModel):
    """The learning rate as a function of the step alone.

    Each length is given in steps or, in the field `..._tokens`, in tokens of global batches.
    """

    name: Literal["warmup_stable_decay", "cosine"] = "warmup_stable_decay"
    """`warmup_stable_decay` holds the peak until its decay begins; `cosine` never holds."""
    warmup_steps: Steps = 10
    """Steps in which the rate rises linearly to its peak; all of a shorter schedule when absent."""
    warmup_tokens: Tokens | None = None
    """The same in tokens, in place of `warmup_steps`."""
    decay_steps: Steps | None = None
    """Length of the decay of `warmup_stable_decay`; a fifth of the total when absent."""
    decay_tokens: Tokens | None = None
    """The same in tokens, in place of `decay_steps`."""
    decay_shape: Literal["linear", "cosine", "sqrt"] = "linear"
    """Shape of the decay of `warmup_stable_decay`."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Rate at the end, as a share of the peak."""
    total_steps: PositiveSteps | None = None
    """Step at which the decay ends; `training.steps` as submitted when absent."""
    total_tokens: Tokens | None = None
    """The same in tokens, in place of `total_steps`."""


class ValidationSection(SpecModel):
    """Loss on held-out sequences."""

    interval_steps: Steps = 0
    """Steps between two validations, with one more after the last step; never when 0."""
    batches: Annotated[int, Field(ge=1, le=100_000)] = 8
    """Global batches in one validation; all that is held out when that is less."""
