"""Fields of a spec that may differ from the spec in the loaded checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainyard.base.model_base import RecordModel
from trainyard.protocol.attempt import OVERRIDABLE
from trainyard.spec.job import JobSpec
from trainyard.spec.sections.model import SHAPE_FIELDS, DataSection

LABELS = ("name", "description", "tags", "project", "env")
"""Fields that are never compared with the checkpoint's spec."""
WITHOUT_EFFECT = frozenset(
    {
        "guard",
        "validation",
        "model.initial_weights",
        "model.counted",
        "model.plans",
        "model.block_classes",
        "data.prefetch_batches",
        "training.log_every_steps",
        "training.gc_freq",
        "training.deterministic",
        "training.tensorboard",
    }
)
"""Sections and fields that a resume cannot override and that do not affect the weights."""
SCHEDULE_END = frozenset({"lr_schedule.total_steps", "lr_schedule.total_tokens"})
"""Fields that set the end of the schedule. Comparisons use the resulting end in tokens instead of
these fields."""
MAY_CHANGE = WITHOUT_EFFECT | OVERRIDABLE
"""Sections and fields that may differ from the checkpoint's spec; all other fields, except those in
`LABELS` and `SCHEDULE_END`, must be equal."""
SAME_ORDER = frozenset({"data.document_masks", "data.prefetch_batches"})
"""Fields of the section `data` that change neither the sequences nor their order."""
ORDER_FIELDS = (
    *(f for name in DataSection.model_fields if (f := f"data.{name}") not in SAME_ORDER),
    *("training.seq_len", "training.seed"),
)
"""Fields that determine the sequences and their order. If one of them changes, the same position in
the data denotes another sequence."""
SHOWN_CHARACTERS = 100


class Difference(RecordModel):
    """A field that differs between two specs."""

    field: str
    """Dotted path of the field, such as `training.steps`."""
    before: Any
    """Value in the first spec."""
    after: Any
    """Value in the second spec."""

    def __str__(self) -> str:
        return f"{self.field}: {_shown(self.before)} -> {_shown(self.after)}"


def differences(before: JobSpec, after: JobSpec) -> tuple[Difference, ...]:
    """Return those differences between two specs that affect the result of training."""
    found = [each for each in _fields(before, after) if not _may_change(each.field)]
    effective = [_effective(each, before, after) for each in found]
    if before.schedule_tokens != after.schedule_tokens:
        effective.append(
            Difference(
                field="end of the schedule, in tokens",
                before=before.schedule_tokens,
                after=after.schedule_tokens,
            )
        )
    return tuple(each for each in effective if each.before != each.after)


def harmless_differences(before: JobSpec, after: JobSpec) -> tuple[Difference, ...]:
    """Return those differences between two specs that do not affect the result of training."""
    found = (each for each in _fields(before, after) if _may_change(each.field))
    return tuple(each for each in found if each.field not in SCHEDULE_END)


def keeps_order(field: str) -> bool:
    """Return whether the data keeps its order if a field changes, such as `data.path`."""
    return field not in ORDER_FIELDS


def _fields(before: JobSpec, after: JobSpec) -> Iterator[Difference]:
    """Yield each field that differs, in all sections."""
    names = JobSpec.model_fields.keys() - set(LABELS)
    # If one spec was derived from the other, most sections are the same objects.
    other = {name for name in names if getattr(before, name) is not getattr(after, name)}
    old = before.model_dump(mode="json", include=other)
    new = after.model_dump(mode="json", include=other)
    for section in old:
        if old[section] is None or new[section] is None:  # one of the jobs runs a program
            if old[section] != new[section]:
                yield Difference(field=section, before=old[section], after=new[section])
            continue
        for name, value in old[section].items():
            if value != new[section][name]:
                field = f"{section}.{name}"
                yield Difference(field=field, before=value, after=new[section][name])


def _may_change(field: str) -> bool:
    section, _, _ = field.partition(".")
    return bool({field, section} & (MAY_CHANGE | SCHEDULE_END))


def _effective(found: Difference, before: JobSpec, after: JobSpec) -> Difference:
    """Return the difference with each absent value of the section `model` replaced by the value of
    the named size."""
    section, _, name = found.field.partition(".")
    if section != "model":
        return found
    old, new = _value(before, name, found.before), _value(after, name, found.after)
    return Difference(field=found.field, before=old, after=new)


def _value(spec: JobSpec, name: str, given: Any) -> Any:
    if spec.model.is_own:
        return given
    if name == "rope_factor":
        scaling = spec.architecture.rope_scaling
        return scaling.factor if scaling else 1.0
    return getattr(spec.architecture, name) if name in (*SHAPE_FIELDS, "head_dim") else given


def _shown(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
