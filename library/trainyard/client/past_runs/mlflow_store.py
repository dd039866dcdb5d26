"""Reads the runs of an MLflow store, which is an SQLite database or a folder `mlruns`."""

from __future__ import annotations

import math
import os
import re
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from trainyard.client.past_runs.past_run import DAMAGE, Ended, PastRun, UnreadRun, refuse_pointer

STATES: Mapping[str, tuple[Ended, str]] = {
    "FINISHED": ("succeeded", ""),
    "FAILED": ("failed", "status FAILED"),
    "KILLED": ("cancelled", "status KILLED"),
}
"""State and reason by MLflow status; any other status becomes `stopped`."""
STATUS_NUMBERS = {"1": "RUNNING", "2": "SCHEDULED", "3": "FINISHED", "4": "FAILED", "5": "KILLED"}
"""MLflow status by its number in a file store."""
_NUMBER = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
LARGEST = 1.7976931348623157e308
"""Number that MLflow stores for infinity."""
MAX_ROWS = 5_000
"""Maximum number of parameters, and of tags, read per run; in a folder, also of metrics."""
LONGEST_NUMBER = 400
SMALL_FILE = 64 * 1024
MAX_LINE = 200
MAX_RUNS = 10_000

LONGEST_VALUE = 16 * 2**20
"""Maximum size of a value in a store, in bytes; a run with a longer value is not read."""
LEAST_OPERATIONS, OPERATIONS_A_BYTE = 10_000_000, 20
"""A query may execute at most this number of SQLite operations: the first number, plus the second
number per byte of the file. Queries on plain tables need fewer."""
OPERATIONS_AT_ONCE = 100_000
READ: Mapping[str, frozenset[str]] = {
    "experiments": frozenset({"experiment_id", "name"}),
    "runs": frozenset(
        {
            "run_uuid",
            "name",
            "source_name",
            "status",
            "start_time",
            "end_time",
            "experiment_id",
            "lifecycle_stage",
        }
    ),
    "params": frozenset({"key", "value", "run_uuid"}),
    "tags": frozenset({"key", "value", "run_uuid"}),
    "metrics": frozenset({"key", "step", "timestamp", "value", "is_nan", "run_uuid"}),
}
"""Columns to read, by table."""

# MLflow writes at most 8,000 characters of text.
_EXPERIMENT = "SELECT substr(name, 1, 8192) FROM experiments WHERE experiment_id = ?"
_ROWS = "SELECT rowid FROM runs ORDER BY rowid"
_RUN = (
    "SELECT run_uuid, substr(name, 1, 8192), substr(source_name, 1, 8192), status, "
    "start_time, end_time, experiment_id, lifecycle_stage FROM runs WHERE rowid = ?"
)
_PARAMS = "SELECT substr(key, 1, 8192), substr(value, 1, 8192) FROM params WHERE run_uuid = ?"
_TAGS = "SELECT substr(key, 1, 8192), substr(value, 1, 8192) FROM tags WHERE run_uuid = ?"
_METRICS = (
    "SELECT key, step, timestamp, value, is_nan FROM metrics WHERE run_uuid = ? "
    "ORDER BY key, step, timestamp"
)


def read_database(path: Path) -> Iterator[PastRun | UnreadRun]:
    """Yield the active and the unreadable runs in the first `MAX_RUNS` rows of an SQLite store.

    The store is opened read-only.
    The file may be hostile, so its views, triggers and functions are rejected, and the work per
    query and the size of a value are limited.

    Raises:
        ValueError: the file is not a store of MLflow, or it is damaged.
    """
    refuse_pointer(path)
    try:
        with closing(_opened(path)) as connection:
            store = _Store(connection, path.stat().st_size)
            for (row,) in store.select(_ROWS).fetchmany(MAX_RUNS):
                try:
                    run = _run_of(store, row)
                except (*DAMAGE, sqlite3.Error) as error:
                    yield UnreadRun(f"row {row} of {path}", str(error))
                    continue
                if run is not None:
                    yield run
    except sqlite3.Error as error:
        raise ValueError(f"it is not a readable store of MLflow: {error}") from None


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.text_factory = lambda content: content.decode(errors="replace")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
    for table in READ:
        if not _is_plain(connection, table):
            raise ValueError(
                f"it is not a store of MLflow: {table!r} is not a table of stored values"
            )
    connection.set_authorizer(_authorized)
    return connection


