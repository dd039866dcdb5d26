"""Renders the plan of a spec, and the changes of a resume or a fork."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from trainyard.base.problems import Problem
from trainyard.cli import formats
from trainyard.cli.output import facts, heading
from trainyard.cli.table import Listing
from trainyard.planner.results import (
    MemoryEstimate,
    PipelinePlan,
    Plan,
    ProgramPlan,
    SpeedEstimate,
)
from trainyard.planner.speed.rates import Calibration
from trainyard.protocol.fork_rules import Guarantee
from trainyard.protocol.rest.checkpoints import ForkPreview
from trainyard.protocol.rest.resume import ResumePreview


def draw_plan(plan: Plan | ProgramPlan) -> RenderableType:
    """Return the plan of a spec."""
    if isinstance(plan, ProgramPlan):
        return _plan_of_program(plan)
    batch, model = plan.batch, plan.parameters
    idle = formats.share(batch.idle_share)
    if batch.less_idle_micro_batch_size:
        idle += f"; micro_batch_size={batch.less_idle_micro_batch_size} idles less"
    rows = facts(
        [
            ("model", f"{formats.short(model.total)} parameters, "
             f"{formats.short(model.embedding + model.head)} of them in embedding and head"),
            ("batch", f"{batch.global_batch_size:,} sequences a step: {batch.micro_batches:,} "
             f"micro-batches of {batch.micro_batch_size}, {batch.rounds} for each of "
             f"{batch.dp} data-parallel ranks"),
            ("idle", idle),
            ("pipeline", _pipeline(plan.pipeline)),
            ("length", f"{plan.steps:,} steps of {plan.tokens_per_step:,} tokens: "
             f"{formats.short(plan.total_tokens)} tokens, {formats.short(plan.total_flops)} FLOPs"),
            ("memory", _memory(plan.memory, plan.fits)),
            ("speed", _speed(plan.speed)),
            ("checkpoint", f"{formats.size(plan.checkpoint_bytes)} each, up to "
             f"{plan.checkpoints_kept:,} kept: {formats.size(plan.checkpoints_bytes)}"),
            ("strategy", f"for this size {'+'.join(plan.strategy.axes)}, as preset "
             f"{plan.strategy.preset}.toml"),
            (f"auto on {plan.device}", formats.auto(plan.auto)),
        ]
    )  # fmt: skip
    slots = formats.counted(plan.world_size, "slot")
    head = Text.assemble((plan.name, "bold"), f" on {slots}")
    return Group(head, rows, *_ranked(plan), *_warnings(plan.warnings))


def _speed(speed: SpeedEstimate | None) -> str | None:
    if speed is None:
        return None
    spent = sorted(speed.spent_seconds.items(), key=lambda part: -part[1])[:3]
    named = ", ".join(
        f"{name} {formats.share(seconds / speed.step_seconds)}" for name, seconds in spent
    )
    return (
        f"about {formats.short(speed.tokens_per_second)} tokens/s, "
        f"{speed.step_seconds:.3g} s a step ({named})"
    )


def _ranked(plan: Plan) -> list[RenderableType]:
    if not plan.ranked or plan.calibration is None:
        return []
    rows = Listing(
        *("  LAYOUT", "TOKENS/S", "STEP", "MICRO-BATCH", "MEMORY", ""),
        right=("TOKENS/S", "STEP", "MICRO-BATCH", "MEMORY"),
        spare=("MICRO-BATCH", "STEP"),
        elastic="  LAYOUT",
    )
    for option in plan.ranked:
        assert option.speed is not None, "ranked by speed"
        note = "this one" if option.layout == plan.layout else ""
        if option.fits is False:
            note = f"{note}, does not fit".removeprefix(", ")
        rows.add(
            f"  {option.name}",
            formats.short(option.speed.tokens_per_second),
            f"{option.speed.step_seconds:.3g} s",
            "" if option.batch is None else str(option.batch.micro_batch_size),
            formats.size(option.speed.memory_bytes),
            note,
            style="" if option.layout == plan.layout else "dim",
        )
    compared = formats.counted(plan.ranked_of, "legal layout")
    return [
        heading(f"Fastest of {compared}, predicted"),
        rows,
        Text(f"  {calibration_words(plan.calibration)}", style="dim"),
    ]


def calibration_words(calibration: Calibration) -> str:
    """Return a sentence on the errors of predictions for a kind of hardware."""
    name, accuracy = calibration.device_name, calibration.accuracy
    if accuracy is None:
        return f"From the data sheet of {name}: no run has ended on it yet, so the order is rough."
    words = f"Learned from {formats.counted(calibration.runs, 'run')} on {name}"
    if accuracy.step_median is not None and accuracy.step_p95 is not None:
        words += (
            f"; step time off by {formats.share(accuracy.step_median)} in the median, "
            f"{formats.share(accuracy.step_p95)} at p95"
        )
    if accuracy.memory_median is not None and accuracy.memory_p95 is not None:
        words += (
            f"; memory by {formats.share(accuracy.memory_median)} and "
            f"{formats.share(accuracy.memory_p95)}"
        )
    wrong = f"{accuracy.fits_wrong} of {accuracy.fits_judged} runs predicted to fit did not"
    return f"{words}; {wrong}."


def _plan_of_program(plan: ProgramPlan) -> RenderableType:
    rows = facts(
        [
            ("command", shlex.join(plan.command)),
            ("length", "unknown" if plan.steps is None else f"{plan.steps:,} steps"),
            ("device", plan.device),
            ("unknown", "; ".join(plan.unknown)),
        ]
    )
    slots = formats.counted(plan.world_size, "slot")
    head = Text.assemble(("program", "bold"), f" on {slots}")
    if plan.layouts:
        head = Text.assemble((plan.name, "bold"), f" on {slots}, program")
    return Group(head, rows, *_listed(plan), *_warnings(plan.warnings))


def _listed(plan: ProgramPlan) -> list[RenderableType]:
    """Return the layouts of a program, one line for each number of slots."""
    if not plan.layouts:
        return []
    names: dict[int, list[str]] = {}
    for each in plan.layouts:
        note = " (this one)" if each.layout == plan.layout else ""
        names.setdefault(each.world_size, []).append(f"{each.name}{note}")
    rows = facts((formats.counted(size, "slot"), ", ".join(names[size])) for size in sorted(names))
    return [heading(formats.counted(len(plan.layouts), "layout")), rows]


def _pipeline(pipeline: PipelinePlan | None) -> str | None:
    if pipeline is None:
        return None
    runs = f"{pipeline.runs} runs of " if pipeline.runs > 1 else ""
    empty = f" ({pipeline.empty} empty)" if pipeline.empty else ""
    layers = "+".join(map(str, pipeline.layers))
    return (
        f"{pipeline.schedule}, stages of {layers} layers, "
        f"{runs}{pipeline.microbatches} micro-batches{empty}, "
        f"{formats.share(pipeline.bubble_share)} waiting"
    )


def draw_preview(preview: ResumePreview) -> RenderableType:
    """Return a comparison of the values before and after a resume."""
    rows = Listing("  ", "BEFORE", "AFTER", "", elastic="BEFORE")
    for change in preview.changes:
        style = "" if change.changed else "dim"
        sign = "changes" if change.changed else "stays"
        rows.add(f"  {change.name}", change.before, change.after, sign, style=style)
    origin = preview.checkpoint_id
    start = f"from step {preview.step:,}" if origin else "from the start"
    if preview.saves_first:
        start = f"from the checkpoint that its stop will save (now at step {preview.step:,})"
    slots = formats.counted(preview.plan.world_size, "slot")
    head = Text.assemble((preview.plan.name, "bold"), f" on {slots}, ", start)
    if isinstance(preview.plan, ProgramPlan) and not preview.plan.layouts:
        head = Text.assemble(("program", "bold"), f" on {slots}, ", start)
    if origin:
        head.append(f"  {origin}", style="dim")
    parts: list[RenderableType] = [head, rows, *_warnings(preview.plan.warnings)]
    if preview.branch:
        parts.append(Text("\nNewer checkpoints are kept, as an abandoned branch."))
    return Group(*parts)


def draw_fork(preview: ForkPreview) -> RenderableType:
    """Return the preview of a fork: its plan, and the parts of training that continue exactly."""
    start = Text(f"{preview.name}, with {', '.join(preview.parts)} of ")
    start.append(preview.checkpoint_id, style="dim")
    start.append(f", starts after step {preview.start_step:,}")
    rows = facts([(g.name, _kept(g)) for g in preview.guarantees])
    return Group(start, draw_plan(preview.plan), heading("What continues exactly"), rows)


def _kept(guarantee: Guarantee) -> Text:
    sign = ("✓", "green") if guarantee.holds else ("✗", "yellow")
    return Text.assemble(sign, f" {guarantee.detail}")


def _memory(memory: MemoryEstimate, fits: bool | None) -> str:
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer_states,
        "activations": memory.activations,
        "logits": memory.logits,
    }
    largest = sorted(parts.items(), key=lambda part: -part[1])[:3]
    named = ", ".join(f"{name} {formats.size(amount)}" for name, amount in largest)
    verdict = {True: "; fits", False: "; does not fit", None: ""}[fits]
    return f"{formats.size(memory.total)} on the fullest rank ({named}){verdict}"


def warning_lines(warnings: Iterable[Problem]) -> list[str]:
    """Return one line per warning, which starts with the warning's field."""
    return [f"{w.pointer.strip('/').replace('/', '.')}: {w.detail}" for w in warnings]


def _warnings(warnings: Iterable[Problem]) -> list[RenderableType]:
    lines: list[RenderableType] = [Text(f"  {line}") for line in warning_lines(warnings)]
    return [heading("Warnings"), *lines] if lines else []
