"""Parses records that another process wrote: the dataclasses of `trainyard.run`, and models."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter

Record = TypeVar("Record")

adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Return what parses a record and writes it; one for each class, because building it is slow."""


def parse_record(kind: type[Record], text: str | bytes) -> Record:
    """Return the record that a JSON text holds.

    Raises:
        ValidationError: the text holds no such record.
    """
    found: Record = adapter(kind).validate_json(text)
    return found


def check_record(kind: type[Record], value: object) -> Record:
    """Return the record that a parsed JSON value holds.

    Raises:
        ValidationError: the value is no such record.
    """
    found: Record = adapter(kind).validate_python(value)
    return found
