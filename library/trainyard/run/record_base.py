"""Base class of the records in a run directory: it cuts texts and writes JSON."""

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
"""JSON strings for numbers that JSON does not allow."""


class JsonRecord(DescribedFields):
    """Base class of the frozen dataclasses by which programs exchange data through files.

    Unlike a spec, a record may contain NaN and infinity, so that people can find the point at
    which a loss became NaN; both are written as strings. `trainyard.protocol.record_parser`
    parses records.
    """

    # Settings for pydantic, the same as in `trainyard.base.model_base.RecordModel`.
    __pydantic_config__: ClassVar[dict[str, object]] = {
        "extra": "forbid",
        "ser_json_inf_nan": "strings",
        "json_schema_serialization_defaults_required": True,
    }

    def __post_init__(self) -> None:
        """Cut long texts."""
        for name, cut in _cutters(type(self)):
            object.__setattr__(self, name, cut(getattr(self, name)))


def to_json(record: JsonRecord, *, indent: int | None = None) -> str:
    """Return the JSON text of a record, without a final line break."""
    try:
        return _encode(record, indent=indent)
    except ValueError:  # the record contains NaN or infinity
        # Copy only in this case, because a copy takes 0.1 s for a commit of 10,000 files.
        return _encode(to_plain(record), indent=indent)


def to_plain(value: Any) -> Any:
    """Convert a record, or a value in it, to JSON types; NaN and infinity become strings."""
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
    """Return a function that cuts all texts in a value of this type; None if the type has no
    texts."""
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
