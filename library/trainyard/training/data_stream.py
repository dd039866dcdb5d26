"""The endless stream of sequences, and the windows of it that are skipped on purpose.

All arithmetic of positions is here, for the trainer's reader and the server's comparisons. Skipped
windows change which sequences a step holds, never how many.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

Position = Annotated[int, Field(ge=0, lt=2**63)]


def _check_window(window: tuple[int, int]) -> tuple[int, int]:
    if window[0] >= window[1]:
        raise ValueError(f"window [{window[0]}, {window[1]}) holds nothing: its end comes first")
    return window


# The schema declares an array of two: generated TypeScript types do not preserve the tuple.
_SCHEMA = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0},
    "minItems": 2,
    "maxItems": 2,
}

Window = Annotated[
    tuple[Position, Position],
    Field(strict=False),
    AfterValidator(_check_window),
    WithJsonSchema(_SCHEMA),
]
"""Positions of the stream: the first one, and the one after the last."""
Windows = Annotated[tuple[Window, ...], Field(strict=False, max_length=10_000)]


def merged(windows: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the same positions as windows in order, none of which touches another."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(windows):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return tuple(joined)


def advanced(position: int, sequences: int, windows: Iterable[tuple[int, int]]) -> int:
    """Return the position that comes `sequences` later in the stream without the windows.

    It never lies within a window; with 0 sequences it is only moved out of one.
    """
    for start, end in merged(windows):
        if end <= position:
            continue
        before = max(start - position, 0)  # sequences up to the window
        if sequences < before:
            break
        sequences -= before
        position = end
    return position + sequences


def left_out(windows: Iterable[tuple[int, int]], *, sequences: int) -> tuple[tuple[int, int], ...]:
    """Return the windows that the first `sequences` sequences of the stream skip.

    Two lineages of one job have trained on the same sequences while these are equal.
    """
    windows = merged(windows)
    if not sequences:
        return ()
    last = advanced(0, sequences - 1, windows)
    return tuple(window for window in windows if window[0] < last)


def covered(window: tuple[int, int], windows: Iterable[tuple[int, int]]) -> bool:
    """Return whether every position of a window lies within the others."""
    return any(start <= window[0] and window[1] <= end for start, end in merged(windows))
