"""A run of another tool before its import: series, configuration, end."""

from __future__ import annotations

import hashlib
import json
import math
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trainyard.base.names import NAME
from trainyard.base.whole_numbers import LAST_STEP
from trainyard.outside.git_lfs import LONGEST_POINTER, pointer_problem
from trainyard.protocol.past_runs.views import (
    MAX_IMPORT_POINTS,
    MAX_RENAMED,
    ImportTool,
    WrittenNumber,
)
from trainyard.run.metric_names import LONGEST, is_storable, legal_name
from trainyard.spec.sections.program import ArgumentName, ArgumentValue, Scalar, Word

Ended = Literal["succeeded", "failed", "stopped", "cancelled"]

MAX_SERIES = 2000
"""Maximum number of series per run that the server keeps."""
MAX_ARGUMENTS = 256
MAX_TEXT, MAX_NAME, MAX_LIST = 4096, 200, 256
DAMAGE = (ValueError, OverflowError, RecursionError)
"""Exceptions that damaged or hostile content causes."""
LATEST, MAX_SECONDS = 10.0**11, 10.0**8
"""Latest Unix time and longest duration, in seconds, that can be stored."""


@dataclass(frozen=True)
class UnreadRun:
    """A run that cannot be imported, with the reason."""

    name: str
    """Path or name of the run."""
    reason: str


@dataclass
class SeriesColumns:
    """The points of one series, in the order in which they were read."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.steps)

    def cut(self, length: int) -> int:
        """Keep only the first `length` points; return the number of dropped points."""
        dropped = len(self) - length
        for column in (self.steps, self.times, self.values):
            del column[length:]
        return dropped


@dataclass
class PastRun:
    """The content of one run; `notes` lists the parts that were left out."""

    tool: ImportTool
    run_id: str
    name: str
    config: dict[str, object] = field(default_factory=dict)
    """Configuration as the tool stored it; mappings may be nested."""
    summary: dict[str, float] = field(default_factory=dict)
    series: dict[str, SeriesColumns] = field(default_factory=dict)
    """Series by the names that the tool uses."""
    command: tuple[str, ...] = ()
    description: str = ""
    tags: tuple[str, ...] = ()
    state: Ended = "stopped"
    reason: str = ""
    started: float | None = None
    """Unix time of the start, in seconds."""
    ended: float | None = None
    notes: list[str] = field(default_factory=list)
    points: int = 0
    """Number of points in all series."""

    def add(self, name: str, step: int, *, time: float, value: float) -> None:
        """Add a point, unless the server cannot store the point."""
        if not 0 <= step <= LAST_STEP or not 0 <= time <= LATEST:
            self.note(f"points are left out: step {step} at {time} is not 0 to {LAST_STEP:,}")
            return
        if self.points >= MAX_IMPORT_POINTS:
            self.note(f"points after the first {MAX_IMPORT_POINTS:,} are left out")
            return
        columns = self.series.get(name)
        if columns is None:
            if len(self.series) >= MAX_SERIES:
                self.note(f"series after the first {MAX_SERIES:,} are left out, such as {name!r}")
                return
            columns = self.series[name] = SeriesColumns()
        columns.steps.append(step)
        columns.times.append(time)
        columns.values.append(value)
        self.points += 1

    def restart(self, step: int) -> None:
        """Drop all points from `step` on, because another session starts at this step.

        In each series, the steps of the points added so far must never decrease.
        """
        for name, columns in self.series.items():
            self._cut(name, bisect_left(columns.steps, step))

    def rewind(self, name: str, step: int) -> None:
        """Drop the points of a series after `step`, which is the step of the series' next point."""
        columns = self.series.get(name)
        if columns and step < columns.steps[-1]:
            self._cut(name, bisect_right(columns.steps, max(step, 0)))

    def _cut(self, name: str, length: int) -> None:
        dropped = self.series[name].cut(length)
        self.points -= dropped
        if dropped:
            self.note(f"points that a restart wrote again are left out, such as of {name!r}")

    def note(self, text: str) -> None:
        """Add a note, unless there are 50 or an earlier one starts with the same 24 characters."""
        if len(self.notes) < 50 and not any(text[:24] == note[:24] for note in self.notes):
            self.notes.append(text)


