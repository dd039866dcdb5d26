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
    """Token embedding; with tied embeddings also the head."""
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
    """Total, each parameter counted once."""

    @property
    def block(self) -> int:
        """Parameters of one block."""
        return self.attention + self.feed_forward + self.norms


class BatchPlan(RecordModel):
    """How the global batch is split over the data-parallel ranks."""

    global_batch_size: Count
    """Sequences in one optimizer step."""
    micro_batch_size: Count
    """Sequences in one forward pass of a rank."""
    dp: Count
    """Data-parallel ranks."""
    micro_batches: Count
    """Micro-batches of one step, over all ranks."""
    rounds: Count
    """Micro-batches of each rank in a step, including those of weight zero."""
    idle_share: Share
    """Share of the ranks' sequence slots without a sequence."""
    less_idle_micro_batch_size: Count | None
    """Largest smaller micro-batch size with the least idle share; absent if no size has less."""


class PipelinePlan(RecordModel):
    """Stages of the model, and waiting times of the ranks."""

    schedule: PipelineSchedule
    """The schedule."""
    layers: tuple[Count, ...]
    """Transformer blocks of each stage, in model order."""
    microbatches: Annotated[int, Field(ge=1)]
    """Micro-batches in one run of the schedule."""
    runs: Annotated[int, Field(ge=1)]
    """Runs of the schedule in one step."""
    empty: Count
    """Micro-batches of a step without a sequence, which only fill its last run."""
    bubble_share: Share
    """Share of a run for which a rank waits, if all stages take equal time; with a zero-bubble
    schedule also if forward and both halves of backward take equal time."""


class MemoryEstimate(RecordModel):
    """Peak device memory of the fullest rank in a step."""

    peak_at: Literal["loss", "head", "block", "embedding"]
    """The backward with the peak: of the loss, the head, the last block or, at the end, the
    embedding."""
    weights: Bytes
    """The rank's shard of the stored weights."""
    gradients: Bytes
    """Accumulated gradients of earlier micro-batches; their shards at the end of the step."""
    optimizer_states: Bytes
    """The rank's shard of both moments."""
    gathered: Bytes
    """Unsharded weights and gradients of the active layers."""
    activations: Bytes
    """Activations that backward still needs, saved or recomputed."""
    logits: Bytes
    """Logits of one chunk of tokens, and values that the loss derives from them."""
    slack: Bytes
    """Memory that the allocator reserves beyond the short-lived parts above."""
    total: Bytes
    """Sum of the parts."""


StepPart = Literal["products", "elementwise", "update", "traffic", "host"]
Seconds = Annotated[float, Field(ge=0, json_schema_extra={"unit": "s"})]


class SpeedEstimate(RecordModel):
    """Predicted step of a layout on the hardware of the nodes."""

    step_seconds: Seconds
    """Time of a step."""
    tokens_per_second: Annotated[float, Field(ge=0, json_schema_extra={"unit": "tokens/s"})]
    """Tokens per second, over all ranks."""
    spent_seconds: dict[StepPart, Seconds]
    """Time of a step by part: matrix products and attention, elementwise operations, the update,
    traffic between ranks, and further time of the host. Waits in a pipeline are included."""
    memory_bytes: Bytes
    """Peak of the fullest rank: the estimate, corrected by runs on the hardware."""


class LayoutOption(RecordModel):
    """One legal layout of a world size."""

    layout: Layout
    """The parallel axes."""
    name: str
    """The layout in words, such as `HSDP 2x2`; for a program the number of slots."""
    batch: BatchPlan | None
    """Split of the global batch, with the job's own micro-batch size if it is legal. Absent for a
    program."""
    pipeline: PipelinePlan | None
    """Its stages; absent without pipeline parallelism."""
    memory: MemoryEstimate | None
    """Peak memory of the fullest rank; absent for a program."""
    fits: bool | None
    """Whether it fits into the device's memory; absent if unknown. After runs on the hardware, the
    corrected estimate with its margin is compared."""
    speed: SpeedEstimate | None = None
    """Predicted step; absent for a program and for unknown hardware."""


class RankedLayout(LayoutOption):
    """A legal layout for a draft of a spec, ready to be written into it."""

    resets: tuple[str, ...]
    """Fields of `parallelism` that are reset to their defaults: they were set for other sizes."""


