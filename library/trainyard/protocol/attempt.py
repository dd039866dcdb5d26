"""One launch of a job: its layout, overrides, nodes and resume point."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field

from trainyard.base.model_base import PositiveSteps, Sequences, SpecModel
from trainyard.base.names import NAME
from trainyard.protocol.resume_parts import ALL_PARTS, Parts
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.checkpoint import CheckpointSection
from trainyard.spec.sections.parallelism import (
    ActivationCheckpointSection,
    CompileSection,
    ParallelismSection,
)
from trainyard.spec.sections.resources import ResourcesSection
from trainyard.spec.sections.retry import RetrySection
from trainyard.training.data_stream import Windows


class Overrides(SpecModel):
    """Settings that a resume may change, because they do not affect the result of the job."""

    parallelism: ParallelismSection | None = None
    """Changed parallel axes; for a program, the sizes of one of its `program.layouts`."""
    micro_batch_size: Sequences | None = None
    """Changed micro-batch size."""
    cpu_offload: bool | None = None
    """Whether weights, gradients and moments are kept in host memory."""
    activation_checkpoint: ActivationCheckpointSection | None = None
    """Changed choice of activations that the backward pass recomputes."""
    compile: CompileSection | None = None
    """Changed options of torch.compile."""
    checkpoint: CheckpointSection | None = None
    """Changed content, times, storage and retention of checkpoints."""
    resources: ResourcesSection | None = None
    """Changed slots, nodes and priority of the job."""
    retry: RetrySection | None = None
    """Changed reaction to a failed attempt."""
    steps: PositiveSteps | None = None
    """Changed total number of steps; the learning-rate schedule stays the same."""

    def apply(self, spec: JobSpec) -> JobSpec:
        """Return the spec with these changes, and with the submitted end of the learning-rate
        schedule."""
        changed, schedule = self.apply_but_schedule(spec), spec.lr_schedule
        if schedule.total_tokens is not None or spec.program is not None:
            return changed
        pinned = schedule.model_copy(update={"total_steps": spec.schedule_steps})
        return changed.model_copy(update={"lr_schedule": pinned})

    def apply_but_schedule(self, spec: JobSpec) -> JobSpec:
        """Return the spec with these changes, for callers that ignore `lr_schedule`.

        Without changes, return `spec` itself, because the scheduler calls this method for every job
        in each round.
        """
        given = {name: value for name, value in vars(self).items() if value is not None}
        if not given:
            return spec
        update: dict[str, Any] = {name: given[name] for name in SECTIONS if name in given}
        for name, path in single_fields(spec).items():
            if name in given:
                section, _, field = path.partition(".")
                before = update.get(section, getattr(spec, section))
                update[section] = before.model_copy(update={field: given[name]})
        return spec.model_copy(update=update)

    def with_priority(self, spec: JobSpec, priority: int) -> Self:
        """Return these overrides, with the job's priority changed to this value."""
        resources = self.resources or spec.resources
        if resources.priority == priority:
            return self
        changed = resources.model_copy(update={"priority": priority})
        return self.model_copy(update={"resources": changed})


SINGLE_FIELDS = {
    "micro_batch_size": "training.micro_batch_size",
    "steps": "training.steps",
    "cpu_offload": "optimizer.cpu_offload",
}
"""Path in the spec for each override of a single field, for jobs of the built-in trainer."""
OF_PROGRAMS = {"steps": "program.steps"}
"""Path in the spec for each override of a single field, for jobs with a program."""
SECTIONS_OF_PROGRAMS = ("checkpoint", "resources", "retry")
"""Overrides of a whole section that also apply to programs."""
SECTIONS = tuple(name for name in Overrides.model_fields if name not in SINGLE_FIELDS)
"""Overrides of a whole section; each has the name of its section."""
OVERRIDABLE = frozenset({*SECTIONS, *SINGLE_FIELDS.values(), *OF_PROGRAMS.values()})
"""Sections and fields of the spec that a resume may change."""


