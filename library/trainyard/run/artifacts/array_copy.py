"""Copies of arrays and tensors of any library, which are detected by their attributes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

NUMBERS = "bBhHiIlLqQefd?"
"""Legal number formats, as characters of `struct`."""
SLICE = 2000
"""Number of values to unpack in one call; a call blocks the interpreter for less than 0.5 ms."""


@dataclass(frozen=True)
class ArrayCopy:
    """Numbers of an array, in C order."""

    content: bytes
    format: str
    """`struct` format of one number."""
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.content) // struct.calcsize(self.format)

    def slices(self) -> Iterator[tuple[float, ...]]:
        """Yield the numbers in tuples of at most `SLICE`."""
        each = struct.calcsize(self.format)
        order, code = self.format[:-1], self.format[-1]
        for start in range(0, len(self.content), SLICE * each):
            part = self.content[start : start + SLICE * each]
            yield struct.unpack(f"{order}{len(part) // each}{code}", part)


def copy_array(values: Any, *, what: str, most: int) -> ArrayCopy:
    """Return a copy of the numbers in an array, a tensor, a buffer or nested lists.

    A tensor is copied to the CPU first; the copy waits until the GPU has computed the tensor.

    Args:
        values: an object with a buffer, `__array__`, `numpy()` or `tolist()`, or lists of numbers.
        what: name of the argument for error messages.
        most: maximum number of values.

    Raises:
        TypeError: the argument contains something other than numbers.
        ValueError: the argument contains more than `most` numbers.
    """
    plain = _on_cpu(values)
    try:
        view = memoryview(plain)
    except TypeError:
        numbers = tuple(_flat(plain, what, most))
        return ArrayCopy(struct.pack(f"{len(numbers)}d", *numbers), "d", (len(numbers),))
    code = view.format.lstrip("@=<>!")
    if code not in NUMBERS or len(code) != 1:
        raise TypeError(f"{what} holds {view.format!r}: real numbers are legal")
    if view.nbytes // view.itemsize > most:
        raise ValueError(
            f"{what} has {view.nbytes // view.itemsize:,} numbers: {most:,} at most are legal; "
            "pass a part of them"
        )
    native = view.format.removeprefix("@")
    return ArrayCopy(view.tobytes(order="C"), native, view.shape or (1,))


def _on_cpu(values: Any) -> Any:
    """Return a value as an object with a buffer or, if that is impossible, as lists; return any
    other value unchanged."""
    for step in ("detach", "cpu"):  # of torch
        if callable(change := getattr(values, step, None)):
            values = change()
    try:
        memoryview(values)
    except (TypeError, ValueError):
        for way in ("numpy", "__array__"):
            if callable(change := getattr(values, way, None)):
                try:
                    return change()
                except (TypeError, RuntimeError):  # numpy lacks bfloat16, or is not installed
                    break
    if callable(widen := getattr(values, "float", None)) and not isinstance(values, float):
        return _on_cpu_lists(widen())
    return values


def _on_cpu_lists(values: Any) -> Any:
    try:
        return values.numpy()
    except (AttributeError, RuntimeError, TypeError):
        return values.tolist()


def _flat(values: Any, what: str, most: int) -> Iterator[float]:
    """Yield the numbers in nested lists; raise an error for more than `most` numbers."""
    if callable(getattr(values, "tolist", None)):
        values = values.tolist()
    waiting, count = [iter(values if _is_listed(values) else (values,))], 0
    while waiting:
        for value in waiting[-1]:
            if _is_listed(value):
                if len(waiting) > 32:
                    raise TypeError(f"{what} is nested more than 32 levels deep")
                waiting.append(iter(value))
                break
            count += 1
            if count > most:
                raise ValueError(f"{what} has more than {most:,} numbers; pass a part of them")
            try:
                yield float(value)
            except (TypeError, ValueError, OverflowError):
                raise TypeError(
                    f"{what} holds {type(value).__name__}: real numbers are legal"
                ) from None
        else:
            waiting.pop()


def _is_listed(value: Any) -> bool:
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        return False
    # Arrays have both attributes; an array without dimensions counts as a number.
    return not hasattr(value, "__float__") or getattr(value, "shape", ()) != ()
