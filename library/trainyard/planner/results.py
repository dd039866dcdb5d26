"""Results of the planner, which the server and its clients share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import RecordModel
from trainyard.base.problems import Problem
from trainyard.planner.speed.rates import Calibration
from trainyard.spec.auto import AutoValues, DeviceKind
from trainyard.spec.layout import Layout
from trainyard.training.pipeline_schedule import PipelineSchedule

Count = Annotated[int, Field(ge=0)]
Bytes = Annotated[int, Field(ge=0, json_schema_extra={"unit": "bytes"})]
Share = Annotated[float, Field(ge=0, lt=1)]


class ParameterCount(RecordModel):
    """Numbers of parameters in a model, by part."""

    embedding: Count
    """Parameters of the token embedding. With tied embeddings, the embedding is also the head."""
    blocks: Count
    """Number of transformer blocks."""
    attention: Count
    """Parameters of the query, key, value and output matrices in one block; in a hub model, the
    mean of all blocks."""
    feed_forward: Count
    """Parameters of the three SwiGLU matrices in one block; of a hub model, the mean of all that is
    outside of attention and norms."""
    norms: Count
    """Parameters of the norms in one block; in a hub model, the mean of all blocks."""
    final_norm: Count
    """Parameters of the norm before the head."""
    head: Count
    """Parameters of the output matrix; 0 with tied embeddings."""
    total: Count
    """Total number of parameters; each counts once."""

    @property
    def block(self) -> int:
        """Number of parameters in one block."""
        return self.attention + self.feed_forward + self.norms


class BatchPlan(RecordModel):
    """Split of the global batch over the data-parallel ranks."""

    global_batch_size: Count
    """Number of sequences in one optimizer step."""
    micro_batch_size: Count
    """Number of sequences in one forward pass of a rank."""
    dp: Count
    """Number of data-parallel ranks."""
    micro_batches: Count
    """Number of micro-batches in one step, over all ranks."""
    rounds: Count
    """Number of micro-batches per rank in a step, including those of weight zero."""
    idle_share: Share
    """Share of sequence places that stay empty, over all micro-batches of a step."""
    less_idle_micro_batch_size: Count | None
    """Micro-batch size below `micro_batch_size` with the least idle share; if several sizes have
    this share, the largest of them. Absent if no smaller size reduces the idle share."""


class PipelinePlan(RecordModel):
    """Stages of the model in a pipeline, and waiting times of the ranks."""

    schedule: PipelineSchedule
    """Schedule of the pipeline."""
    layers: tuple[Count, ...]
    """Number of transformer blocks in each stage, in model order."""
    microbatches: Annotated[int, Field(ge=1)]
    """Number of micro-batches in one run of the schedule."""
    runs: Annotated[int, Field(ge=1)]
    """Number of runs of the schedule in one step."""
    empty: Count
    """Number of empty micro-batches in a step, which only fill up the last run."""
    bubble_share: Share
    """Share of a run during which a rank waits, if all stages take equal time. For a zero-bubble
    schedule, this value also assumes that forward and each half of backward take equal time."""


class MemoryEstimate(RecordModel):
    """Peak device memory of the fullest rank in a step."""

    peak_at: Literal["loss", "head", "block", "embedding"]
    """Backward pass in which the peak occurs: of the loss, of the head, of the last block or, at
    the end, of the embedding."""
    weights: Bytes
    """Memory of the rank's shard of the stored weights."""
    gradients: Bytes
    """Memory of gradients accumulated over earlier micro-batches or, at the end of the step, of
    gradient shards."""
    optimizer_states: Bytes
    """Memory of the rank's shard of both moments."""
    gathered: Bytes
    """Memory of unsharded weights and gradients of the active layers."""
    activations: Bytes
    """Memory of saved or recomputed activations that the backward pass still needs."""
    logits: Bytes
    """Memory of the logits of one chunk of tokens, and of values that the loss computes from
    them."""
    slack: Bytes
    """Memory that the allocator reserves in addition to the short-lived parts above."""
    total: Bytes
    """Sum of all parts."""