def refuse_pointer(path: Path) -> None:
    """Reject a Git LFS pointer, which a clone of recorded runs may have instead of a file.

    Raises:
        ValueError: the file is a pointer.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        problem = pointer_problem(file.read(LONGEST_POINTER + 1))
    if problem:
        raise ValueError(f"{path} {problem}")


def ordered(run: PastRun) -> None:
    """Sort each series by step, and keep only the newest point of each step.

    If all points of a series have the same step, as after `log_metric` without a step, the points
    are numbered in the order of time instead.
    """
    for name, columns in run.series.items():
        if len(columns) > 1 and len(set(columns.steps)) == 1:
            by_time = sorted(range(len(columns)), key=lambda at: columns.times[at])
            run.series[name] = _taken(columns, by_time, number=True)
            run.note(f"points of series with a single step are numbered by time, such as {name!r}")
            continue
        rising = all(a < b for a, b in zip(columns.steps, columns.steps[1:], strict=False))
        if rising:
            continue
        newest: dict[int, int] = {}
        for at, step in enumerate(columns.steps):
            before = newest.get(step)
            if before is None or columns.times[at] >= columns.times[before]:
                newest[step] = at
        run.series[name] = _taken(columns, [newest[step] for step in sorted(newest)])
        lost = len(columns) - len(newest)
        if lost:
            run.note(f"points of a step that was logged again are left out, {lost} of {name!r}")
    run.points = sum(map(len, run.series.values()))


def _taken(columns: SeriesColumns, places: list[int], *, number: bool = False) -> SeriesColumns:
    return SeriesColumns(
        array("q", range(len(places)) if number else (columns.steps[at] for at in places)),
        array("d", (columns.times[at] for at in places)),
        array("d", (columns.values[at] for at in places)),
    )


def legal_names(names: Iterable[str]) -> dict[str, str]:
    """Return a unique legal metric name for each name.

    Legal names are kept. Other names are converted like the names that a script logs. A number
    makes duplicates unique.
    """
    taken: set[str] = set()
    found = {}
    for name in sorted(names, key=lambda name: (not is_storable(name), name)):
        legal = name if is_storable(name) else legal_name(name)
        found[name] = _unique(legal, taken, LONGEST)
        taken.add(found[name])
    return found


def _unique(name: str, taken: Container[str], limit: int) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name[: limit - 1 - len(str(number))]}_{number}"
    return free


def renamed(names: Mapping[str, str]) -> dict[str, str]:
    """Return the original names of renamed series, by new name; at most `MAX_RENAMED` names."""
    changed = [(new, clean_text(old)[:500]) for old, new in names.items() if old != new]
    return dict(changed[:MAX_RENAMED])


def job_name(text: str) -> str:
    """Return a legal job name that resembles a text."""
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:80].rstrip("-._")
    return clean if re.fullmatch(NAME, clean) else "run"


def arguments_of(run: PastRun) -> dict[ArgumentName, ArgumentValue]:
    """Return at most `MAX_ARGUMENTS` values of the configuration as arguments of a program.

    Nested names are joined by dots.
    """
    found: dict[str, ArgumentValue] = {}
    for path, value in _flat(run.config, ""):
        if len(found) >= MAX_ARGUMENTS:
            run.note(f"configuration after the first {MAX_ARGUMENTS} values is left out")
            break
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", path)
        name = (name if re.match(r"[A-Za-z_]", name) else f"_{name}")[:MAX_NAME]
        argument = _argument(value)
        if argument is not None:
            found[_unique(name, found, MAX_NAME)] = argument
    return found


def _flat(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict) and path.count(".") < 20:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, value


def _argument(value: object) -> ArgumentValue | None:
    if isinstance(value, list | tuple):
        scalars = [_scalar(item) for item in value]
        legal = tuple(item for item in scalars if item is not None)
        if len(legal) == len(scalars) <= MAX_LIST and not any(
            isinstance(item, dict | list) for item in value
        ):
            return legal
        return clean_text(json.dumps(value, default=str))[:MAX_TEXT]
    return _scalar(value)


def _scalar(value: object) -> Scalar | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 2**63:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return clean_text(str(value))[:MAX_TEXT]


def clean_text(text: str) -> str:
    """Return a text with control characters replaced, because no field accepts them."""
    return "".join(c if c in "\n\t" or c.isprintable() else "�" for c in text)


def words_of(command: tuple[str, ...]) -> tuple[Word, ...]:
    """Return the words of a command for a spec; empty if the first word is missing."""
    words = tuple(clean_text(word)[:MAX_TEXT] for word in command[:MAX_LIST])
    return words if words and words[0].strip() else ()


def times_of(run: PastRun) -> tuple[float, float]:
    """Return start (Unix time) and duration in seconds. Times that the tool did not store are taken
    from the points."""
    firsts = [time for columns in run.series.values() for time in columns.times[:1]]
    lasts = [time for columns in run.series.values() for time in columns.times[-1:]]
    start = _bounded(min(firsts, default=0.0) if run.started is None else run.started, LATEST)
    end = _bounded(max(lasts, default=start) if run.ended is None else run.ended, LATEST)
    return start, _bounded(end - start, MAX_SECONDS)


def _bounded(time: float, most: float) -> float:
    return min(max(time, 0.0), most) if math.isfinite(time) else 0.0


def last_value(columns: SeriesColumns) -> WrittenNumber | None:
    """Return the last value of a series in its JSON form; None for an empty series."""
    return written(columns.values[-1]) if columns else None


def written(value: float) -> WrittenNumber:
    """Return a number in its JSON form."""
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def digest_of(run: PastRun) -> str:
    """Return `sha256:...` of a run's content, without its name, description, tags and reason."""
    config = _with_text_keys(run.config)
    known = [run.tool, run.run_id, config, sorted(run.summary.items()), list(run.command)]
    sha256 = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode())
    sha256.update(json.dumps([run.state, run.started, run.ended]).encode())
    for name in sorted(run.series):
        columns = run.series[name]
        sha256.update(f"\n{name} {len(columns)}\n".encode("utf-8", "surrogatepass"))
        for column in (columns.steps, columns.times, columns.values):
            sha256.update(column.tobytes())
    return f"sha256:{sha256.hexdigest()}"


def _with_text_keys(value: object) -> object:
    """Return a value with all table keys as text, so that the keys can be sorted."""
    if isinstance(value, dict):
        return {str(key): _with_text_keys(inner) for key, inner in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list | tuple) else value
