"""Results of the planner, shared by the server and its clients."""

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
    """The parameters of a model, by part."""

    embedding: Count
    """Token embedding; with tied embeddings it is the head too."""
    blocks: Count
    """Transformer blocks."""
    attention: Count
    """Query, key, value and output matrices of one block."""
    feed_forward: Count
    """The three SwiGLU matrices of one block."""
    norms: Count
    """RMS norms of one block."""
    final_norm: Count
    """RMS norm before the head."""
    head: Count
    """Output matrix; 0 with tied embeddings."""
    total: Count
    """All of them, each counted once."""

    @property
    def block(self) -> int:
        """Parameters of one block."""
        return self.attention + self.feed_forward + self.norms


class BatchPlan(RecordModel):
    """How the global batch is split over the data-parallel ranks."""

    global_batch_size: Count
    """Sequences in one optimizer step."""
    micro_batch_size: Count
    """Sequences that one rank runs at once."""
    dp: Count
    """Data-parallel ranks."""
    micro_batches: Count
    """Micro-batches of one step, over all ranks."""
    rounds: Count
    """Micro-batches that each rank runs in a step, those of weight zero included."""
    idle_share: Share
    """Share of the ranks' sequence slots that hold no sequence."""
    less_idle_micro_batch_size: Count | None
    """Largest smaller micro-batch size with the least idle share; absent when none has less."""


class PipelinePlan(RecordModel):
    """Stages of the model, and how long ranks wait for each other."""

    schedule: PipelineSchedule
    """The schedule."""
    layers: tuple[Count, ...]
    """Transformer blocks of each stage, in model order."""
    microbatches: Annotated[int, Field(ge=1)]
    """Micro-batches in one run of the schedule."""
    runs: Annotated[int, Field(ge=1)]
    """Runs of the schedule in one step."""
    empty: Count
    """Micro-batches of a step that hold no sequence and only fill up its last run."""
    bubble_share: Share
    """Share of a run for which a rank waits, assuming equally long stages; with a zero-bubble
    schedule also equally long forward and halves of backward."""


class MemoryEstimate(RecordModel):
    """Peak device memory of the fullest rank in a step."""

    peak_at: Literal["loss", "head", "block", "embedding"]
    """The backward in which the peak occurs: that of the loss, the head, the last block or, at the
    end, the embedding."""
    weights: Bytes
    """The rank's shard of the stored float32 weights."""
    gradients: Bytes
    """Accumulated gradients of earlier micro-batches; at the end of the step their shards."""
    optimizer_states: Bytes
    """The rank's shard of both moments."""
    gathered: Bytes
    """Unsharded weights and gradients of the layers that are being computed."""
    activations: Bytes
    """Activations of one micro-batch that backward needs, saved or recomputed."""
    logits: Bytes
    """Logits of one micro-batch, their log-softmax and their gradients."""
    slack: Bytes
    """Memory that the allocator reserves beyond the short-lived parts above."""
    total: Bytes
    """All of them."""


StepPart = Literal["products", "elementwise", "update", "traffic", "host"]
Seconds = Annotated[float, Field(ge=0, json_schema_extra={"unit": "s"})]


class SpeedEstimate(RecordModel):
    """Predicted step of a layout on the hardware of the nodes."""

    step_seconds: Seconds
    """Time of a step."""
    tokens_per_second: Annotated[float, Field(ge=0, json_schema_extra={"unit": "tokens/s"})]
    """Tokens of all ranks in a second."""
    spent_seconds: dict[StepPart, Seconds]
    """Time of a step by part: matrix products and attention, elementwise operations, the update,
    traffic between ranks, and what the host needs beyond them. Waiting in a pipeline is within."""
    memory_bytes: Bytes
    """Peak of the fullest rank: the estimate, corrected by the runs of the hardware."""


class LayoutOption(RecordModel):
    """One legal layout of a world size."""

    layout: Layout
    """The parallel axes."""
    name: str
    """The layout in words, as in `HSDP 2x2`; of a program the number of its slots."""
    batch: BatchPlan | None
    """How the global batch is split; the job's own micro-batch size where that is legal. Absent for
    a program."""
    pipeline: PipelinePlan | None
    """Its stages; absent without pipeline parallelism."""
    memory: MemoryEstimate | None
    """Peak memory of the fullest rank; absent for a program."""
    fits: bool | None
    """Whether it is within the device's memory; absent when that is not known. After runs of the
    hardware it is their corrected estimate with its margin."""
    speed: SpeedEstimate | None = None
    """Predicted step; absent for a program and for unknown hardware."""


class RankedLayout(LayoutOption):
    """A legal layout of a draft, to be written into it."""

    resets: tuple[str, ...]
    """Fields of `parallelism` that have their defaults on it: they were chosen for other sizes."""