StepPart = Literal["products", "elementwise", "update", "traffic", "host"]
Seconds = Annotated[float, Field(ge=0, json_schema_extra={"unit": "s"})]


class SpeedEstimate(RecordModel):
    """Predicted speed of a layout on the hardware of the nodes."""

    step_seconds: Seconds
    """Predicted time of a step."""
    tokens_per_second: Annotated[float, Field(ge=0, json_schema_extra={"unit": "tokens/s"})]
    """Predicted number of tokens per second, over all ranks."""
    spent_seconds: dict[StepPart, Seconds]
    """Time of a step by part: matrix products and attention, elementwise operations, the optimizer
    update, traffic between ranks, and remaining time of the host. The times include waits in a
    pipeline."""
    memory_bytes: Bytes
    """Predicted memory peak of the fullest rank: the planner's estimate, corrected by finished runs
    on the hardware."""


class LayoutOption(RecordModel):
    """A legal layout for a world size."""

    layout: Layout
    """Sizes of the parallel axes."""
    name: str
    """Layout as text, such as `HSDP 2x2`; for a program without layouts, the number of slots."""
    batch: BatchPlan | None
    """Split of the global batch; the micro-batch size is at most the job's own. Absent for a
    program."""
    pipeline: PipelinePlan | None
    """Stages of the pipeline; absent without pipeline parallelism."""
    memory: MemoryEstimate | None
    """Peak memory of the fullest rank; absent for a program."""
    fits: bool | None
    """Whether the layout fits into the memory of the device; absent if unknown. Finished runs on
    this hardware correct the memory estimate and add a margin."""
    speed: SpeedEstimate | None = None
    """Predicted speed; absent for a program and for unknown hardware."""


class RankedLayout(LayoutOption):
    """A legal layout for a draft of a spec, with the fields to reset in the draft."""

    resets: tuple[str, ...]
    """Fields of `parallelism` to reset to their defaults, because their values fit only the draft's
    own sizes."""


class ResumeOption(RecordModel):
    """A world size with its legal layouts, or the reason why none is legal."""

    world_size: Annotated[int, Field(ge=1)]
    """Number of slots."""
    layouts: tuple[LayoutOption, ...]
    """Legal layouts, nearest to the job's own axes first; a program's layouts are in the order of
    its spec. May be empty."""
    more: Count = 0
    """Number of legal layouts that are not listed."""
    reason: str | None
    """Reason why no layout is legal; absent if a layout is legal."""


class Strategy(RecordModel):
    """Recommended parallel axes for a size of model, with a preset to start from."""

    preset: str
    """Name of a file in `examples/presets`, without its suffix."""
    axes: tuple[str, ...]
    """Axes that should be larger than 1, outermost axis first."""
    advice: str
    """Recommended settings, as text."""
    why: str
    """Reason for the recommendation."""


class ListedLayout(RecordModel):
    """A layout in the spec of a program."""

    world_size: Annotated[int, Field(ge=1)]
    """Number of slots."""
    layout: Layout
    """Sizes of the parallel axes."""
    name: str
    """Layout as text, such as `HSDP 2x2`."""


