"""Runs of an MLflow store: an SQLite database, or the folders of `mlruns`."""

from __future__ import annotations

import math
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from trainyard.client.past_runs.past_run import Ended, PastRun

STATES: Mapping[str, tuple[Ended, str]] = {
    "FINISHED": ("succeeded", ""),
    "FAILED": ("failed", "status FAILED"),
    "KILLED": ("cancelled", "status KILLED"),
}
"""State and reason of each status; that of all others is `stopped`."""
STATUS_NUMBERS = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
"""Status in the files of a file store."""
LARGEST = 1.7976931348623157e308
"""MLflow stores this number for infinity."""
MOST_ROWS = 5_000
"""Parameters, or tags, of a run that are read."""
SMALL_FILE = 64 * 1024
MOST_LINE = 200
MOST_RUNS = 10_000

_RUNS = (
    "SELECT run_uuid, name, source_name, status, start_time, end_time, experiment_id "
    "FROM runs WHERE lifecycle_stage = 'active' ORDER BY start_time, run_uuid"
)
_METRICS = (
    "SELECT key, step, timestamp, value, is_nan FROM metrics WHERE run_uuid = ? "
    "ORDER BY key, step, timestamp"
)


def read_database(path: Path) -> Iterator[PastRun]:
    """Yield the active runs of an SQLite store, which is only read.

    Raises:
        ValueError: it is no store of MLflow, or damaged.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as store:
            store.row_factory = sqlite3.Row
            experiments = dict(store.execute("SELECT experiment_id, name FROM experiments"))
            for row in store.execute(_RUNS).fetchmany(MOST_RUNS):
                yield _run_of(store, row, experiments)
    except sqlite3.Error as error:
        raise ValueError(f"it is no store of MLflow that can be read: {error}") from None


def _run_of(store: sqlite3.Connection, row: Any, experiments: Mapping[object, object]) -> PastRun:
    run_id = str(row["run_uuid"])
    run = PastRun("mlflow", run_id, str(row["name"] or run_id))
    _describe(run, str(row["status"]), row["start_time"], row["end_time"])
    if row["source_name"]:
        run.command = (str(row["source_name"]),)
    for table, found in (("params", dict[str, str]()), ("tags", dict[str, str]())):
        query = f"SELECT key, value FROM {table} WHERE run_uuid = ? LIMIT {MOST_ROWS}"  # noqa: S608
        found |= {str(key): str(value) for key, value in store.execute(query, (run_id,))}
        if table == "params":
            run.config |= {key: typed(value) for key, value in found.items()}
        else:
            _add_tags(run, found)
    experiment = experiments.get(row["experiment_id"])
    if experiment is not None:
        run.tags = (f"experiment:{experiment}", *run.tags)
    for key, step, timestamp, value, is_nan in store.execute(_METRICS, (run_id,)):
        try:
            number = math.nan if is_nan else _finite(float(value))
            run.add(str(key), int(step), timestamp / 1000, number)
        except (TypeError, ValueError, OverflowError):
            run.note("points that are no numbers are left out")
    return run


def read_folders(root: Path) -> Iterator[PastRun]:
    """Yield the runs below a folder `mlruns`: each has a `meta.yaml` with a `run_id`."""
    for folder in sorted(root.glob("*/*"))[:MOST_RUNS]:
        meta = _document(folder / "meta.yaml")
        run_id = str(meta.get("run_id") or meta.get("run_uuid") or "")
        if run_id and meta.get("lifecycle_stage", "active") == "active":
            yield _run_in(folder, run_id, meta)


def _run_in(folder: Path, run_id: str, meta: Mapping[str, Any]) -> PastRun:
    tags = _small_files(folder / "tags")
    name = str(meta.get("run_name") or tags.get("mlflow.runName") or run_id)
    run = PastRun("mlflow", run_id[:200], name)
    status = meta.get("status")
    words = STATUS_NUMBERS.get(status, "") if isinstance(status, int) else str(status)
    _describe(run, words, meta.get("start_time"), meta.get("end_time"))
    if tags.get("mlflow.source.name"):
        run.command = (tags["mlflow.source.name"],)
    run.config |= {key: typed(value) for key, value in _small_files(folder / "params").items()}
    _add_tags(run, tags)
    experiment = _document(folder.parent / "meta.yaml").get("name")
    if experiment is not None:
        run.tags = (f"experiment:{experiment}", *run.tags)
    for key, path in _regular_files(folder / "metrics"):
        with path.open("rb") as file:
            while line := file.readline(MOST_LINE):
                _add_line(run, key, line)
    return run


def _add_line(run: PastRun, key: str, line: bytes) -> None:
    """Add a line `<milliseconds> <value> <step>`; a step is missing in old stores."""
    try:
        timestamp, value, *step = line.split()
        run.add(key, int(step[0]) if step else 0, int(timestamp) / 1000, float(value))
    except (ValueError, OverflowError):
        run.note("lines that hold no point are left out")


def _describe(run: PastRun, status: str, start: object, end: object) -> None:
    run.state, run.reason = STATES.get(status, ("stopped", "no end is recorded"))
    run.started = start / 1000 if isinstance(start, int | float) else None
    run.ended = end / 1000 if isinstance(end, int | float) and end else None


def _add_tags(run: PastRun, tags: Mapping[str, str]) -> None:
    run.description = tags.get("mlflow.note.content", "")
    own = [f"{key}:{value}" for key, value in tags.items() if not key.startswith("mlflow.")]
    run.tags = tuple(own[:30])


def typed(text: str) -> object:
    """Return a parameter, which MLflow stores as a text, as the number that it may be."""
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else text
    return {"True": True, "False": False}.get(text, text)


def _finite(value: float) -> float:
    return math.copysign(math.inf, value) if abs(value) >= LARGEST else value


def _document(path: Path) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(_text(path))
    except (yaml.YAMLError, OSError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _small_files(folder: Path) -> dict[str, str]:
    return {key: _text(path) for key, path in _regular_files(folder)}


def _regular_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the regular files below a folder by their paths in it; links are not followed."""
    count = 0
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            count += 1
            if count > MOST_ROWS:
                return
            if stat.S_ISREG(path.lstat().st_mode):
                yield path.relative_to(folder).as_posix(), path


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(SMALL_FILE).decode(errors="replace").strip()
