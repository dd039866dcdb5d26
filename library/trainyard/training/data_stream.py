"""Positions in the endless stream of sequences, and the windows to skip.

The trainer's reader and the server's comparisons share this arithmetic. Skipped windows change the
sequences in a step, but never their number.
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


# The schema declares an array of two items, because generated TypeScript lacks the tuple.
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
"""Window of the stream: its first position, and the position after its last position."""
Windows = Annotated[tuple[Window, ...], Field(strict=False, max_length=10_000)]


def merged(windows: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Merge windows that overlap or touch; return the result in order."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(windows):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return tuple(joined)


def advanced(position: int, sequences: int, windows: Iterable[tuple[int, int]]) -> int:
    """Return the position that a reader reaches from `position` after `sequences` sequences.

    The reader skips the windows, so the result is never inside a window. Even with 0 sequences, a
    position inside a window moves to the end of the window. Any other position then stays.
    """
    for start, end in merged(windows):
        if end <= position:
            continue
        before = max(start - position, 0)  # sequences before the window
        if sequences < before:
            break
        sequences -= before
        position = end
    return position + sequences


def left_out(windows: Iterable[tuple[int, int]], *, sequences: int) -> tuple[tuple[int, int], ...]:
    """Return the windows that are skipped within the first `sequences` sequences of the stream.

    If the result is the same for two lineages of a job, they have trained on the same sequences.
    """
    windows = merged(windows)
    if not sequences:
        return ()
    last = advanced(0, sequences - 1, windows)
    return tuple(window for window in windows if window[0] < last)


def covered(window: tuple[int, int], windows: Iterable[tuple[int, int]]) -> bool:
    """Return whether other windows contain all positions of a window."""
    return any(start <= window[0] and window[1] <= end for start, end in merged(windows))
