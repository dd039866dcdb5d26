"""Parse records that other processes wrote: dataclasses of `trainyard.run`, and models."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter

Record = TypeVar("Record")

adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Return the parser and writer of a record class; cached, because it is slow to build."""


def parse_record(kind: type[Record], text: str | bytes) -> Record:
    """Parse a record from JSON text.

    Raises:
        ValidationError: the text is not a record of this class.
    """
    found: Record = adapter(kind).validate_json(text)
    return found


def check_record(kind: type[Record], value: object) -> Record:
    """Parse a record from a parsed JSON value.

    Raises:
        ValidationError: the value is not a record of this class.
    """
    found: Record = adapter(kind).validate_python(value)
    return found