def _is_plain(connection: sqlite3.Connection, table: str) -> bool:
    """Return whether a name is a table without computed columns.

    A query that computes values may never end.

    Views and virtual tables are detected by the missing root page. Generated columns are detected
    here because the authorizer does not see them.
    """
    query = "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?"
    page = connection.execute(query, (table,)).fetchone()
    columns = connection.execute(f"PRAGMA table_xinfo({table})")
    return bool(page and page[0]) and not any(hidden for *_, hidden in columns)


class _Store:
    """A database that limits the work of queries in proportion to the database's size."""

    def __init__(self, connection: sqlite3.Connection, size: int) -> None:
        self._connection = connection
        allowed = LEAST_OPERATIONS + OPERATIONS_A_BYTE * size
        self._turns, self._left = allowed // OPERATIONS_AT_ONCE, 0
        connection.set_progress_handler(self._is_over, OPERATIONS_AT_ONCE)

    def select(self, query: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        """Start a query; the caller must have read all rows of the previous query.

        Raises:
            sqlite3.Error: the database is damaged or rejects the query, possibly while rows are
            read.
        """
        self._left = self._turns
        return self._connection.execute(query, values)

    def _is_over(self) -> bool:
        self._left -= 1
        return self._left < 0


def _authorized(
    action: int, first: str | None, second: str | None, _store: str | None, source: str | None
) -> int:
    """Allow only reads of known table columns; `source` is the view or trigger that reads."""
    reads = action == sqlite3.SQLITE_READ and second in {*READ.get(first or "", ()), "", "ROWID"}
    calls = action == sqlite3.SQLITE_FUNCTION and second == "substr"
    legal = source is None and (reads or calls or action == sqlite3.SQLITE_SELECT)
    return sqlite3.SQLITE_OK if legal else sqlite3.SQLITE_DENY


def _run_of(store: _Store, row: int) -> PastRun | None:
    """Return the run of a row; None if the run is deleted."""
    values = store.select(_RUN, (row,)).fetchone()
    if values is None or values[-1] != "active":
        return None
    run_uuid, name, source, status, start, end, experiment_id, _ = values
    run = PastRun("mlflow", str(run_uuid)[:200], str(name or run_uuid)[:200])
    _describe(run, str(status), start, end)
    if source:
        run.command = (str(source),)
    run.config |= {key: typed(value) for key, value in _texts(store, _PARAMS, run_uuid).items()}
    _add_tags(run, _texts(store, _TAGS, run_uuid))
    experiment = store.select(_EXPERIMENT, (experiment_id,)).fetchone()
    if experiment is not None:
        run.tags = (f"experiment:{experiment[0]}", *run.tags)
    for key, step, timestamp, value, is_nan in store.select(_METRICS, (run_uuid,)):
        try:
            number = math.nan if is_nan else _finite(float(value))
            run.add(str(key), int(step), time=timestamp / 1000, value=number)
        except (TypeError, ValueError, OverflowError):
            run.note("points that are not numbers are left out")
    return run


def _texts(store: _Store, query: str, run_uuid: object) -> dict[str, str]:
    found = store.select(query, (run_uuid,)).fetchmany(MAX_ROWS)
    return {str(key): str(value) for key, value in found}


def read_folders(root: Path) -> Iterator[PastRun | UnreadRun]:
    """Yield the active and the unreadable runs in the first `MAX_RUNS` folders of `mlruns`.

    A run has a `meta.yaml` with a `run_id` or `run_uuid`.
    """
    for folder in sorted(root.glob("*/*"))[:MAX_RUNS]:
        try:
            meta = _document(folder / "meta.yaml")
            run_id = _text_of(meta, "run_id") or _text_of(meta, "run_uuid")
            if not meta and _is_run(folder):
                yield UnreadRun(str(folder), "it has no meta.yaml, which describes a run")
            if run_id and meta.get("lifecycle_stage", "active") == "active":
                yield _run_in(folder, run_id, meta)
        except (*DAMAGE, OSError) as error:
            if _resembles_run(folder):
                yield UnreadRun(str(folder), str(error))


def _is_run(folder: Path) -> bool:
    """Return whether a folder in an experiment is a run: only runs have points or parameters."""
    of_experiment = (folder.parent / "meta.yaml").is_file()
    return of_experiment and any((folder / name).is_dir() for name in ("metrics", "params"))


def _resembles_run(folder: Path) -> bool:
    """Return whether a folder is a run, although one of its files is unreadable.

    Otherwise the folder is an experiment, a model, or a folder of another tool that also uses the
    file name `meta.yaml`, such as conda.
    """
    if any((folder / name).is_dir() for name in ("metrics", "params", "tags")):
        return True
    try:
        text = _text(folder / "meta.yaml")
    except (*DAMAGE, OSError):
        return False
    return "run_id" in text or "run_uuid" in text


def _run_in(folder: Path, run_id: str, meta: Mapping[str, object]) -> PastRun:
    tags = _small_files(folder / "tags")
    name = _text_of(meta, "run_name") or tags.get("mlflow.runName") or run_id
    run = PastRun("mlflow", run_id[:200], name)
    status = _text_of(meta, "status")
    times = (_milliseconds(_text_of(meta, each)) for each in ("start_time", "end_time"))
    _describe(run, STATUS_NUMBERS.get(status, status), *times)
    if tags.get("mlflow.source.name"):
        run.command = (tags["mlflow.source.name"],)
    run.config |= {key: typed(value) for key, value in _small_files(folder / "params").items()}
    _add_tags(run, tags)
    if experiment := _experiment_of(run, folder.parent):
        run.tags = (f"experiment:{experiment}", *run.tags)
    for key, path in _regular_files(folder / "metrics"):
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE):
                _add_line(run, key, line)
    return run


