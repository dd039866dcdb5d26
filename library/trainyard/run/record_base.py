"""The base of the records in a run directory: texts cut at construction, and JSON text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import datetime
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from trainyard.base.docstrings import DescribedFields
from trainyard.run.limits import Cut

Cutter = Callable[[Any], Any]
NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""JSON strings for numbers that JSON lacks."""


class JsonRecord(DescribedFields):
    """The base of the frozen dataclasses that programs write for programs.

    Unlike a spec a record may hold NaN and infinity, which are written as strings: people search
    for the point where a loss became NaN. `trainyard.protocol.record_parser` parses records.
    """

    # Only pydantic reads it; the same settings as in `trainyard.base.model_base.RecordModel`.
    __pydantic_config__: ClassVar[dict[str, object]] = {
        "extra": "forbid",
        "ser_json_inf_nan": "strings",
        "json_schema_serialization_defaults_required": True,
    }

    def __post_init__(self) -> None:
        """Cut the texts."""
        for name, cut in _cutters(type(self)):
            object.__setattr__(self, name, cut(getattr(self, name)))


def to_json(record: JsonRecord, *, indent: int | None = None) -> str:
    """Return the JSON text of a record, without a final line break."""
    try:
        return _encode(record, indent=indent)
    except ValueError:  # it holds NaN or infinity
        # Copied only in this case: a copy takes 0.1 s for the commit of 10,000 files.
        return _encode(to_plain(record), indent=indent)


def to_plain(value: Any) -> Any:
    """Return a record, or a value in it, as JSON types; NaN and infinity become strings."""
    if isinstance(value, float):
        return value if math.isfinite(value) else NOT_FINITE[str(value)]
    if isinstance(value, JsonRecord | datetime):
        return to_plain(_plain_of(value))
    if isinstance(value, dict):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def _encode(value: object, *, indent: int | None) -> str:
    return json.dumps(
        value,
        ensure_ascii=False,
        allow_nan=False,
        indent=indent,
        separators=(",", ": ") if indent else (",", ":"),
        default=_plain_of,
    )


def _plain_of(record: Any) -> dict[str, Any] | str:
    if isinstance(record, datetime):
        return record.isoformat()
    if not isinstance(record, JsonRecord):
        raise TypeError(f"{type(record).__name__} is no JSON type")
    return vars(record)


def _find_cutters(kind: type[JsonRecord]) -> tuple[tuple[str, Cutter], ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple((name, cut) for name, hint in hints.items() if (cut := _cutter(hint)) is not None)


def _cutter(hint: Any) -> Cutter | None:
    """Return a function that cuts the texts in a value of this type; None if it has no texts."""
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
    if origin is dict:
        of_name, of_item = (_cutter(part) or _unchanged for part in arguments)
        return lambda items: {of_name(name): of_item(item) for name, item in items.items()}
    return lambda value: value if isinstance(value, int | float | None) else cut(value)


def _unchanged(value: Any) -> Any:
    return value


_cutters: Callable[[Any], tuple[tuple[str, Cutter], ...]] = cache(_find_cutters)
