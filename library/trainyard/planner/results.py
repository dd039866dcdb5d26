"""What the planner says of a job before it runs, shared by the server and its clients."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.models import RecordModel
from trainyard.base.problems import Problem
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
    """Output matrix; 0 when the embedding serves."""
    total: Count
    """All of them, each counted once."""


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
    """How the model is cut into stages, and how long ranks wait for each other."""

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
    """Share of a run's time in which a rank waits, were all stages equally long; with a zero-bubble
    schedule also forward and both halves of backward."""


class MemoryEstimate(RecordModel):
    """Device memory of the fullest rank at the moment of a step when it holds most."""

    peak_at: Literal["loss", "head", "block", "embedding"]
    """Whose backward that moment is: the loss's, the head's, the last block's or the embedding's,
    which is the end."""
    weights: Bytes
    """The rank's shard of the stored float32 weights."""
    gradients: Bytes
    """Gradients that wait: those of earlier micro-batches, whole, or at the end their shards."""
    optimizer_states: Bytes
    """The rank's shard of both moments."""
    gathered: Bytes
    """Whole weights and gradients of the layers at work, on their way from and to the shards."""
    activations: Bytes
    """What backward needs of one micro-batch, and what it recomputes of it."""
    logits: Bytes
    """Logits of one micro-batch, their log-softmax and their gradients."""
    slack: Bytes
    """What the allocator holds beyond the short-lived parts above."""
    total: Bytes
    """All of them."""


class LayoutOption(RecordModel):
    """One legal layout of a world size."""

    layout: Layout
    """The parallel axes."""
    name: str
    """The layout in words, as in `HSDP 2x2`."""
    batch: BatchPlan
    """How the global batch is split; the job's own micro-batch size where that is legal."""
    pipeline: PipelinePlan | None
    """Its stages; absent without pipeline parallelism."""
    memory: MemoryEstimate
    """What the fullest rank needs."""
    fits: bool | None
    """Whether the estimate is within the device's memory; absent when that is not known."""


class ResumeOption(RecordModel):
    """A world size on which a job could go on, or why it could not."""

    world_size: Annotated[int, Field(ge=1)]
    """Slots."""
    layouts: tuple[LayoutOption, ...]
    """Legal layouts, those nearest to the job's own axes first; empty when there is none."""
    more: Count = 0
    """Further legal layouts, which are not listed."""
    reason: str | None
    """Why no layout is legal; absent when one is."""


class Plan(RecordModel):
    """What a job amounts to, worked out from its spec alone."""

    world_size: Annotated[int, Field(ge=1)]
    """Slots."""
    layout: Layout
    """The parallel axes, resolved."""
    name: str
    """The layout in words, as in `HSDP 2x2`."""
    device: DeviceKind
    """Kind of slot that is expected: the spec's own, else GPUs, unless all nodes have CPUs only."""
    auto: AutoValues
    """What each field that is `auto` stands for on such slots; an attempt goes by its own."""
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
    """What the fullest rank needs."""
    fits: bool | None
    """Whether the estimate is within the device's memory; absent when that is not known."""
    device_memory_bytes: Bytes | None = None
    """Memory of the smallest slot, by which `fits` was judged; absent when that is not known."""
    checkpoint_bytes: Bytes
    """Size of one checkpoint: weights and optimizer states, each stored once."""
    checkpoints_kept: Count
    """Checkpoints that lie on storage at once at most, counted by steps."""
    checkpoints_bytes: Bytes
    """Size of all of them."""
    warnings: tuple[Problem, ...]
    """What is legal and probably not meant, each with the field that it comes from."""