def single_fields(spec: JobSpec) -> dict[str, str]:
    """Return the single-field overrides that apply to a job, with their paths in the spec."""
    return SINGLE_FIELDS if spec.program is None else OF_PROGRAMS


class NodeAllocation(SpecModel):
    """Slots of one node that an attempt holds."""

    node: Annotated[str, Field(min_length=1, max_length=200)]
    """Name of the node."""
    node_rank: Annotated[int, Field(ge=0)]
    """Position of the node in the attempt. Global ranks start on node rank 0; the ranks of one node
    are contiguous."""
    slots: Annotated[tuple[int, ...], Field(strict=False, min_length=1)]
    """Indices of the slots, one per rank; on a GPU node, the indices of the GPUs. Nodes of one
    attempt may have different numbers of slots."""


class ResumePoint(SpecModel):
    """The parent checkpoint of an attempt."""

    checkpoint_id: str
    """Id of the checkpoint."""
    path: str
    """Folder of the checkpoint, relative to the storage root."""
    step: Annotated[int, Field(ge=0)]
    """Completed optimizer steps at the checkpoint."""
    metadata_digest: str
    """Expected XXH3-128 of the checkpoint's DCP metadata; checked before the metadata is opened."""
    parts: Parts = ALL_PARTS
    """Parts of the checkpoint to load. A checkpoint of the same job is loaded with all parts; a
    fork may leave parts out."""
    allow_code_change: bool = False
    """Whether the files of `model.code` may have changed since the checkpoint was written."""


class AttemptSpec(SpecModel):
    """`attempt.json`: input of the trainer in addition to the job's spec.

    A launch by hand has no such file; its input comes from `AttemptSpec.bare`.
    """

    job_id: Annotated[str, Field(pattern=NAME, max_length=100)]
    """Id of the job, and name of the job's folder below the storage root."""
    attempt: Annotated[int, Field(ge=1)] = 1
    """Number of the attempt in the job, and its fencing number in the storage."""
    layout: Layout
    """The parallel axes."""
    overrides: Overrides = Overrides()
    """Settings of this attempt that replace settings of the job's spec."""
    device: Literal["cpu", "cuda"] | None = None
    """Kind of slot, from which each `auto` is resolved. Absent in a launch by hand, where
    `resources.device` applies."""
    allocation: Annotated[tuple[NodeAllocation, ...], Field(strict=False)] = ()
    """Nodes of the attempt with their slots, by node rank; empty in a launch by hand."""
    resume: ResumePoint | None = None
    """Checkpoint to load; absent at a fresh start."""
    begun_before: bool = False
    """Whether ranks of an earlier attempt of the job have started; only used for a program."""
    skip: Windows = ()
    """Windows of the stream (start, end) to skip in addition to the windows in the checkpoint. Each
    window starts at the checkpoint's position or later."""
    check_network: bool = False
    """Whether the ranks start with a short all-reduce between the nodes. The value is equal on all
    nodes."""
    roots: dict[str, str] = Field(default_factory=dict)
    """Absolute path on this node of each storage root, by name."""
    cache_dir: str | None = None
    """Folder of this node's token caches; if absent, `<run>/cache`."""
    kernel_cache: str | None = None
    """Archive of compiled kernels, shared by similar attempts on the node; absent if the attempt
    does not share its kernels."""

    def node_of(self, rank: int) -> str | None:
        """Return the name of the node on which a global rank runs; None in a launch by hand."""
        for node in self.allocation:
            if rank < len(node.slots):
                return node.node
            rank -= len(node.slots)
        return None

    @classmethod
    def bare(cls, spec: JobSpec, *, world_size: int, job_id: str) -> Self:
        """Return the first attempt of a job that a person launches by hand.

        Raises:
            SpecError: the axes of the spec do not multiply to the world size.
            ValidationError: the job id is malformed.
        """
        return cls(job_id=job_id, layout=spec.layout(world_size))
