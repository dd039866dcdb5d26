"""Rules for fields that other fields make ineffective.

A new job with a field of `NEW_JOB_RULES` is rejected. In all other cases, such as a stored job or a
resume with a new layout, the plan contains a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainyard.base.model_base import SpecModel
from trainyard.base.problems import Problem, named, unmatched
from trainyard.run.failures import NEVER_RETRIED, FailureReason
from trainyard.spec.job import JobSpec
from trainyard.spec.precision import LINEAR_LAYERS
from trainyard.training.architectures import ARCHITECTURES

EMBEDDING, HEAD = "tok_embeddings", "output"
"""Names of the built-in model's embedding and head; the head is never quantized."""


def overlap(spec: JobSpec) -> Iterator[Problem]:
    """`async_tp` needs inductor, the only backend that fuses communication with matrix products."""
    if (
        spec.parallelism.async_tp
        and spec.compile.enabled is True
        and spec.compile.backend != "inductor"
    ):
        yield Problem(
            pointer="/parallelism/async_tp",
            detail=f"async_tp=true does nothing with compile.backend={spec.compile.backend!r}; "
            "legal: false, or compile.backend='inductor'",
        )


def decay(spec: JobSpec) -> Iterator[Problem]:
    """A cosine schedule ignores the decay fields: it decays from the warm-up to its end."""
    if spec.lr_schedule.name != "cosine":
        return
    for field, value in _changed(spec.lr_schedule, "decay_steps", "decay_tokens", "decay_shape"):
        yield Problem(
            pointer=f"/lr_schedule/{field}",
            detail=f"{named(field, value)} does nothing with name='cosine', which decays from the "
            f"warm-up to the end; legal: no {field}, or name='warmup_stable_decay'",
        )


def _changed(section: SpecModel, *fields: str) -> Iterator[tuple[str, object]]:
    """Yield the name and value of each field that differs from its default."""
    default = type(section)()
    for field in fields:
        if (value := getattr(section, field)) != getattr(default, field):
            yield field, value


def exclusions(spec: JobSpec) -> Iterator[Problem]:
    """Each entry of `exclude` must occur in the name of a layer."""
    if spec.quantization.recipe != "none" and _has_our_names(spec):
        yield from _parts_of_names("/quantization/exclude", spec.quantization.exclude, spec, HEAD)


def undecayed(spec: JobSpec) -> Iterator[Problem]:
    """Each entry of `no_decay` must be part of a matrix's name, because only matrices decay."""
    if _has_our_names(spec):
        outer = (EMBEDDING,) if spec.architecture.tied_embeddings else (EMBEDDING, HEAD)
        yield from _parts_of_names("/optimizer/no_decay", spec.optimizer.no_decay, spec, *outer)


def _has_our_names(spec: JobSpec) -> bool:
    """Return whether the job trains a built-in model of a known size."""
    return not spec.model.is_own and spec.model.size in ARCHITECTURES[spec.model.family]


def _parts_of_names(
    pointer: str, parts: tuple[str, ...], spec: JobSpec, *outer: str
) -> Iterator[Problem]:
    """Yield a problem if an entry of `parts` is in no layer's name.

    The layers are the linear layers of the blocks, and the layers named in `outer`.
    """
    if not parts:
        return
    inner = [name for names in LINEAR_LAYERS.values() for name in names]
    layers = range(spec.architecture.n_layers)
    names = {*outer, *(f"layers.{index}.{name}" for index in layers for name in inner)}
    unknown = unmatched(parts, names)
    if unknown:
        yield Problem(
            pointer=pointer,
            detail=f"{named(pointer.rpartition('/')[2], parts)}: no layer has {', '.join(unknown)} "
            f"in its name; legal: parts of {', '.join(outer)} and of layers.0 to "
            f"layers.{len(layers) - 1}, each with {', '.join(inner)}",
        )


def retries(spec: JobSpec) -> Iterator[Problem]:
    """`retry.on` must not name a failure that is never retried."""
    never = [reason for reason in spec.retry.on if reason in NEVER_RETRIED]
    if never:
        legal = ", ".join(reason for reason in FailureReason if reason not in NEVER_RETRIED)
        yield Problem(
            pointer="/retry/on",
            detail=f"{named('on', spec.retry.on)}: {', '.join(never)} would recur in every "
            f"retry and is never retried; legal: {legal}",
        )


def pipeline(spec: JobSpec) -> Iterator[Problem]:
    """Pipeline fields have no effect with pp=1; a later layout may use them."""
    axes = spec.parallelism
    if axes.pp > 1:
        return
    for field, value in _changed(axes, "pp_schedule", "pp_microbatches", "pp_layers_per_stage"):
        yield Problem(
            pointer=f"/parallelism/{field}",
            detail=f"{named(field, value)} does nothing with pp=1; it applies to layouts with a "
            "pipeline",
        )


def budget(spec: JobSpec) -> Iterator[Problem]:
    """The field `memory_budget` has no effect, except in the mode `memory_budget`."""
    section = spec.activation_checkpoint
    if section.mode == "memory_budget":
        return
    for field, value in _changed(section, "memory_budget"):
        yield Problem(
            pointer="/activation_checkpoint/memory_budget",
            detail=f"{named(field, value)} does nothing with mode={section.mode!r}",
        )


def shrinking(spec: JobSpec) -> Iterator[Problem]:
    """`shrink_after_seconds` has an effect only if the job is elastic or has spare nodes."""
    seconds = spec.resources.shrink_after_seconds
    if seconds is not None and not spec.resources.continues_without_node:
        yield Problem(
            pointer="/resources/shrink_after_seconds",
            detail=f"{named('shrink_after_seconds', seconds)} does nothing without "
            "min_world_size, max_world_size or spare_nodes",
        )


Rule = Callable[[JobSpec], Iterator[Problem]]
NEW_JOB_RULES: tuple[Rule, ...] = (overlap, decay, exclusions, undecayed, retries)
"""Rules that reject a new job. Their fields would stay without effect on any layout."""
WARNING_RULES: tuple[Rule, ...] = (*NEW_JOB_RULES, pipeline, budget, shrinking)
"""Rules that the plan reports as warnings."""
