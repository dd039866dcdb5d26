"""Problems of an input; each has a location, which is a JSON pointer."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trainyard.base.model_base import RecordModel
from trainyard.base.names import LEGAL
from trainyard.base.redaction import hide_credentials

UNKNOWN_FIELD = ("extra_forbidden", "unexpected_keyword_argument")
"""pydantic's error types for an unknown field: one for models, one for dataclasses."""


SECRET_FIELDS = frozenset({"password", "current", "new", "token", "code", "value"})
"""Top-level fields of bodies whose values are secrets, so no problem contains them."""


class Problem(RecordModel):
    """One problem of an input."""

    pointer: str
    """JSON pointer (RFC 6901) to the field; empty for the whole document."""
    detail: str
    """Description of the problem, usually with the given value and the legal values."""


class SpecError(ValueError):
    """An input was rejected; `problems` lists all of its problems."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{p.pointer or '/'}: {p.detail}" for p in self.problems))


def refusal(pointer: str, detail: str) -> SpecError:
    """Return the error for a single problem."""
    return SpecError([Problem(pointer=pointer, detail=detail)])


def nearest(given: int, legal: Iterable[int]) -> str:
    """Return a phrase with the legal values that are nearest to a value, below and above."""
    shown = around(given, legal)
    return f"nearest legal: {shown}" if shown else "no value is legal"


def around(given: int, legal: Iterable[int]) -> str:
    """Return the legal values that are nearest to a value, below and above, separated by a
    comma."""
    values = list(legal)
    below = max((value for value in values if value < given), default=None)
    above = min((value for value in values if value > given), default=None)
    return ", ".join(str(value) for value in (below, above) if value is not None)


def multiples(step: int, value: int) -> list[int]:
    """Return the largest positive multiple of `step` up to `value`, if any, and the next one."""
    below = value // step * step
    return [below, below + step] if below else [below + step]


def unmatched(parts: Iterable[str], names: Collection[str]) -> list[str]:
    """Return the parts that are not a substring of any of the names."""
    return [part for part in parts if not any(part in name for name in names)]


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors of a number, ascending."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def named(field: str, value: object) -> str:
    """Return a field and its value as text, as written in a spec; a long value is truncated."""
    if isinstance(value, bool):
        return f"{field}={str(value).lower()}"
    if isinstance(value, float):
        return f"{field}={value:g}"
    shown = json.dumps(value) if isinstance(value, tuple | dict) else repr(value)
    return f"{field}={_cut(shown)}"


def spec_error(error: ValidationError, text: str | bytes) -> SpecError:
    """Convert pydantic's errors for a JSON text to problems with location and value."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):  # pydantic has already reported this, with a location
        document = None
    return SpecError(problems_of(error, document))


def pointer_to(location: Sequence[str | int]) -> str:
    """Return the JSON pointer for a path of keys and indices."""
    escaped = (str(part).replace("~", "~0").replace("/", "~1") for part in location)
    return "".join(f"/{part}" for part in escaped)


def _resolvable(location: Sequence[str | int], document: Any) -> tuple[str | int, ...]:
    """Drop the parts that pydantic adds to a location, such as members of a union."""
    path: list[str | int] = []
    for part in location:
        if isinstance(document, dict) and isinstance(part, str):
            if part not in document:
                if not part.isidentifier():  # a tag of a union
                    continue
                path.append(part)  # a missing field has no value yet, so keep its key
                break
            document = document[part]
        elif isinstance(document, list | tuple) and isinstance(part, int):
            document = document[part] if part < len(document) else None
        else:
            break
        path.append(part)
    return tuple(path)


def _shown(item: ErrorDetails, detail: str) -> str:
    """Return the given value as text; empty if the problem's detail already contains this text, or
    if the value may be a secret."""
    shown = repr(item["input"])
    place = item["loc"]
    may_hold_secret = not place or "env" in place or place[0] in SECRET_FIELDS
    if may_hold_secret or (isinstance(item["input"], str) and shown in detail):
        return ""
    return f", got {_cut(shown)}"


def _cut(shown: str) -> str:
    shown = hide_credentials(shown)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def problems_of(error: ValidationError, document: Any) -> list[Problem]:
    """Convert pydantic's errors for `document` to problems that contain the given values.

    For a field with several types, pydantic reports one error per type; these become a single
    problem. Values of environment variables may be secrets, so no problem contains them.
    """
    details: dict[str, list[str]] = {}
    for item in error.errors(include_url=False):
        pointer = pointer_to(_resolvable(item["loc"], document))
        detail = item["msg"].removeprefix("Value error, ")
        if item["type"] in UNKNOWN_FIELD:
            detail = "unknown field"
        elif legal := LEGAL.get(item.get("ctx", {}).get("pattern", "")):
            # A person may put a secret itself in place of its name.
            shown = "this" if "env" in item["loc"] else _cut(repr(item["input"]))
            detail = f"{shown} is no name; legal: {legal}"
        elif item["type"] != "missing" and isinstance(item["input"], str | int | float | bool):
            detail += _shown(item, detail)
        if detail not in details.setdefault(pointer, []):
            details[pointer].append(detail)
    return [Problem(pointer=p, detail=" or: ".join(texts)) for p, texts in details.items()]
