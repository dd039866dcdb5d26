"""Sections `training`, `optimizer`, `lr_schedule` and `validation`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import Auto, PositiveSteps, Seed, Sequences, SpecModel, Steps, Tokens

Rate = Annotated[float, Field(gt=0, le=100)]


class TrainingSection(SpecModel):
    """Length, batch and precision of the run."""

    steps: PositiveSteps = 100
    """Number of optimizer steps; the job succeeds after the last."""
    seq_len: Annotated[Tokens, Field(ge=2, le=10_000_000)] = 128
    """Length of a sequence."""
    global_batch_size: Sequences = 16
    """Sequences in one optimizer step, over all ranks; fixed for the life of the job."""
    micro_batch_size: Sequences = 4
    """Sequences in one forward pass of a rank; the last micro-batch of a step may hold fewer."""
    seed: Seed = 0
    """Seed of initial weights, data order and dropout."""
    max_grad_norm: Annotated[float, Field(ge=0)] | None = 1.0
    """Gradients are scaled down to this global L2 norm; 0 or null disables clipping."""
    param_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the computation in forward and backward; `weight_dtype` is the type of weights."""
    weight_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of stored weights and gradients; bfloat16 loses the smaller updates."""
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the sum of gradients over ranks."""
    log_every_steps: PositiveSteps | Auto = "auto"
    """Steps between two logged lines; the data digest is written for every step. `auto` is 1 on
    CPUs and 10 on GPUs, where logging waits for the device."""
    gc_freq: PositiveSteps = 50
    """Steps between two garbage collections, which run after the same step on all ranks and at no
    other time."""
    deterministic: bool = False
    """Make runs on the same layout and GPUs identical to the last bit. This is slower on GPUs; runs
    on CPUs always repeat."""
    tensorboard: bool = False
    """Also write the logged values as TensorBoard files, to `tensorboard/` in the run directory."""


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
    """Decay of matrices and embeddings; one-dimensional weights, such as norms, never decay."""
    no_decay: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Further weights that never decay, by a part of their name, such as `tok_embeddings`."""
    state_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of both moments; bfloat16 halves their memory and limits the betas to 0.996."""
    cpu_offload: bool = False
    """Keep weights, gradients and optimizer states in host memory."""


class LrScheduleSection(SpecModel):
    """The learning rate as a function of the step alone.

    Each length is given in steps, or in tokens of global batches in the field `..._tokens`.
    """

    name: Literal["warmup_stable_decay", "cosine"] = "warmup_stable_decay"
    """`warmup_stable_decay` holds the peak until its decay starts; `cosine` decays immediately."""
    warmup_steps: Steps = 10
    """Steps of the linear rise to the peak; when absent, at most the length of the schedule."""
    warmup_tokens: Tokens | None = None
    """The same in tokens, instead of `warmup_steps`."""
    decay_steps: Steps | None = None
    """Length of the decay of `warmup_stable_decay`; a fifth of the total when absent."""
    decay_tokens: Tokens | None = None
    """The same in tokens, instead of `decay_steps`."""
    decay_shape: Literal["linear", "cosine", "sqrt"] = "linear"
    """Shape of the decay of `warmup_stable_decay`."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Rate at the end, as a share of the peak."""
    total_steps: PositiveSteps | None = None
    """Step at which the decay ends; the submitted `training.steps` when absent."""
    total_tokens: Tokens | None = None
    """The same in tokens, instead of `total_steps`."""


class ValidationSection(SpecModel):
    """Loss on held-out sequences."""

    interval_steps: Steps = 0
    """Steps between two validations; another follows the last step. 0 disables validation."""
    batches: Annotated[int, Field(ge=1, le=100_000)] = 8
    """Global batches in one validation, or the whole held-out part if it is smaller."""
