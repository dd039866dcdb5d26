"""Numbers, sizes and times as text."""

from __future__ import annotations

import math

import pytest

from trainyard.cli import formats


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (math.nan, "NaN"),
        (-math.inf, "-inf"),
        (12345, "12,345"),
        (2.31409, "2.3141"),
        (0.0003, "0.0003"),
        (1.5e-9, "1.5e-09"),
        (10871.6, "10,872"),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert formats.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (999, "999"), (999.6, "1k"), (12_345, "12.3k"), (8.03e9, "8.03G")],
)
def test_short(value: float | None, text: str) -> None:
    assert formats.short(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0 %"),
        (5e-8, "<0.1 %"),
        (0.0009999, "<0.1 %"),
        (0.001, "0.1 %"),
        (0.34, "34 %"),
        (0.12345, "12.3 %"),
        (1, "100 %"),
        (12.345, "1,234.5 %"),
    ],
)
def test_share(value: float | None, text: str) -> None:
    assert formats.share(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1000, "0.977 KiB"), (3_355_443, "3.2 MiB"), (2**40, "1 TiB")]
)
def test_size(value: int, text: str) -> None:
    assert formats.size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (math.inf, "-"),
        (-3, "0s"),
        (59.4, "59s"),
        (59.6, "1m 00s"),
        (130, "2m 10s"),
        (3600 + 300, "1h 05m"),
        (86_400 * 2 + 4 * 3600, "2d 4h"),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert formats.duration(seconds) == text