def _experiment_of(run: PastRun, folder: Path) -> str:
    """Return an experiment's name; if `meta.yaml` is unreadable, add a note and return ''."""
    try:
        return _text_of(_document(folder / "meta.yaml"), "name")
    except (*DAMAGE, OSError) as error:
        run.note(f"the name of its experiment is left out: {error}")
        return ""


def _add_line(run: PastRun, key: str, line: bytes) -> None:
    """Add the point in a line `<milliseconds> <value> <step>`; lines of old stores have no step."""
    try:
        timestamp, value, *step = line.split()
        run.add(key, int(step[0]) if step else 0, time=int(timestamp) / 1000, value=float(value))
    except (ValueError, OverflowError):
        run.note("lines without a point are left out")


def _describe(run: PastRun, status: str, start: object, end: object) -> None:
    run.state, run.reason = STATES.get(status, ("stopped", "no end is recorded"))
    run.started = start / 1000 if isinstance(start, int | float) else None
    run.ended = end / 1000 if isinstance(end, int | float) and end else None


def _add_tags(run: PastRun, tags: Mapping[str, str]) -> None:
    run.description = tags.get("mlflow.note.content", "")
    own = [f"{key}:{value}" for key, value in tags.items() if not key.startswith("mlflow.")]
    run.tags = tuple(own[:30])


def typed(text: str) -> object:
    """Return the number or the boolean in a parameter, which MLflow stores as text.

    Any other text stays text, and so does a number in an unusual form, because `007` and `1_000`
    may be names.
    """
    if len(text) <= LONGEST_NUMBER and _NUMBER.fullmatch(text):
        number = float(text) if set(text) & set(".eE") else int(text)
        return number if abs(number) < LARGEST else text
    return {"True": True, "False": False}.get(text, text)


def _finite(value: float) -> float:
    return math.copysign(math.inf, value) if abs(value) >= LARGEST else value


def _document(path: Path) -> Mapping[str, object]:
    """Return the table of a `meta.yaml` with all values as text; empty if the file is missing.

    Raises:
        ValueError: the file is not a table, or uses aliases.
        OSError: the file cannot be read.
    """
    if not path.is_file() or path.is_symlink():
        return {}
    try:
        found = yaml.load(_text(path), Loader=PlainLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path.name} is not readable YAML: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is not a table")
    return found


class PlainLoader(yaml.BaseLoader):
    """Reads every value as text, a list or a table; the work is proportional to the text's length.

    Aliases are rejected, because with aliases a small file could stand for an endless value.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next value.

        Raises:
            yaml.YAMLError: the value is an alias.
        """
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def _text_of(meta: Mapping[str, object], key: str) -> str:
    """Return a text value of a `meta.yaml`; empty for a list, a table or null."""
    found = meta.get(key)
    return found if isinstance(found, str) and found not in ("null", "~") else ""


def _milliseconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _small_files(folder: Path) -> dict[str, str]:
    return {key: _text(path) for key, path in _regular_files(folder)}


def _regular_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield at most `MAX_ROWS` regular files below a folder, with their relative paths."""
    count = 0
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            count += 1
            if count > MAX_ROWS:
                return
            if stat.S_ISREG(path.lstat().st_mode):
                yield path.relative_to(folder).as_posix(), path


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(SMALL_FILE).decode(errors="replace").strip()