class ResumeOption(RecordModel):
    """A world size with its legal layouts, or the reason why there is none."""

    world_size: Annotated[int, Field(ge=1)]
    """Slots."""
    layouts: tuple[LayoutOption, ...]
    """Legal layouts, nearest to the job's own axes first; empty when there is none."""
    more: Count = 0
    """Number of further legal layouts, which are not listed."""
    reason: str | None
    """Why no layout is legal; absent when one is."""


class Strategy(RecordModel):
    """Parallel axes for a size of model, with a preset to start from."""

    preset: str
    """File of `examples/presets` without its ending."""
    axes: tuple[str, ...]
    """Axes above 1, outermost first."""
    advice: str
    """What to set, in words."""
    why: str
    """Reason."""


class ProgramPlan(RecordModel):
    """The plan of a job that runs a program, of which only its slots are known before it runs."""

    kind: Literal["program"] = "program"
    """What runs: a program."""
    world_size: Annotated[int, Field(ge=1)]
    """Slots."""
    layout: Layout
    """The slots as data-parallel ranks; a program may use them otherwise."""
    name: str
    """The number of slots in words."""
    device: DeviceKind
    """Expected kind of slot: that of the spec, else GPUs, unless all nodes have CPUs only."""
    steps: Count | None
    """Steps in all; absent where the spec does not give them."""
    command: tuple[str, ...]
    """Words of the command of the first attempt."""
    unknown: tuple[str, ...]
    """What cannot be known of a program before it runs."""
    warnings: tuple[Problem, ...]
    """Settings that are legal and probably unintended, each with its field."""

    @property
    def fits(self) -> None:
        """Whether it is within the device's memory: not known."""
        return None


class Plan(RecordModel):
    """The plan of a job of the built-in trainer, computed from its spec alone."""

    kind: Literal["trainer"] = "trainer"
    """What runs: the built-in trainer."""
    world_size: Annotated[int, Field(ge=1)]
    """Slots."""
    layout: Layout
    """The parallel axes, resolved."""
    name: str
    """The layout in words, as in `HSDP 2x2`."""
    device: DeviceKind
    """Expected kind of slot: that of the spec, else GPUs, unless all nodes have CPUs only."""
    auto: AutoValues
    """Value of each field that is `auto` on such slots; an attempt uses its own slots."""
    strategy: Strategy
    """Axes with which to start for a model of this size, whatever the spec has."""
    batch: BatchPlan
    """How the global batch is split."""
    pipeline: PipelinePlan | None
    """Its stages; absent without pipeline parallelism."""
    steps: Count
    """Optimizer steps."""
    tokens_per_step: Count
    """Tokens of one optimizer step, over all ranks."""
    total_tokens: Count
    """Tokens of all steps."""
    parameters: ParameterCount
    """Parameters by part."""
    flops_per_token: Annotated[int, Field(ge=0, json_schema_extra={"unit": "FLOPs"})]
    """Model FLOPs of forward and backward for one token, recomputation not counted."""
    flops_per_step: Annotated[int, Field(ge=0, json_schema_extra={"unit": "FLOPs"})]
    """Model FLOPs of one optimizer step, over all ranks."""
    total_flops: Annotated[int, Field(ge=0, json_schema_extra={"unit": "FLOPs"})]
    """Model FLOPs of all steps."""
    memory: MemoryEstimate
    """Peak memory of the fullest rank."""
    fits: bool | None
    """Whether it is within the device's memory; absent when that is not known. After runs of the
    hardware it is their corrected estimate with its margin."""
    speed: SpeedEstimate | None = None
    """Predicted step; absent for unknown hardware."""
    ranked: tuple[RankedLayout, ...] = ()
    """Legal layouts of as many slots, those that fit first, then the fastest first; empty for
    unknown hardware. The job's own is among them."""
    ranked_of: Count = 0
    """Legal layouts that were compared; of them `ranked` lists the first."""
    calibration: Calibration | None = None
    """Coefficients behind the predictions, with their errors; absent for unknown hardware."""
    device_memory_bytes: Bytes | None = None
    """Memory of the smallest slot, with which `fits` compares; absent when that is not known."""
    checkpoint_bytes: Bytes
    """Size of one checkpoint: weights and optimizer states, each stored once."""
    checkpoints_kept: Count
    """Largest number of checkpoints on storage at once, counted by steps."""
    checkpoints_bytes: Bytes
    """Size of all of them."""
    warnings: tuple[Problem, ...]
    """Settings that are legal and probably unintended, each with its field."""


AnyPlan = Annotated[Plan | ProgramPlan, Field(discriminator="kind")]
"""The plan of a job of either kind."""
