"""The plan of a job, and the world sizes on which it could resume."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator

from trainyard.base.problems import Problem
from trainyard.planner.activations import BYTES
from trainyard.planner.legal_layouts import (
    LEAST_LISTED,
    LISTED_IN_ALL,
    MAX_LISTED,
    LegalLayouts,
    option,
    smallest_memory,
)
from trainyard.planner.micro_batches import IDLE_SHARE_LIMIT
from trainyard.planner.parameters import count_parameters
from trainyard.planner.pipeline_cost import microbatches_that_fit
from trainyard.planner.program_plan import plan_program, program_options
from trainyard.planner.results import Plan, ProgramPlan, ResumeOption
from trainyard.planner.speed.prediction import Predictor
from trainyard.planner.strategy import strategy_of
from trainyard.spec.auto import auto_values, expected_device, explicit, resolved
from trainyard.spec.checkpoint_rules import most_kept
from trainyard.spec.ignored_fields import WARNING_RULES
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.precision import (
    can_quantize,
    gathered_in_float8,
    number_format,
    quantized_elements,
    shards_of_rows,
    slots_for,
)
from trainyard.spec.rules import BYTE_VOCABULARY, check_job_spec
from trainyard.training.flops import training_flops_per_token
from trainyard.training.known_devices import Slot
from trainyard.training.pipeline_schedule import runs_of

BUBBLE_SHARE_LIMIT = 0.25
"""Share of waiting time in a pipeline above which the plan warns."""
VOCABULARY_PADDING = 64
"""A warning suggests a multiple of this number of rows, which speeds up matrix products."""


def plan_job(
    spec: JobSpec,
    *,
    slots: Collection[Slot] = (),
    predictor: Predictor | None = None,
    layout: Layout | None = None,
) -> Plan | ProgramPlan:
    """Return the plan of a job, which may run a program; raise errors as `plan` does.

    Args:
        spec: as in `plan`.
        slots: as in `plan`.
        predictor: as in `plan`.
        layout: layout of a program's attempt; by default the first for the number of slots.
    """
    if spec.program is None:
        return plan(spec, slots=slots, predictor=predictor)
    check_job_spec(spec, slots=slots)
    return plan_program(spec, slots=slots, layout=layout)


def plan(
    spec: JobSpec, *, slots: Collection[Slot] = (), predictor: Predictor | None = None
) -> Plan:
    """Return the plan of a job of the built-in trainer, from its spec alone.

    Args:
        spec: the job's spec, with or without the overrides of an attempt (`Overrides.apply`).
        slots: slots of the nodes, if known; one slot of each kind is enough.
        predictor: ranks the legal layouts by step time; without it the plan has no predictions.

    Raises:
        SpecError: the job cannot run; the error names all problems.
    """
    check_job_spec(spec, slots=slots)
    device = expected_device(spec, slots)
    auto = auto_values(spec, device)
    submitted, spec = spec, resolved(spec, device)
    chosen = option(spec, spec.layout(), slots=slots, predictor=predictor)
    ranked, ranked_of = (
        LegalLayouts(submitted, slots=slots, predictor=predictor).ranked(chosen.layout.world_size)
        if predictor is not None
        else ((), 0)
    )
    parameters = count_parameters(spec.architecture)
    steps = spec.training.steps
    kept = most_kept(spec)
    checkpoint_bytes = parameters.total * (
        BYTES[spec.training.weight_dtype] + 2 * BYTES[spec.optimizer.state_dtype]
    )
    draft = Plan(
        world_size=chosen.layout.world_size,
        **dict(chosen),
        device=device,
        auto=auto,
        strategy=strategy_of(spec),
        steps=steps,
        tokens_per_step=spec.tokens_per_step,
        total_tokens=steps * spec.tokens_per_step,
        parameters=parameters,
        flops_per_token=training_flops_per_token(spec.architecture, spec.training.seq_len),
        flops_per_step=spec.flops_per_step,
        total_flops=steps * spec.flops_per_step,
        device_memory_bytes=smallest_memory(spec, slots),
        checkpoint_bytes=checkpoint_bytes,
        checkpoints_kept=kept,
        checkpoints_bytes=kept * checkpoint_bytes,
        ranked=ranked,
        ranked_of=ranked_of,
        calibration=None if predictor is None else predictor.calibration,
        warnings=(),
    )
    warnings = [problem for warn in WARNINGS for problem in warn(spec, draft)]
    warnings += _hardware(spec, slots)
    return draft.model_copy(update={"warnings": tuple(warnings)})


def resume_options(
    spec: JobSpec,
    *,
    world_sizes: Iterable[int],
    slots: Collection[Slot] = (),
    predictor: Predictor | None = None,
) -> list[ResumeOption]:
    """Return the legal layouts for each world size, the nearest of many, or why none is legal.

    Args:
        spec: spec of a job of the built-in trainer or of a program, with or without the overrides
            of an attempt (`Overrides.apply`).
        world_sizes: numbers of slots, each at least 1.
        slots: slots of the nodes, if known; one slot of each kind is enough.
        predictor: predicts the step time of each layout; without it there are no predictions.
    """
    sizes = list(world_sizes)
    if spec.program is not None:
        return program_options(spec, sizes)
    legal = LegalLayouts(spec, slots=slots, predictor=predictor)
    at_most = min(MAX_LISTED, max(LEAST_LISTED, LISTED_IN_ALL // max(len(sizes), 1)))
    return [legal.on(world_size, at_most=at_most) for world_size in sizes]


def _idle(_: JobSpec, draft: Plan) -> Iterator[Problem]:
    batch = draft.batch
    if batch.idle_share <= IDLE_SHARE_LIMIT:
        return
    better = batch.less_idle_micro_batch_size
    advice = "" if better is None else f"; micro_batch_size={better} leaves less"
    yield Problem(
        pointer="/training/micro_batch_size",
        detail=f"{100 * batch.idle_share:.0f} % of the ranks' sequence slots stay idle: "
        f"{batch.micro_batches} micro-batches of up to {batch.micro_batch_size} on "
        f"{batch.dp} data-parallel ranks{advice}",
    )


def _bubble(spec: JobSpec, draft: Plan) -> Iterator[Problem]:
    pipeline = draft.pipeline
    if pipeline is None:
        return
    field = "pp" if spec.parallelism.pp_microbatches is None else "pp_microbatches"
    if pipeline.bubble_share > BUBBLE_SHARE_LIMIT:
        yield Problem(
            pointer=f"/parallelism/{field}",
            detail=f"pipeline ranks wait {100 * pipeline.bubble_share:.0f} % of the time: "
            f"{pipeline.schedule} runs {pipeline.microbatches} micro-batches through "
            f"{len(pipeline.layers)} stages; more of them (a smaller micro_batch_size) or fewer "
            "stages wait less",
        )
    ran = pipeline.runs * pipeline.microbatches
    if pipeline.empty > IDLE_SHARE_LIMIT * ran:
        yield Problem(
            pointer=f"/parallelism/{field}",
            detail=f"{pipeline.empty} of the {ran} micro-batches of a rank hold no sequence: "
            f"{pipeline.schedule} cannot skip them, because each run has "
            f"{pipeline.microbatches} micro-batches",
        )


def _memory(spec: JobSpec, draft: Plan) -> Iterator[Problem]:
    if draft.fits is not False:
        return
    yield Problem(
        pointer="/training/micro_batch_size",
        detail=f"the fullest rank needs about {draft.memory.total / 2**30:.1f} GiB, more than "
        "a slot has; more slots, a larger dp_shard or a smaller micro_batch_size need less",
    )
    assert draft.device_memory_bytes is not None, "it does not fit into something"
    partition = spec.batch_partition(draft.layout)
    fewer = microbatches_that_fit(
        spec, draft.layout, partition, available=draft.device_memory_bytes
    )
    if fewer is not None:
        yield Problem(
            pointer="/parallelism/pp_microbatches",
            detail=f"GPipe keeps the activations of all micro-batches of a run; "
            f"pp_microbatches={fewer} fits, with {runs_of(partition.rounds, fewer)} runs per step",
        )


def _vocabulary(spec: JobSpec, _: Plan) -> Iterator[Problem]:
    rows = spec.architecture.vocab_size
    padded = -(-BYTE_VOCABULARY // VOCABULARY_PADDING) * VOCABULARY_PADDING
    if spec.data.tokenizer == "byte" and rows > padded:
        yield Problem(
            pointer="/model/vocab_size",
            detail=f"{rows - BYTE_VOCABULARY:,} of {rows:,} vocabulary rows are never used: the "
            f"byte tokenizer has {BYTE_VOCABULARY} tokens (vocab_size={padded} holds them)",
        )


def _foreign_tokens(spec: JobSpec, _: Plan) -> Iterator[Problem]:
    if spec.model.initial_weights is not None and spec.data.tokenizer == "byte":
        yield Problem(
            pointer="/data/tokenizer",
            detail="tokenizer='byte' numbers tokens otherwise than the tokenizer of published "
            "weights, so what model.initial_weights has learned is lost; set "
            "data.tokenizer='huggingface' and data.tokenizer_path",
        )


def _unused(spec: JobSpec, _: Plan) -> Iterator[Problem]:
    for rule in WARNING_RULES:
        yield from rule(spec)


def _own_model(spec: JobSpec, _: Plan) -> Iterator[Problem]:
    model = spec.model
    if not model.is_own or model.counted is not None:
        return
    better = (
        "set model.dim, n_layers, n_heads and ffn_dim as close to the own model as possible"
        if model.hugging_face is None
        else f"`python -m trainer describe {model.hugging_face}` on a node prints model.counted"
    )
    yield Problem(
        pointer="/model/factory" if model.hugging_face is None else "/model/hugging_face",
        detail="an own model is not inspected before it runs: parameters, FLOPs and memory are "
        f"estimated for a {model.family} of the shape in the spec; {better}",
    )


def _rounding(spec: JobSpec, _: Plan) -> Iterator[Problem]:
    if spec.training.weight_dtype == "bfloat16":
        yield Problem(
            pointer="/training/weight_dtype",
            detail="bfloat16 rounds each update to nearest: an update below 2^-9 of the weight is "
            "lost; norms, which start at 1, lose all updates at common rates. Use float32 "
            "unless memory forbids it",
        )


def _gathered(spec: JobSpec, draft: Plan) -> Iterator[Problem]:
    layout, recipe, dtype = draft.layout, spec.quantization.recipe, spec.training.param_dtype
    shards = shards_of_rows(spec, layout)
    own = spec.model.is_own
    if recipe != "float8_tensorwise" or shards is None or own:
        return
    quantized = quantized_elements(spec)
    uneven = quantized - gathered_in_float8(spec, layout)
    if uneven > 0:
        share = math.ceil(100 * uneven / quantized)
        yield Problem(
            pointer="/quantization/recipe",
            detail=f"{shards} ranks do not divide the rows of {share} % of the "
            f"weights that {recipe} multiplies: FSDP gathers these in {dtype}, "
            f"with messages {BYTES[dtype]} x as large as in float8; the result is the same",
        )


def _warmup(spec: JobSpec, draft: Plan) -> Iterator[Problem]:
    if spec.schedule.warmup_tokens > draft.steps * spec.tokens_per_step / 2:
        given = spec.lr_schedule.warmup_tokens
        field = "warmup_steps" if given is None else "warmup_tokens"
        yield Problem(
            pointer=f"/lr_schedule/{field}",
            detail=f"{field}={getattr(spec.lr_schedule, field)} is more than half of the "
            f"{draft.steps} steps",
        )


def _checkpoints(spec: JobSpec, draft: Plan) -> Iterator[Problem]:
    interval = explicit(spec.checkpoint.interval_steps)
    if interval > draft.steps:
        yield Problem(
            pointer="/checkpoint/interval_steps",
            detail=f"interval_steps={interval} is beyond the {draft.steps} steps: nothing is saved "
            "before the end",
        )


def _schedule(spec: JobSpec, draft: Plan) -> Iterator[Problem]:
    end, steps = spec.schedule_steps, draft.steps
    if end == steps:
        return
    why = (
        f": the other {steps - end} of {steps} steps run at its last rate"
        if end < steps
        else f", after the last of {steps} steps: the rate never reaches its end"
    )
    yield Problem(
        pointer="/lr_schedule/total_steps", detail=f"the schedule ends at step {end}{why}"
    )


def _hardware(spec: JobSpec, slots: Collection[Slot]) -> Iterator[Problem]:
    """Yield a warning for each setting that is slow on the nodes, or fails on some of them."""
    own = slots_for(spec, slots)
    if slots and not own:
        yield Problem(
            pointer="/resources/device",
            detail=f"no node has a slot of device={spec.resources.device!r}: the job waits until "
            "one joins",
        )
    on_cpu = spec.resources.device == "cpu" or (
        bool(own) and all(slot.device == "cpu" for slot in own)
    )
    numbers, recipe = number_format(spec), spec.quantization.recipe
    if on_cpu and numbers is not None:
        yield Problem(
            pointer="/quantization/recipe",
            detail=f"a CPU emulates {recipe}: its rounding, not its speed",
        )
    if on_cpu and spec.optimizer.cpu_offload:
        yield Problem(
            pointer="/optimizer/cpu_offload",
            detail="cpu_offload changes nothing on CPU slots: everything is in the host's memory",
        )
    if on_cpu or numbers is None:
        return
    lacking = sorted({slot.name for slot in own if not can_quantize(spec, slot)})
    if lacking:
        yield Problem(
            pointer="/quantization/recipe",
            detail=f"the job would fail on nodes with {', '.join(lacking)}, which cannot multiply "
            f"{numbers}",
        )
    if spec.compile.enabled is not True:
        yield Problem(
            pointer="/compile/enabled",
            detail=f"compile.enabled=false with recipe={recipe!r}: scales and casts then run as "
            f"kernels of their own and may cost more than {numbers} products save; "
            "compile.enabled=true fuses them",
        )


WARNINGS: tuple[Callable[[JobSpec, Plan], Iterator[Problem]], ...] = (
    _idle,
    _bubble,
    _memory,
    _vocabulary,
    _foreign_tokens,
    _unused,
    _own_model,
    _rounding,
    _gathered,
    _warmup,
    _checkpoints,
    _schedule,
)
