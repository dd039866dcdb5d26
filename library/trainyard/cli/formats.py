"""Formats numbers, sizes and times for people."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from trainyard.base.problems import named
from trainyard.protocol.operations import FailedTries
from trainyard.protocol.rest.jobs import Progress
from trainyard.protocol.states import JobState
from trainyard.run.fact_types.fact_records import FactValue
from trainyard.spec.auto import AutoValues

DASH = "-"
LEAST_PERCENT = 0.1


def has_step(progress: Progress, state: JobState) -> bool:
    """Return whether a job has a step to show; a program may end without reporting a step."""
    return progress.step > 0 or (progress.steps is not None and state != JobState.SUCCEEDED)


def number(value: float | None) -> str:
    """Return a number as text, such as `12,345`, `0.1235`, `NaN` or `inf`; a dash for None."""
    if value is None:
        return DASH
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.4g}"
    return f"{value:.4f}" if abs(value) >= 0.1 else f"{value:.4g}"


def fact(value: FactValue | None) -> str:
    """Format a value of a configuration or of a summary as one line."""
    if value is None:
        return DASH
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def short(value: float | None) -> str:
    """Return `12.3k`, `4.56M` and so on: three digits and the letter for a power of 1,000."""
    if value is None or not math.isfinite(value):
        return number(value)
    return _scaled(value, 1000, ("", "k", "M", "G", "T", "P", "E", "Z", "Y"))


def size(count: int | None) -> str:
    """Return a number of bytes as `1.2 GiB`."""
    if count is None:
        return DASH
    return _scaled(count, 1024, (" B", " KiB", " MiB", " GiB", " TiB", " PiB"))


def counted(count: int, noun: str) -> str:
    """Return `1 slot`, or `1,200 slots`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def bandwidth(count: int, seconds: float | None) -> str:
    """Return `1.2 GiB/s`, from bytes and seconds."""
    return f"{size(round(count / seconds))}/s" if seconds else DASH


def _scaled(value: float, step: int, units: tuple[str, ...]) -> str:
    scaled, index = float(value), 0
    while abs(scaled) >= 999.5 and index < len(units) - 1:
        scaled, index = scaled / step, index + 1
    return f"{scaled:.3g}{units[index]}"


def duration(seconds: float | None) -> str:
    """Return `45s`, `2m 10s`, `3h 05m` or `2d 4h`."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    whole = max(0, round(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if not minutes:
        return f"{whole}s"
    if not hours:
        return f"{minutes}m {whole % 60:02d}s"
    if not days:
        return f"{hours}h {minutes % 60:02d}m"
    return f"{days}d {hours % 24}h"


def auto(values: AutoValues) -> str:
    """Return the chosen values of fields that are `auto`, as `compile.enabled=true, ...`."""
    return ", ".join(named(path, value) for path, value in values.items())


def age(moment: datetime | None) -> str:
    """Return the time since a moment in its largest unit: `12s`, `5m`, `3h`, `2d`."""
    if moment is None:
        return DASH
    return duration((datetime.now(UTC) - moment).total_seconds()).split()[0]


def clock(moment: datetime) -> str:
    """Return the local time of day."""
    return f"{moment.astimezone():%H:%M:%S}"


def date(moment: datetime | None) -> str:
    """Return the local date and time."""
    return DASH if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def clipped(text: str, columns: int) -> str:
    """Return a text cut to a maximum number of characters."""
    return text if len(text) <= columns else f"{text[: columns - 1].rstrip()}…"


def failed_tries(failing: FailedTries) -> str:
    """Return `failed 3 times since 2026-01-31 12:00:00, next try at 13:00:00: <reason>`."""
    tries = "once" if failing.count == 1 else counted(failing.count, "time")
    again = "" if failing.next_at is None else f", next try at {clock(failing.next_at)}"
    return f"failed {tries} since {date(failing.since)}{again}: {failing.reason}"


def share(value: float | None) -> str:
    """Return `12.3 %`, `<0.1 %` for a tiny share, or a dash for an unknown share."""
    if value is None:
        return DASH
    percent = 100 * value
    if 0 < percent < LEAST_PERCENT:
        return f"<{LEAST_PERCENT} %"
    return f"{percent:,.1f}".removesuffix(".0") + " %"
