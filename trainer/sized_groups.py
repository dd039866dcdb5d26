"""Groups items in order; each group of several items stays within a size limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def sized_groups(items: Iterable[T], size: Callable[[T], int], *, most: int) -> Iterator[list[T]]:
    """Yield the items in groups of size at most `most`; a larger item forms its own group."""
    group: list[T] = []
    filled = 0
    for item in items:
        if group and filled + size(item) > most:
            yield group
            group, filled = [], 0
        group.append(item)
        filled += size(item)
    if group:
        yield group
