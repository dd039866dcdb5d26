"""Sections `training`, `optimizer`, `lr_schedule` and `validation`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import Auto, PositiveSteps, Seed, Sequences, SpecModel, Steps, Tokens

Rate = Annotated[float, Field(gt=0, le=100)]


class TrainingSection(SpecModel):
    """Number of steps, batch size and precision of the training."""

    steps: PositiveSteps = 100
    """Number of optimizer steps; the job succeeds after the last step."""
    seq_len: Annotated[Tokens, Field(ge=2, le=10_000_000)] = 128
    """Length of a sequence, in tokens."""
    global_batch_size: Sequences = 16
    """Number of sequences in one optimizer step, over all ranks; it never changes in a job."""
    micro_batch_size: Sequences = 4
    """Number of sequences in one forward pass of a rank. The last micro-batch of a step may have
    fewer."""
    seed: Seed = 0
    """Seed of the initial weights, the data order and dropout."""
    max_grad_norm: Annotated[float, Field(ge=0)] | None = 1.0
    """Maximum global L2 norm of the gradients. Larger gradients are scaled down to this norm; 0 or
    null disables clipping."""
    param_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the forward and backward pass; `weight_dtype` is the dtype of the stored weights."""
    weight_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of stored weights and gradients. With bfloat16, rounding removes small updates of the
    weights."""
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype in which gradients are summed over ranks."""
    log_every_steps: PositiveSteps | Auto = "auto"
    """Number of steps between two logged lines. The data digest is written at every step. `auto` is
    1 on CPUs and 10 on GPUs, because each logged line on GPUs waits for the device."""
    gc_freq: PositiveSteps = 50
    """Number of steps between two runs of Python's garbage collection. All ranks collect after the
    same step, and at no other time."""
    deterministic: bool = False
    """Whether runs on the same layout and GPUs give bit-identical results. On GPUs, such runs are
    slower. On CPUs, results are always bit-identical."""
    tensorboard: bool = False
    """Whether to also write the logged values as TensorBoard files to `tensorboard/` in the run
    directory."""


class OptimizerSection(SpecModel):
    """The optimizer."""

    name: Literal["adamw", "adam"] = "adamw"
    """Optimizer. AdamW decouples weight decay from the gradient; Adam has no weight decay."""
    lr: Rate = 3e-4
    """Peak learning rate."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay rate of the first moment per step."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay rate of the second moment per step."""
    eps: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """Term added to the square root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.1
    """Weight decay of matrices and embeddings. One-dimensional weights, such as norms, never
    decay."""
    no_decay: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Further weights without decay, each given by a part of its name, such as `tok_embeddings`."""
    state_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of both moments. bfloat16 halves the memory of the moments, but needs betas of at most
    0.996."""
    cpu_offload: bool = False
    """Whether weights, gradients and optimizer states are kept in host memory."""


class LrScheduleSection(SpecModel):
    """The learning rate as a function of the step alone.

    Each length is given in steps, or, in the field `..._tokens`, in tokens of global batches.
    """

    name: Literal["warmup_stable_decay", "cosine"] = "warmup_stable_decay"
    """Schedule after the warm-up. `warmup_stable_decay` holds the peak until the decay starts;
    `cosine` decays immediately."""
    warmup_steps: Steps = 10
    """Number of steps of the linear rise to the peak. The default is shortened to the length of the
    schedule."""
    warmup_tokens: Tokens | None = None
    """Length of the linear rise to the peak in tokens, instead of `warmup_steps`."""
    decay_steps: Steps | None = None
    """Number of steps of the decay of `warmup_stable_decay`; if absent, a fifth of the total
    steps."""
    decay_tokens: Tokens | None = None
    """Length of the decay in tokens, instead of `decay_steps`."""
    decay_shape: Literal["linear", "cosine", "sqrt"] = "linear"
    """Shape of the decay of `warmup_stable_decay`."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Learning rate at the end of the schedule, as a share of the peak."""
    total_steps: PositiveSteps | None = None
    """Step at which the schedule ends; if absent, the submitted `training.steps`."""
    total_tokens: Tokens | None = None
    """Number of tokens at which the schedule ends, instead of `total_steps`."""


class ValidationSection(SpecModel):
    """Loss on held-out sequences."""

    interval_steps: Steps = 0
    """Number of steps between two validations. A validation always follows the last step. 0
    disables validation."""
    batches: Annotated[int, Field(ge=1, le=100_000)] = 8
    """Number of global batches in one validation. If the held-out part has fewer, all of it is
    used."""
