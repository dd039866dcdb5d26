"""Convert values of any type to facts: flat names and JSON types, within limits."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import islice
from typing import Any, SupportsFloat, SupportsIndex

from trainyard.base.names import LONGEST_TAG, MAX_TAGS, TAG
from trainyard.run.fact_types.fact_records import (
    EXACT,
    LONGEST_FACT_NAME,
    LONGEST_FACT_VALUE,
    MAX_FACTS,
    MAX_FACTS_BYTES,
    FactValue,
    fact_bytes,
)
from trainyard.run.limits import Cut, number_of
from trainyard.run.record_base import NOT_FINITE

DEEPEST = 10
"""Maximum number of nested levels with names of their own."""
MAX_ITEMS = 256
"""Maximum number of items in the text form of a list."""
MAX_BITS = 1024
"""Maximum number of bits of an integer."""

LeftOut = Callable[[str, str], None]
"""Function to call with the name of each value that is not stored, and with the reason."""
_NAME, _TEXT = Cut(LONGEST_FACT_NAME), Cut(LONGEST_FACT_VALUE)


class FactSection:
    """Stored form of a configuration or summary; values are added one by one.

    Args:
        left_out: called with the name of a value that cannot be stored, and the reason; of a
            mapping that exceeds a limit, only with the first value that does not fit.
    """

    def __init__(self, left_out: LeftOut) -> None:
        self._left_out = left_out
        self._facts: dict[str, dict[str, FactValue]] = {}  # by the name that the script gave
        self._count = self._bytes = 0

    def put(self, name: str, value: object) -> bool:
        """Store a value, replacing an earlier one; return whether the facts have changed."""
        before = self._take(name)
        new: dict[str, FactValue] = {}
        try:
            for path, inner in nested(name, value):
                if not self._add(new, _NAME.apply(path), inner):
                    break
        except Exception as error:  # noqa: BLE001 - from a mapping of any library
            self._left_out(name, _words(error))
        if new:
            self._facts[name] = new
        return new != before

    def drop(self, name: str) -> bool:
        """Remove a value; return whether it was stored."""
        return bool(self._take(name))

    def facts(self) -> dict[str, FactValue]:
        """Return all facts by flat name."""
        return {name: fact for each in self._facts.values() for name, fact in each.items()}

    def _add(self, new: dict[str, FactValue], path: str, value: object) -> bool:
        """Add a fact to `new` unless the name is taken; return whether more facts may fit."""
        try:
            fact = fact_value(value)
        except Exception as error:  # noqa: BLE001 - from an object of any library
            self._left_out(path, _words(error))
            return True
        if path in new:  # two names that have the same form after the cut
            return True
        size = fact_bytes({path: fact})
        if self._count >= MAX_FACTS or self._bytes + size > MAX_FACTS_BYTES:
            self._left_out(path, f"{MAX_FACTS:,} values of {MAX_FACTS_BYTES:,} bytes are kept")
            return False
        self._count += 1
        self._bytes += size
        new[path] = fact
        return True

    def _take(self, name: str) -> dict[str, FactValue]:
        found = self._facts.pop(name, {})
        self._count -= len(found)
        self._bytes -= fact_bytes(found)
        return found


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def facts_of(values: Mapping[str, object]) -> dict[str, FactValue]:
    """Convert values to facts; values that cannot be stored are omitted."""
    section = FactSection(lambda _name, _why: None)
    for name, value in values.items():
        section.put(name, value)
    return section.facts()


def nested(name: str, value: object, depth: int = DEEPEST) -> Iterator[tuple[str, object]]:
    """Yield the values in nested mappings, with names such as `optimizer.lr`."""
    if isinstance(value, Mapping) and depth > 0 and value:
        for key, inner in value.items():
            yield from nested(f"{name}.{key}", inner, depth - 1)
    else:
        yield name, value


def fact_value(value: Any) -> FactValue:
    """Return a value as a JSON number or boolean if possible, otherwise as text.

    Raises:
        Exception: the value cannot be converted to text, or an integer has more than 1,024 bits.
    """
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _TEXT.apply(str(value))
    if isinstance(value, list | tuple | set | frozenset):
        # A set is in hash order, which differs between processes.
        order = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        items = list(islice(order, MAX_ITEMS + 1))
        shown = items[:MAX_ITEMS] + (["..."] if len(items) > MAX_ITEMS else [])
        return _TEXT.apply(json.dumps(shown, ensure_ascii=False, default=str))
    number = _number(value)
    return _TEXT.apply(str(value)) if number is None else number


def _number(value: Any) -> FactValue | None:
    """Return the value of a number of any library, or of an array with one number; None for other
    values."""
    kind = str(getattr(value, "dtype", ""))
    if "bool" in kind and getattr(value, "size", None) == 1:
        return bool(value)
    if isinstance(value, SupportsIndex) and not isinstance(value, float):
        try:
            whole = operator.index(value)
        except TypeError:  # an array with several numbers or with fractions
            pass
        else:
            return _whole(whole)
    if isinstance(value, SupportsFloat):
        try:
            number = number_of(value)
        except (TypeError, ValueError, RuntimeError):  # several numbers
            return None
        return number if math.isfinite(number) else NOT_FINITE[str(number)]
    return None


def _whole(number: int) -> FactValue:
    if abs(number) <= EXACT:
        return number
    if number.bit_length() > MAX_BITS:
        raise ValueError(f"a number of {number.bit_length():,} bits; legal: {MAX_BITS:,} at most")
    return str(number)


def legal_tags(texts: Iterable[str]) -> tuple[str, ...]:
    """Return at most `MAX_TAGS` legal tags that are closest to the texts, without duplicates."""
    cleaned = (
        re.sub(r"[^A-Za-z0-9._:/-]+", "-", text[:1000]).strip("-._:/")[:LONGEST_TAG]
        for text in texts
    )
    found = dict.fromkeys(tag for tag in cleaned if re.fullmatch(TAG, tag))
    return tuple(islice(found, MAX_TAGS))
