"""Limits on what scripts and programs write: texts, numbers, names and warnings.

Limits in records are annotations, which pydantic applies when it parses a record. A record also
cuts its own texts when it is constructed. Bounds of numbers are only checked by the program that
parses the record, because the program that writes the record computed the numbers itself.
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
    """Limit of a text from a program, which may have any content and length.

    An error quotes data, paths and output of other programs, and the record of the error must
    always be stored. Therefore an unsuitable text is converted, not rejected: PostgreSQL stores no
    NUL, UTF-8 has no lone surrogates, and the size of a report is limited.
    """

    limit: int
    """Maximum number of characters; `...` replaces the omitted part."""
    keep_end: bool = False
    """Whether to keep the end of the text instead of its start."""

    def apply(self, text: str) -> str:
        """Return the text in a form that can be stored."""
        clean = text.encode("utf-8", errors="backslashreplace").decode().replace("\0", "\ufffd")
        if len(clean) <= self.limit:
            return clean
        return f"...{clean[3 - self.limit :]}" if self.keep_end else f"{clean[: self.limit - 3]}..."

    def _before(self, value: object) -> object:
        return self.apply(value) if isinstance(value, str) else value

    # pydantic calls this method. A core schema is a plain dict, so this module needs no pydantic.
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
    """Bounds of a number, or the maximum length of a text, a tuple or a dict."""

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
"""One or two sentences from a program: an error, a result or a response."""
WrittenPath = Annotated[str, Cut(4096)]
"""A path from a program, which may contain any bytes."""
Number = Annotated[int, Bounds(gt=-(2**62), lt=2**62)]
"""An integer in a record that both databases and JSON can store."""


MAX_WARNINGS = 100
"""Maximum number of names for which one place in the code warns."""


def legal_step(step: SupportsIndex, *, name: str = "step") -> int:
    """Return a step as a Python int.

    Raises:
        ValueError: the step is not an integer from 0 to 1,000,000,000.
    """
    return whole_number(name, step, least=0, most=LAST_STEP)


def number_of(value: SupportsFloat) -> float:
    """Return a number as a Python float; an array of any shape with a single number is accepted.

    Raises:
        TypeError, ValueError, OverflowError: the value is not a number.
    """
    shape, item = getattr(value, "shape", None), getattr(value, "item", None)
    # numpy 2.4 rejects `float()` of an array with dimensions; earlier versions warn.
    if isinstance(shape, tuple) and shape and math.prod(shape) == 1 and callable(item):
        single = item()
        if not isinstance(single, str | bytes):
            return float(single)
    return float(value)


class WarnedNames:
    """Names for which one place has warned: each name once, and only `MAX_WARNINGS` names."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def add(self, name: str) -> bool:
        """Record a name; return whether to warn about it."""
        if name in self._names or len(self._names) >= MAX_WARNINGS:
            return False
        self._names.add(name)
        return True
