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
    """The settings that a resume may change without an effect on the result of the job."""

    parallelism: ParallelismSection | None = None
    """Other parallel axes."""
    micro_batch_size: Sequences | None = None
    """Another micro-batch size."""
    cpu_offload: bool | None = None
    """Whether weights, gradients and moments are kept in host memory."""
    activation_checkpoint: ActivationCheckpointSection | None = None
    """Activations that backward recomputes."""
    compile: CompileSection | None = None
    """torch.compile."""
    checkpoint: CheckpointSection | None = None
    """What is saved, when and where."""
    resources: ResourcesSection | None = None
    """Where it runs."""
    retry: RetrySection | None = None
    """What follows a failure."""
    steps: PositiveSteps | None = None
    """Another number of steps; the learning-rate schedule stays as it was."""

    def apply(self, spec: JobSpec) -> JobSpec:
        """Return the spec with these changes; the schedule's end is pinned as submitted."""
        changed, schedule = self.apply_but_schedule(spec), spec.lr_schedule
        if schedule.total_tokens is not None or spec.program is not None:
            return changed
        pinned = schedule.model_copy(update={"total_steps": spec.schedule_steps})
        return changed.model_copy(update={"lr_schedule": pinned})

    def apply_but_schedule(self, spec: JobSpec) -> JobSpec:
        """Return the spec with these changes, for callers that ignore `lr_schedule`.

        Without a change, as in most launches, return the spec itself: a round of the scheduler
        calls this for every job.
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
        """Return these changes of a spec with another priority in the queue."""
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
"""Path in the spec of each override of a single field, for the built-in trainer."""
OF_PROGRAMS = {"steps": "program.steps"}
"""The same for a program."""
SECTIONS_OF_PROGRAMS = ("checkpoint", "resources", "retry")
"""Overrides of a whole section that apply to programs."""
SECTIONS = tuple(name for name in Overrides.model_fields if name not in SINGLE_FIELDS)
"""Overrides of a whole section, which have the section's name."""
OVERRIDABLE = frozenset({*SECTIONS, *SINGLE_FIELDS.values(), *OF_PROGRAMS.values()})
"""Sections and fields of the spec that a resume may change."""


def single_fields(spec: JobSpec) -> dict[str, str]:
    """Return the path in the spec of each override of a single field that applies to a job."""
    return SINGLE_FIELDS if spec.program is None else OF_PROGRAMS


class NodeAllocation(SpecModel):
    """Slots of one node that an attempt holds."""

    node: Annotated[str, Field(min_length=1, max_length=200)]
    """Name of the node."""
    node_rank: Annotated[int, Field(ge=0)]
    """Position among the attempt's nodes; global ranks start on node rank 0, and are contiguous by
    node."""
    slots: Annotated[tuple[int, ...], Field(strict=False, min_length=1)]
    """Indices of the slots (GPU indices on a GPU node), one for each rank. Nodes of an attempt may
    have different numbers of slots."""


class ResumePoint(SpecModel):
    """The parent checkpoint of an attempt."""

    checkpoint_id: str
    """Id of the checkpoint."""
    path: str
    """Its folder, relative to the storage root."""
    step: Annotated[int, Field(ge=0)]
    """Completed optimizer steps in it."""
    metadata_digest: str
    """XXH3-128 of its DCP metadata, compared before the metadata is opened."""
    parts: Parts = ALL_PARTS
    """Parts of it to load; all parts, unless the checkpoint belongs to another job."""
    allow_code_change: bool = False
    """Whether the files of `model.code` may have changed since the checkpoint was written."""


class AttemptSpec(SpecModel):
    """`attempt.json`: the trainer's input in addition to the job's spec.

    A bare launch has no such file and uses `AttemptSpec.bare` instead.
    """

    job_id: Annotated[str, Field(pattern=NAME, max_length=100)]
    """Id of the job, and name of its folder below the storage root."""
    attempt: Annotated[int, Field(ge=1)] = 1
    """Number of the attempt within the job; also its fencing number on storage."""
    layout: Layout
    """The parallel axes."""
    overrides: Overrides = Overrides()
    """Differences between this attempt and the job's spec."""
    device: Literal["cpu", "cuda"] | None = None
    """Device kind of its slots, which resolves each `auto`; a bare launch uses
    `resources.device`."""
    allocation: Annotated[tuple[NodeAllocation, ...], Field(strict=False)] = ()
    """The nodes, by node rank; empty for a bare launch."""
    resume: ResumePoint | None = None
    """Checkpoint to load; absent for a fresh start."""
    begun_before: bool = False
    """Whether ranks of an earlier attempt have started; only for a program."""
    skip: Windows = ()
    """Windows of the stream (start, end) to skip in addition to those of its checkpoint; each
    starts at the checkpoint's position or later."""
    check_network: bool = False
    """Whether its ranks start with a short all-reduce between the nodes; the same on each node."""
    roots: dict[str, str] = Field(default_factory=dict)
    """Absolute path of each named root on this node."""
    cache_dir: str | None = None
    """Folder of this node's token caches; `<run>/cache` when absent."""
    kernel_cache: str | None = None
    """Archive of compiled kernels that similar attempts on the node share; absent without one."""

    def node_of(self, rank: int) -> str | None:
        """Return the name of the node of a global rank; None in a bare launch."""
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
