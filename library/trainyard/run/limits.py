"""Limits of what scripts and programs write: texts and numbers of records, names, warnings.

Limits of records are annotations that pydantic applies when it parses. A record cuts its own texts
when it is constructed. Only the program that parses a record checks bounds of numbers, because the
writer counted them itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, SupportsFloat, SupportsIndex

from trainyard.base.whole_numbers import LAST_STEP as LAST_STEP
from trainyard.base.whole_numbers import whole_number

CoreSchema = dict[str, Any]


@dataclass(frozen=True)
class Cut:
    """A text from a program, of any content and length.

    An error quotes data, paths and output of other programs. Its record must be stored in any
    case, so the text is made storable instead of being refused: PostgreSQL stores no NUL, UTF-8
    has no half of a surrogate pair, and a report has a size limit.
    """

    limit: int
    """Most characters; `...` replaces the omitted part."""
    keep_end: bool = False
    """Whether the end is kept instead of the start."""

    def apply(self, text: str) -> str:
        """Return the text in storable form."""
        clean = text.encode("utf-8", errors="backslashreplace").decode().replace("\0", "\ufffd")
        if len(clean) <= self.limit:
            return clean
        return f"...{clean[3 - self.limit :]}" if self.keep_end else f"{clean[: self.limit - 3]}..."

    def _before(self, value: object) -> object:
        return self.apply(value) if isinstance(value, str) else value

    # Called by pydantic; a core schema is a plain dict, so nothing is imported here.
    def __get_pydantic_core_schema__(
        self, source: Any, handler: Callable[[Any], CoreSchema]
    ) -> CoreSchema:
        return {
            "type": "function-before",
            "function": {"type": "no-info", "function": self._before},
            "schema": handler(source) | {"max_length": self.limit},
        }


@dataclass(frozen=True)
class Bounds:
    """Bounds of a number, or the most items of a tuple or a dict."""

    ge: int | None = None
    gt: int | None = None
    le: int | None = None
    lt: int | None = None
    max_length: int | None = None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: Callable[[Any], CoreSchema]
    ) -> CoreSchema:
        given = {name: bound for name, bound in vars(self).items() if bound is not None}
        return handler(source) | given


ShortText = Annotated[str, Cut(4000)]
"""One or two sentences from a program: an error, an outcome, an answer."""
WrittenPath = Annotated[str, Cut(4096)]
"""A path from a program, with any bytes."""
Number = Annotated[int, Bounds(gt=-(2**62), lt=2**62)]
"""A whole number in a record; both databases and JSON can hold it."""


MAX_WARNINGS = 100
"""Names of which one place warns."""


def legal_step(step: SupportsIndex, *, name: str = "step") -> int:
    """Return a step as a Python int.

    Raises:
        ValueError: it is no whole number from 0 to 1,000,000,000.
    """
    return whole_number(name, step, least=0, most=LAST_STEP)


def number_of(value: SupportsFloat) -> float:
    """Return a number as a Python float; an array of any dimensions with one number is accepted.

    Raises:
        TypeError, ValueError, OverflowError: it is no number.
    """
    shape, item = getattr(value, "shape", None), getattr(value, "item", None)
    # numpy 2.4 refuses `float()` of an array with dimensions, and warned of it before.
    if isinstance(shape, tuple) and shape and math.prod(shape) == 1 and callable(item):
        single = item()
        if not isinstance(single, str | bytes):
            return float(single)
    return float(value)


class WarnedNames:
    """The names of which a place has warned: of each once, of the first `MAX_WARNINGS` alone."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def add(self, name: str) -> bool:
        """Return whether to warn of a name, and count it."""
        if name in self._names or len(self._names) >= MAX_WARNINGS:
            return False
        self._names.add(name)
        return True
