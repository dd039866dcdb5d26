"""The job spec: its sections, and its only parser and validator."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from trainyard.axes import AXES
from trainyard.axes.base import LayoutFacts
from trainyard.base.model_base import SpecModel, Text
from trainyard.base.names import LONGEST_TAG, MAX_TAGS, NAME, TAG
from trainyard.base.problems import refusal, spec_error
from trainyard.spec.layout import Layout
from trainyard.spec.sections.checkpoint import KEPT, CheckpointSection
from trainyard.spec.sections.model import DataSection, ModelSection
from trainyard.spec.sections.parallelism import (
    ActivationCheckpointSection,
    CompileSection,
    ParallelismSection,
    QuantizationSection,
)
from trainyard.spec.sections.program import ProgramSection
from trainyard.spec.sections.resources import Env, ResourcesSection
from trainyard.spec.sections.retry import GuardSection, RetrySection
from trainyard.spec.sections.training import (
    LrScheduleSection,
    OptimizerSection,
    TrainingSection,
    ValidationSection,
)
from trainyard.training.architectures import ARCHITECTURES, Architecture
from trainyard.training.batch_partition import BatchPartition
from trainyard.training.flops import training_flops_per_token
from trainyard.training.lr_schedule import LrSchedule

JobName = Annotated[str, Field(pattern=NAME, max_length=80, examples=["llama-7"])]
Tag = Annotated[str, Field(pattern=TAG, max_length=LONGEST_TAG)]
ProjectName = Annotated[str, Field(pattern=NAME, max_length=80, examples=["vision"])]

DEFAULT_PROJECT = "default"
"""Project of a job that names no project; it always exists."""


FIRST_DEFAULTS: dict[tuple[str, str], Any] = {
    ("checkpoint", "keep_latest_k"): 0,
    ("checkpoint", "interval_steps"): 100,
    ("checkpoint", "interval_seconds"): 0.0,
    ("checkpoint", "async_mode"): "disabled",
    ("compile", "enabled"): False,
    ("training", "log_every_steps"): 1,
}
"""Original defaults that a later version changed, by section and field; digests omit them."""
TRAINER_SECTIONS = (
    *("model", "data", "training", "optimizer", "lr_schedule", "parallelism"),
    *("activation_checkpoint", "compile", "quantization", "validation"),
)
"""Sections of the built-in trainer; a job with a `program` has none of them."""
TRAINER_POINTERS = (
    *(f"/{section}" for section in TRAINER_SECTIONS),
    *(f"/checkpoint/{field}" for field in CheckpointSection.model_fields if field not in KEPT),
)
"""JSON pointers that are illegal in a job with a `program`; the JSON Schema has them too."""


class JobSpec(SpecModel):
    """A complete training job: what runs, resources and reaction to failures.

    A job runs the built-in trainer, with model, data and training, or a `program`. The spec is
    immutable after submission; overrides of a resume are stored on the attempt.
    """

    model_config = ConfigDict(json_schema_extra={"of_the_trainer": list(TRAINER_POINTERS)})

    name: JobName = "job"
    """Name in lists and references; need not be unique."""
    description: Annotated[Text, Field(max_length=4000)] = ""
    """What the job is for."""
    tags: Annotated[tuple[Tag, ...], Field(strict=False, max_length=MAX_TAGS)] = ()
    """Words to filter by."""
    project: ProjectName = DEFAULT_PROJECT
    """Project whose share and quotas the job's slots count towards; it must exist."""
    program: ProgramSection | None = None
    """A program of the user's own, instead of the built-in trainer. Leave out the trainer's
    sections then: `model`, `data`, `training`, `optimizer`, `lr_schedule`, `parallelism`,
    `activation_checkpoint`, `compile`, `quantization` and `validation`."""
    model: ModelSection = ModelSection()
    """The model."""
    data: DataSection = DataSection()
    """The training text and its tokenizer."""
    training: TrainingSection = TrainingSection()
    """Length, batch and precision."""
    optimizer: OptimizerSection = OptimizerSection()
    """The optimizer."""
    lr_schedule: LrScheduleSection = LrScheduleSection()
    """The learning rate over time."""
    parallelism: ParallelismSection = ParallelismSection()
    """The parallel axes."""
    activation_checkpoint: ActivationCheckpointSection = ActivationCheckpointSection()
    """What backward recomputes."""
    compile: CompileSection = CompileSection()
    """torch.compile."""
    quantization: QuantizationSection = QuantizationSection()
    """Low-precision matrix products."""
    checkpoint: CheckpointSection = CheckpointSection()
    """What is saved, when and where."""
    resources: ResourcesSection = ResourcesSection()
    """Where it runs."""
    retry: RetrySection = RetrySection()
    """What follows a failure."""
    guard: GuardSection = GuardSection()
    """What follows a loss that goes wrong."""
    validation: ValidationSection = ValidationSection()
    """Loss on held-out sequences."""
    env: Env = Field(default_factory=dict)
    """Environment variables of the ranks. Where jobs may not bring code, only the variables in
    docs/environment.md are legal. Values are stored encrypted; views mask those of all other
    variables."""

    @model_validator(mode="after")
    def _fit_warmup(self) -> Self:
        """Cut the default warm-up to the length of the schedule, so that short runs are legal.

        The spec stores the number, so that later versions read the same value.
        """
        if self.program is not None:
            return self
        schedule = self.lr_schedule
        given = schedule.model_fields_set & {"warmup_steps", "warmup_tokens"}
        whole = self.schedule_tokens // self.tokens_per_step
        if not given and whole < schedule.warmup_steps:
            shorter = schedule.model_copy(update={"warmup_steps": whole})
            object.__setattr__(self, "lr_schedule", shorter)
        return self

    @property
    def kind(self) -> Literal["trainer", "program"]:
        """Kind of job: the built-in trainer, or a program of the user's own."""
        return "trainer" if self.program is None else "program"

    @property
    def is_preemptible(self) -> bool:
        """Whether another job may preempt it; a program decides, because its saves are unknown."""
        return self.program is None or self.program.preemptible

    @property
    def total_steps(self) -> int | None:
        """Steps after which the job has succeeded; None for a program that does not give them."""
        return self.training.steps if self.program is None else self.program.steps

    def layout_name(self, layout: Layout) -> str:
        """Return a layout in words; only the number of slots for a program."""
        return str(layout) if self.program is None else layout.slots_in_words

    @property
    def architecture(self) -> Architecture:
        """Shape of the model: that of its size, with the changes that the spec gives.

        Raises:
            KeyError: the family or the size is unknown (`trainyard.spec.rules` rejects it first).
        """
        return self.model.shape_of(ARCHITECTURES[self.model.family][self.model.size])

    @property
    def schedule_tokens(self) -> int:
        """Tokens after which the learning-rate schedule ends, fixed at submission."""
        schedule = self.lr_schedule
        steps = schedule.total_steps or self.training.steps
        return schedule.total_tokens or steps * self.tokens_per_step

    @property
    def schedule_steps(self) -> int:
        """Step at which the learning-rate schedule ends, fixed at submission."""
        return -(-self.schedule_tokens // self.tokens_per_step)

    @property
    def schedule(self) -> LrSchedule:
        """The learning rate over the whole job."""
        section, per_step, total = self.lr_schedule, self.tokens_per_step, self.schedule_tokens
        warmup, decay = section.warmup_tokens, section.decay_tokens
        if warmup is None:
            warmup = section.warmup_steps * per_step
        if decay is None:
            steps = section.decay_steps
            decay = total // 5 if steps is None else steps * per_step  # help of `decay_steps`
        return LrSchedule(
            name=section.name,
            decay_shape=section.decay_shape,
            peak=self.optimizer.lr,
            min_ratio=section.min_lr_ratio,
            tokens_per_step=per_step,
            total_tokens=total,
            warmup_tokens=warmup,
            decay_tokens=decay,
        )

    @property
    def flops_per_step(self) -> int:
        """Model FLOPs of one optimizer step, over all ranks."""
        per_token = training_flops_per_token(self.architecture, self.training.seq_len)
        return per_token * self.tokens_per_step

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step, over all ranks."""
        return self.training.global_batch_size * self.training.seq_len

    @property
    def digest(self) -> str:
        """SHA-256 of all values that differ from the first defaults, in hexadecimal.

        A new field or a changed default in a later version does not change the digest. It omits
        `env`: values may be secrets, and a digest would allow others to test guesses. It omits
        `project`, which no trainer receives, so server and trainer compute the same digest.
        """
        given = self.model_dump(mode="json", exclude_defaults=True, exclude={"env", "project"})
        for (section, field), first in FIRST_DEFAULTS.items():
            value = getattr(getattr(self, section), field)
            fields = given.pop(section, {})
            fields.pop(field, None)
            fields |= {field: value} if value != first else {}
            given |= {section: fields} if fields else {}
        return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()

    @property
    def pack(self) -> str | None:
        """Digest of the pack with the program's code; None without a pack."""
        code = None if self.program is None else self.program.code
        return None if code is None else code.pack

    def layout(self, world_size: int | None = None) -> Layout:
        """Return the layout on `world_size` slots (the spec's number when absent).

        Raises:
            SpecError: the axes do not multiply to the world size.
        """
        size = world_size or self.resources.world_size
        return Layout.fill(world_size=size, **self.parallelism.sizes)

    def facts(self, layout: Layout) -> LayoutFacts:
        """Return the input of the rules of the parallel axes.

        Raises:
            ValueError: there are fewer micro-batches than data-parallel ranks.
        """
        return LayoutFacts(
            sizes=layout.sizes,
            section=self.parallelism,
            architecture=self.architecture,
            size_name=self.model.size,
            seq_len=self.training.seq_len,
            batch=self.batch_partition(layout),
            compiles=self.compile.enabled is True,
            recomputation=self.activation_checkpoint.mode,
            device=self.resources.device,
            own_plans=None if self.model.factory is None else self.model.plans,
        )

    def batch_partition(self, layout: Layout) -> BatchPartition:
        """Return how each global batch is split over the data-parallel ranks of a layout.

        Raises:
            ValueError: there are fewer micro-batches than ranks.
        """
        training = self.training
        return BatchPartition(training.global_batch_size, training.micro_batch_size, layout.dp)

    def on_layout(self, layout: Layout) -> JobSpec:
        """Return the job with the axes and number of slots of another layout.

        Options that apply to one size of an axis are reset when the size changes: the stages of a
        pipeline and its micro-batches are derived again, and `async_tp` is reset with `tp`.
        """
        resources = self.resources.model_copy(update={"world_size": layout.world_size})
        if self.program is not None:
            return self.model_copy(update={"resources": resources})
        update: dict[str, Any] = layout.model_dump()
        for axis in AXES:
            update |= axis.resets(self.parallelism.sizes, layout.sizes)
        if not self._has_pipelines_of(layout):
            update["pp_microbatches"] = None
        return self.model_copy(
            update={
                "parallelism": self.parallelism.model_copy(update=update),
                "resources": resources,
            }
        )

    def is_sharded(self, layout: Layout) -> bool:
        """Return whether FSDP holds the weights on a layout.

        A single rank, or a single rank for each stage, has nothing to shard or gather, and nothing
        to cast if it computes in the type of its weights. FSDP would still copy weights and
        gradients: 4 % of the step of a model of 5 M parameters, and the memory of one layer.
        """
        casts = self.training.param_dtype != self.training.weight_dtype
        return layout.world_size > layout.pp or casts or self.optimizer.cpu_offload

    def _has_pipelines_of(self, layout: Layout) -> bool:
        """Return whether the job's own axes give the same `pp` and `dp` as a layout."""
        try:
            own = self.layout()
        except ValueError:
            return False
        return (own.pp, own.dp) == (layout.pp, layout.dp)


def parse_job_spec(source: str | bytes | Mapping[str, Any]) -> JobSpec:
    """Read a job spec from JSON text or from a parsed TOML, YAML or JSON document.

    Raises:
        SpecError: it is no JSON object, or a field is unknown or has a wrong type or value.
    """
    try:
        text = source if isinstance(source, str | bytes) else json.dumps(source, default=str)
    except (TypeError, ValueError, RecursionError) as error:  # a key or a cycle that JSON lacks
        raise refusal("", f"this is no JSON object: {error}") from None
    try:
        return JobSpec.model_validate_json(text)
    except ValidationError as error:
        raise spec_error(error, text) from None
