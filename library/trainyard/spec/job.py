"""The job spec: its sections, and its only parser and validator."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import ConfigDict, Field, ValidationError, model_validator

from trainyard.axes import AXES
from trainyard.axes.base import LayoutFacts
from trainyard.base.model_base import SpecModel, Text
from trainyard.base.names import LONGEST_TAG, MAX_TAGS, NAME, TAG
from trainyard.base.problems import refusal, spec_error
from trainyard.spec.layout import Layout
from trainyard.spec.sections.checkpoint import KEPT, CheckpointSection
from trainyard.spec.sections.model import DataSection, ModelSection, Plan
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
"""Project of a job that does not name one; this project always exists."""


FIRST_DEFAULTS: dict[tuple[str, str], Any] = {
    ("checkpoint", "keep_latest_k"): 0,
    ("checkpoint", "interval_steps"): 100,
    ("checkpoint", "interval_seconds"): 0.0,
    ("checkpoint", "async_mode"): "disabled",
    ("compile", "enabled"): False,
    ("training", "log_every_steps"): 1,
}
"""Original values of defaults that a later version changed, by section and field. Digests omit a
field with its original default."""
TRAINER_SECTIONS = (
    *("model", "data", "training", "optimizer", "lr_schedule", "parallelism"),
    *("activation_checkpoint", "compile", "quantization", "validation"),
)
"""Sections that only the built-in trainer reads; a job with a `program` has none of them."""
TRAINER_POINTERS = (
    *(f"/{section}" for section in TRAINER_SECTIONS),
    *(f"/checkpoint/{field}" for field in CheckpointSection.model_fields if field not in KEPT),
)
"""JSON pointers that are illegal in a job with a `program`; the JSON Schema lists them too."""


class JobSpec(SpecModel):
    """A complete training job: what it runs, its resources, and its reaction to failures.

    A job runs either a `program`, or the built-in trainer with the sections `model`, `data` and
    `training`. The spec is immutable after submission; the overrides of a resume are stored with
    the attempt.
    """

    model_config = ConfigDict(json_schema_extra={"of_the_trainer": list(TRAINER_POINTERS)})

    name: JobName = "job"
    """Name of the job in lists and references; several jobs may share it."""
    description: Annotated[Text, Field(max_length=4000)] = ""
    """Purpose of the job, as free text."""
    tags: Annotated[tuple[Tag, ...], Field(strict=False, max_length=MAX_TAGS)] = ()
    """Tags by which lists of jobs can be filtered."""
    project: ProjectName = DEFAULT_PROJECT
    """Existing project of the job; the job's slots count towards the project's share and quotas."""
    program: ProgramSection | None = None
    """A program of the user's own that runs instead of the built-in trainer. A job with a program
    must not have the trainer's sections: `model`, `data`, `training`, `optimizer`, `lr_schedule`,
    `parallelism`, `activation_checkpoint`, `compile`, `quantization` and `validation`."""
    model: ModelSection = ModelSection()
    """Model to train."""
    data: DataSection = DataSection()
    """Training text and tokenizer."""
    training: TrainingSection = TrainingSection()
    """Number of steps, batch size and precision."""
    optimizer: OptimizerSection = OptimizerSection()
    """Optimizer and its settings."""
    lr_schedule: LrScheduleSection = LrScheduleSection()
    """Learning rate as a function of the step."""
    parallelism: ParallelismSection = ParallelismSection()
    """Sizes of the parallel axes, and their options."""
    activation_checkpoint: ActivationCheckpointSection = ActivationCheckpointSection()
    """Activations that the backward pass recomputes."""
    compile: CompileSection = CompileSection()
    """Options of torch.compile."""
    quantization: QuantizationSection = QuantizationSection()
    """Low-precision matrix products in training."""
    checkpoint: CheckpointSection = CheckpointSection()
    """Content, times and storage of checkpoints, and their retention."""
    resources: ResourcesSection = ResourcesSection()
    """Slots, nodes and priority of the job."""
    retry: RetrySection = RetrySection()
    """Reaction to a failed attempt."""
    guard: GuardSection = GuardSection()
    """Reaction to a loss that is not finite or that spikes, and to a hang."""
    validation: ValidationSection = ValidationSection()
    """Loss on held-out sequences."""
    env: Env = Field(default_factory=dict)
    """Environment variables of the ranks. Where jobs must not bring code, only the variables in
    docs/environment.md are legal. Values are stored encrypted; views mask all values that
    docs/environment.md does not list. `{"secret": "hf"}` in place of a value refers to a secret of
    the project (docs/secrets.md)."""

    @model_validator(mode="after")
    def _fit_warmup(self) -> Self:
        """Shorten the default warm-up to the length of the schedule, so that short runs are legal.

        The spec stores the shortened number. So a version with another default still reads this
        number.
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

    @model_validator(mode="after")
    def _fit_hub_model(self) -> Self:
        """Set the default of `sequence_parallel` to the only legal value of a hub model."""
        axes = self.parallelism
        default = "sequence_parallel" not in axes.model_fields_set
        if self.model.hugging_face is not None and default:
            whole = axes.model_copy(update={"sequence_parallel": False})
            object.__setattr__(self, "parallelism", whole)
        return self

    @property
    def kind(self) -> Literal["trainer", "program"]:
        """Kind of job: the built-in trainer, or a program of the user's own."""
        return "trainer" if self.program is None else "program"

    @property
    def has_axes(self) -> bool:
        """Whether the sizes of the axes are known: true for the trainer and for a program with
        layouts."""
        return self.program is None or bool(self.program.layouts)

    @property
    def is_preemptible(self) -> bool:
        """Whether another job may preempt the job; for a program, a field of the spec decides."""
        return self.program is None or self.program.preemptible

    @property
    def total_steps(self) -> int | None:
        """Number of steps of the whole job; None for a program that does not give its steps."""
        return self.training.steps if self.program is None else self.program.steps

    def layout_name(self, layout: Layout) -> str:
        """Return a layout as text; for a program without layouts, return only the number of
        slots."""
        return str(layout) if self.has_axes else layout.slots_in_words

    @property
    def architecture(self) -> Architecture:
        """Shape of the model: the shape of its named size, with the changes from the spec.

        Raises:
            KeyError: the family or size is unknown; `trainyard.spec.rules` rejects that earlier.
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
        """The learning rate of every step of the job."""
        section, per_step, total = self.lr_schedule, self.tokens_per_step, self.schedule_tokens
        warmup, decay = section.warmup_tokens, section.decay_tokens
        if warmup is None:
            warmup = section.warmup_steps * per_step
        if decay is None:
            steps = section.decay_steps
            decay = total // 5 if steps is None else steps * per_step  # see help of `decay_steps`
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

        A new field or a changed default in a later version does not change the digest. The digest
        omits `env`, because others could guess a secret value from a digest. The digest omits
        `project`, because trainers do not receive this field, and server and trainer must compute
        the same digest.
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
        """Return the layout on `world_size` slots; by default, on the slots of the spec.

        For a program with layouts, it is the first listed layout of this number of slots.

        Raises:
            SpecError: the product of the axes differs from the world size, or the program has no
                layout of this world size.
        """
        size = world_size or self.resources.world_size
        if self.program is not None and self.program.layouts:
            return self.program.layouts_on(size)[0]
        return Layout.fill(world_size=size, **self.parallelism.sizes)

    def facts(self, layout: Layout) -> LayoutFacts:
        """Return the input of the parallel axes' rules: facts about the job on a layout.

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
            own_plans=self._own_plans,
        )

    @property
    def _own_plans(self) -> tuple[Plan, ...] | None:
        """Parallel plans that a user's own model may have; None for a built-in model.

        Here a hub model may have every plan, because only its folder defines its plans.
        """
        if self.model.hugging_face is not None:
            return get_args(Plan)
        return self.model.plans if self.model.is_own else None

    def batch_partition(self, layout: Layout) -> BatchPartition:
        """Return the split of each global batch over the data-parallel ranks of a layout.

        Raises:
            ValueError: there are fewer micro-batches than data-parallel ranks.
        """
        training = self.training
        return BatchPartition(training.global_batch_size, training.micro_batch_size, layout.dp)

    def on_layout(self, layout: Layout) -> JobSpec:
        """Return the job with the axes and number of slots of another layout.

        An option that depends on the size of an axis is reset if this size changes: `async_tp` if
        `tp` becomes 1, the pipeline's stages if `pp` changes, and the pipeline's micro-batches if
        `pp` or `dp` changes. Of a job with a program, only the number of slots changes.
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

        FSDP is not used if three conditions hold: `cpu_offload` is off, each pipeline stage has a
        single rank, and ranks compute in the dtype of the weights. FSDP would then have nothing to
        shard or cast, but would still copy weights and gradients. The copies would take 4 % of the
        step time of a model with 5 M parameters, and as much memory as one layer.
        """
        casts = self.training.param_dtype != self.training.weight_dtype
        return layout.world_size > layout.pp or casts or self.optimizer.cpu_offload

    def _has_pipelines_of(self, layout: Layout) -> bool:
        """Return whether the job's own axes give the same `pp` and `dp` as the other layout."""
        try:
            own = self.layout()
        except ValueError:
            return False
        return (own.pp, own.dp) == (layout.pp, layout.dp)


def parse_job_spec(source: str | bytes | Mapping[str, Any]) -> JobSpec:
    """Read a job spec from JSON text or from a parsed TOML, YAML or JSON document.

    Raises:
        SpecError: the source is not a JSON object, or a field is unknown or has an illegal value.
    """
    try:
        text = source if isinstance(source, str | bytes) else json.dumps(source, default=str)
    except (TypeError, ValueError, RecursionError) as error:  # such as a cycle: not valid JSON
        raise refusal("", f"this is no JSON object: {error}") from None
    try:
        return JobSpec.model_validate_json(text)
    except ValidationError as error:
        raise spec_error(error, text) from None