class ResumeOption(RecordModel):
    """A world size with its legal layouts, or the reason why there is none."""

    world_size: Annotated[int, Field(ge=1)]
    """Slots."""
    layouts: tuple[LayoutOption, ...]
    """Legal layouts, nearest to the job's own axes first; may be empty."""
    more: Count = 0
    """Number of further legal layouts that are not listed."""
    reason: str | None
    """Why no layout is legal; absent if there is one."""


class Strategy(RecordModel):
    """Parallel axes for a size of model, with a preset to start from."""

    preset: str
    """File of `examples/presets`, without its suffix."""
    axes: tuple[str, ...]
    """Axes above 1, outermost first."""
    advice: str
    """Settings to use, in words."""
    why: str
    """Reason."""


class ProgramPlan(RecordModel):
    """The plan of a program: only its slots are known before it runs."""

    kind: Literal["program"] = "program"
    """Kind of job: a program."""
    world_size: Annotated[int, Field(ge=1)]
    """Slots."""
    layout: Layout
    """The slots as data-parallel ranks; a program may use them otherwise."""
    name: str
    """The number of slots in words."""
    device: DeviceKind
    """Expected kind of slot: the spec's, else GPUs, unless all nodes have only CPUs."""
    steps: Count | None
    """Total steps; absent if the spec does not give them."""
    command: tuple[str, ...]
    """Command of the first attempt, word by word."""
    unknown: tuple[str, ...]
    """Quantities that are unknown before it runs."""
    warnings: tuple[Problem, ...]
    """Legal but probably unintended settings, each with its field."""

    @property
    def fits(self) -> None:
        """Whether it fits into the device's memory: unknown."""
        return None


class Plan(RecordModel):
    """The plan of a job of the built-in trainer, computed from its spec alone."""

    kind: Literal["trainer"] = "trainer"
    """Kind of job: the built-in trainer."""
    world_size: Annotated[int, Field(ge=1)]
    """Slots."""
    layout: Layout
    """The parallel axes, resolved."""
    name: str
    """The layout in words, such as `HSDP 2x2`."""
    device: DeviceKind
    """Expected kind of slot: the spec's, else GPUs, unless all nodes have only CPUs."""
    auto: AutoValues
    """Value of each `auto` field on the expected kind of slot; an attempt uses its own slots."""
    strategy: Strategy
    """Recommended axes for a model of this size, independent of the spec's."""
    batch: BatchPlan
    """Split of the global batch."""
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
    """Model FLOPs of forward and backward for one token, without recomputation."""
    flops_per_step: Annotated[int, Field(ge=0, json_schema_extra={"unit": "FLOPs"})]
    """Model FLOPs of one optimizer step, over all ranks."""
    total_flops: Annotated[int, Field(ge=0, json_schema_extra={"unit": "FLOPs"})]
    """Model FLOPs of all steps."""
    memory: MemoryEstimate
    """Peak memory of the fullest rank."""
    fits: bool | None
    """Whether it fits into the device's memory; absent if unknown. After runs on the hardware, the
    corrected estimate with its margin is compared."""
    speed: SpeedEstimate | None = None
    """Predicted step; absent for unknown hardware."""
    ranked: tuple[RankedLayout, ...] = ()
    """Legal layouts of the same number of slots, including the job's own. Layouts that fit come
    first, the fastest first; empty for unknown hardware."""
    ranked_of: Count = 0
    """Number of compared legal layouts; `ranked` lists the first of them."""
    calibration: Calibration | None = None
    """Coefficients behind the predictions, with their errors; absent for unknown hardware."""
    device_memory_bytes: Bytes | None = None
    """Memory of the smallest slot, which `fits` compares; absent if unknown."""
    checkpoint_bytes: Bytes
    """Size of one checkpoint: weights and optimizer states, each stored once."""
    checkpoints_kept: Count
    """Largest number of checkpoints on storage at the same time; saves on request are not
    counted."""
    checkpoints_bytes: Bytes
    """Size of `checkpoints_kept` checkpoints."""
    warnings: tuple[Problem, ...]
    """Legal but probably unintended settings, each with its field."""


AnyPlan = Annotated[Plan | ProgramPlan, Field(discriminator="kind")]
"""The plan of a trainer job or a program."""