class ProgramPlan(RecordModel):
    """Plan of a job with a program. Before the program runs, only its slots are known."""

    kind: Literal["program"] = "program"
    """Kind of job: a program."""
    world_size: Annotated[int, Field(ge=1)]
    """Number of slots."""
    layout: Layout
    """Layout of the attempt. Without layouts in the spec, all slots are data-parallel ranks,
    although the program may use them otherwise."""
    name: str
    """Layout as text, such as `HSDP 2x2`; without layouts in the spec, the number of slots."""
    layouts: tuple[ListedLayout, ...] = ()
    """All layouts in the spec, in order of preference; `layout` is one of them."""
    device: DeviceKind
    """Expected kind of slot: the kind in the spec; for `auto`, GPUs unless all nodes have only
    CPUs."""
    steps: Count | None
    """Total number of steps; absent if the spec does not give it."""
    command: tuple[str, ...]
    """Command of the first attempt, word by word."""
    unknown: tuple[str, ...]
    """Names of the quantities that are unknown before the program runs."""
    warnings: tuple[Problem, ...]
    """Settings that are legal but probably unintended, each with its field."""

    @property
    def fits(self) -> None:
        """Always null, because it is unknown whether the program fits into the memory of the
        device."""
        return None


class Plan(RecordModel):
    """Plan of a job of the built-in trainer, computed from its spec alone."""

    kind: Literal["trainer"] = "trainer"
    """Kind of job: the built-in trainer."""
    world_size: Annotated[int, Field(ge=1)]
    """Number of slots."""
    layout: Layout
    """Sizes of the parallel axes, all resolved."""
    name: str
    """Layout as text, such as `HSDP 2x2`."""
    device: DeviceKind
    """Expected kind of slot: the kind in the spec; for `auto`, GPUs unless all nodes have only
    CPUs."""
    auto: AutoValues
    """Value of each `auto` field on the expected kind of slot; an attempt resolves these fields
    again, for its own slots."""
    strategy: Strategy
    """Recommended axes for a model of this size; they may differ from the axes in the spec."""
    batch: BatchPlan
    """Split of the global batch over the data-parallel ranks."""
    pipeline: PipelinePlan | None
    """Stages of the pipeline; absent without pipeline parallelism."""
    steps: Count
    """Number of optimizer steps."""
    tokens_per_step: Count
    """Number of tokens in one optimizer step, over all ranks."""
    total_tokens: Count
    """Number of tokens in all steps."""
    parameters: ParameterCount
    """Numbers of parameters, by part of the model."""
    flops_per_token: Annotated[int, Field(ge=0, json_schema_extra={"unit": "FLOPs"})]
    """Model FLOPs of forward and backward per token, without recomputation."""
    flops_per_step: Annotated[int, Field(ge=0, json_schema_extra={"unit": "FLOPs"})]
    """Model FLOPs of one optimizer step, over all ranks."""
    total_flops: Annotated[int, Field(ge=0, json_schema_extra={"unit": "FLOPs"})]
    """Model FLOPs of all steps."""
    memory: MemoryEstimate
    """Peak memory of the fullest rank."""
    fits: bool | None
    """Whether the layout fits into the memory of the device; absent if unknown. Finished runs on
    this hardware correct the memory estimate and add a margin."""
    speed: SpeedEstimate | None = None
    """Predicted speed; absent for unknown hardware."""
    ranked: tuple[RankedLayout, ...] = ()
    """Legal layouts for the same number of slots, including the job's own layout. Layouts that fit
    come first, sorted by speed, fastest first. Empty for unknown hardware."""
    ranked_of: Count = 0
    """Number of legal layouts that were compared; `ranked` lists the best of them."""
    calibration: Calibration | None = None
    """Coefficients from which the predictions are computed, with the errors of such predictions;
    absent for unknown hardware."""
    device_memory_bytes: Bytes | None = None
    """Memory of the smallest slot, which decides `fits`; absent if unknown."""
    checkpoint_bytes: Bytes
    """Size of one checkpoint, in bytes: weights and optimizer states, each stored once."""
    checkpoints_kept: Count
    """Maximum number of checkpoints in storage at the same time; saves on request are not
    counted."""
    checkpoints_bytes: Bytes
    """Total size of `checkpoints_kept` checkpoints, in bytes."""
    warnings: tuple[Problem, ...]
    """Settings that are legal but probably unintended, each with its field."""


AnyPlan = Annotated[Plan | ProgramPlan, Field(discriminator="kind")]
"""Plan of a job of either kind."""
