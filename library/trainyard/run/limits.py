"""Limits of what scripts and programs write: texts and numbers of records, names, warnings.

Those of records are annotations, which pydantic applies where it parses. A record cuts its own
texts when it is constructed. Bounds of numbers are checked by the program that parses a record:
who writes one has counted it.
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
    """A text that a program wrote, of whatever content and length.

    An error quotes data, paths and output of other programs. Its record must be kept all the same,
    so the text is made storable instead of refused: PostgreSQL stores no NUL, UTF-8 has no half of
    a surrogate pair, and a report has a largest size.
    """

    limit: int
    """Most characters; `...` stands for what is left out."""
    keep_end: bool = False
    """Whether the end is kept instead of the beginning."""

    def apply(self, text: str) -> str:
        """Return the text as it can be stored."""
        clean = text.encode("utf-8", errors="backslashreplace").decode().replace("\0", "\ufffd")
        if len(clean) <= self.limit:
            return clean
        return f"...{clean[3 - self.limit :]}" if self.keep_end else f"{clean[: self.limit - 3]}..."

    def _before(self, value: object) -> object:
        return self.apply(value) if isinstance(value, str) else value

    # Called by pydantic; a core schema is a plain dict, so that nothing is imported here.
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
    """The numbers that a field can hold, or the most items of a tuple or a dict."""

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
"""One or two sentences of a program: an error, an outcome, an answer."""
WrittenPath = Annotated[str, Cut(4096)]
"""A path as a program names it, whatever bytes it holds."""
Number = Annotated[int, Bounds(gt=-(2**62), lt=2**62)]
"""A whole number of a record; both databases and JSON hold it."""


MAX_WARNINGS = 100
"""Names of which one place warns."""


def legal_step(step: SupportsIndex, *, name: str = "step") -> int:
    """Return a step as Python's whole number.

    Raises:
        ValueError: it is no whole number from 0 to 1,000,000,000.
    """
    return whole_number(name, step, least=0, most=LAST_STEP)


def number_of(value: SupportsFloat) -> float:
    """Return a number as Python's; an array with a single number, of any dimensions, is that one.

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
