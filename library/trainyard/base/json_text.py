"""Checks of JSON text from outside: limits of size and depth, and no duplicate keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from trainyard.base.problems import Problem, named, pointer_to

MAX_VALUES = 10_000
"""Maximum number of keys and list items in a document, over all levels."""
MAX_DEPTH = 32
"""Maximum number of nested levels of objects and lists."""

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


def is_json_number(text: str) -> bool:
    """Return whether a text is a JSON number; for example, `007`, `1_000`, `+5` and `inf` are
    not."""
    return _NUMBER.fullmatch(text) is not None


def json_problem(text: str | bytes) -> Problem | None:
    """Return the first problem that models do not detect: a duplicate key, excess size or depth.

    For text that is not JSON, return None: the models report that error.
    """
    twice: dict[int, str] = {}
    kept: list[dict[str, Any]] = []  # keeps the objects alive, so that ids are not reused

    def together(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen: set[str] = set()
            twice[id(found)] = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
            kept.append(found)
        return found

    try:
        # Numbers stay text, because Python rejects integers above 4,300 digits, unlike other
        # parsers.
        document = json.loads(
            text, object_pairs_hook=together, parse_int=str, parse_float=str, parse_constant=str
        )
    except RecursionError:
        return Problem(pointer="", detail=_too_deep())
    except ValueError:
        return None
    return _first(document, twice)


def _first(document: Any, twice: dict[int, str]) -> Problem | None:
    count = 0
    for location, value in _containers(document):
        count += len(value)
        if count > MAX_VALUES:
            return Problem(pointer="", detail=f"holds more than {MAX_VALUES:,} keys and list items")
        if len(location) >= MAX_DEPTH:
            return Problem(pointer=pointer_to(location), detail=_too_deep())
        if id(value) in twice:
            key = twice[id(value)]
            return Problem(
                pointer=pointer_to((*location, key)),
                detail=f"{named('key', key)} is given twice in one object",
            )
    if twice:  # the duplicate is inside an object that a second key has replaced
        key = next(iter(twice.values()))
        return Problem(pointer="", detail=f"{named('key', key)} is given twice in one object")
    return None


def _containers(document: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield each object and list with its location, outer before inner."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), document)]
    while waiting:
        location, value = waiting.pop()
        if not isinstance(value, dict | list):
            continue
        yield location, value
        items = value.items() if isinstance(value, dict) else enumerate(value)
        waiting.extend(
            ((*location, part), item) for part, item in items if isinstance(item, dict | list)
        )


def _too_deep() -> str:
    return f"holds more than {MAX_DEPTH} levels of objects and lists within each other"
