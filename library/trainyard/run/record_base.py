"""The base of the records of a run directory: texts cut at construction, and their JSON text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from trainyard.run.limits import Cut

Cutter = Callable[[Any], Any]


class RunRecord:
    """The base of the frozen dataclasses that programs write for programs.

    Unlike a spec a record may hold NaN and infinity, written as strings: a loss that became NaN is
    the point that people look for. `trainyard.protocol.record_parser` parses records.
    """

    # Read by pydantic alone; the same settings as those of `trainyard.base.models.RecordModel`.
    __pydantic_config__: ClassVar[dict[str, object]] = {
        "extra": "forbid",
        "ser_json_inf_nan": "strings",
        "use_attribute_docstrings": True,
        "json_schema_serialization_defaults_required": True,
    }

    def __post_init__(self) -> None:
        """Cut the texts."""
        for name, cut in _cutters(type(self)):
            object.__setattr__(self, name, cut(getattr(self, name)))


def to_json(record: RunRecord, *, indent: int | None = None) -> str:
    """Return the JSON text of a record, without a line break at its end."""
    separators = (",", ": ") if indent else (",", ":")
    return json.dumps(
        to_plain(record), ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    )


def to_plain(value: Any) -> Any:
    """Return a record, or a value of one, as JSON types; what is not finite becomes a string."""
    if isinstance(value, float):
        return value if math.isfinite(value) else _not_finite(value)
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _find_cutters(kind: type[RunRecord]) -> tuple[tuple[str, Cutter], ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple((name, cut) for name, hint in hints.items() if (cut := _cutter(hint)) is not None)


def _cutter(hint: Any) -> Cutter | None:
    """Return how the texts of a value of this type are cut, or None where it has none to cut."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        cuts = (limit.apply for limit in arguments[1:] if isinstance(limit, Cut))
        return next(cuts, None) or _cutter(arguments[0])
    if origin not in (Union, UnionType, tuple, dict):
        return None
    cut = next((found for part in arguments if (found := _cutter(part)) is not None), None)
    if cut is None:
        return None
    if origin is tuple:
        return lambda items: tuple(map(cut, items))
    if origin is dict:  # names and values have the same limit
        return lambda items: {cut(name): cut(item) for name, item in items.items()}
    return lambda value: None if value is None else cut(value)


_cutters: Callable[[Any], tuple[tuple[str, Cutter], ...]] = cache(_find_cutters)
