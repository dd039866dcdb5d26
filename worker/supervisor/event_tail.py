"""Converts scalars in a program's event files to records in the form of metrics.

The files are in the folder `tensorboard/` of the run directory, or in subfolders of `tensorboard/`.
The ranks own these files and folders. For this reason, links are not followed, all sizes are
limited, and a file is read only if it is regular and belongs to the ranks' user.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from time import time as now
from typing import BinaryIO, cast

from trainyard.base.whole_numbers import LAST_STEP
from trainyard.run.atomic import replace_file
from trainyard.run.limits import WarnedNames
from trainyard.run.metric_names import LEGAL_FORM, legal_name
from trainyard.run.other_tools.event_files import NAME_PART, Restart, Scalar, read_events
from trainyard.run.record_base import to_json
from trainyard.run.records import MAX_RECORD_VALUES, MAX_RESTARTED, MetricRecord, SeriesRestart
from worker.launchers.base import Share
from worker.node.files import open_regular, read_small
from worker.node.node_store import WorkerRun

logger = logging.getLogger(__name__)

TURN_BYTES = 256 * 1024
"""Maximum number of bytes of event files converted per report; the conversion takes 0.2 s and
yields 4,000 scalars.
"""
MAX_BYTES = 1024**3
"""Maximum number of bytes of converted records in one attempt."""
MAX_ENTRIES, MAX_FILES, DEEPEST = 5_000, 1_000, 6
"""Maximum number of entries scanned and of files followed, and maximum depth of subfolders."""
MAX_RESTARTS = 1_000
MAX_SERIES = 2_000
"""Maximum number of series whose last step is stored for a restart; the server keeps no more series
per attempt.
"""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class EventTail:
    """Follows the event files of a program; only one thread may use it.

    Each call continues at the offsets of the last call, which a file stores for a later process. A
    crash between the writes of records and offsets duplicates records, but the server stores each
    step of a series once.
    """

    def __init__(self, run: WorkerRun) -> None:
        self._folder = run.tensorboard
        self._writer = run.writer
        self._records = run.event_records
        self._state = run.event_offsets
        self._offsets, self._steps = _read_state(run.event_offsets)
        # Create the file before any rank starts; otherwise a rank could put another file there.
        with contextlib.suppress(OSError):  # the file exists, or `convert` fails as well
            os.close(os.open(self._records, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        self._last: str | None = None
        self._restarts = 0
        self._broken: set[str] = set()
        self._warned = WarnedNames()

    def convert(self) -> bool:
        """Append records for new bytes, up to `TURN_BYTES`; return whether there were any.

        An error, such as a full disk or an unreadable file, is logged once. The next call repeats
        the work.
        """
        try:
            return self._convert()
        except OSError as error:
            self._warn("", f"event files wait: {error}")
            return False

    def _convert(self) -> bool:
        left, offsets = TURN_BYTES, dict(self._offsets)
        steps = {folder: dict(own) for folder, own in self._steps.items()}
        records: list[MetricRecord] = []
        for name, file in self._grown():
            with file:
                found = read_events(file, start=offsets.get(name, 0), limit=left)
            left -= found.end - offsets.get(name, 0)
            offsets[name] = found.end
            records += self._with_restarts(name, found.scalars, steps)
            if found.broken:
                self._broken.add(name)
            if found.broken or found.unreadable:
                self._warn(name, f"event file {name!r} is damaged near byte {found.end}")
            self._last = _folder_of(name)
            if left <= 0:
                break
        if offsets == self._offsets:
            return False
        if records and not self._append(records):
            self._warn("size", f"event files have given {MAX_BYTES:,} bytes; no more is taken")
            return False
        self._offsets, self._steps = offsets, steps
        kept = {"files": offsets, "steps": steps}
        replace_file(self._state, json.dumps(kept), durable=False)
        return True

    def _grown(self) -> Iterator[tuple[str, BinaryIO]]:
        """Yield path (below the folder) and open file of each event file that has new bytes."""
        try:
            folder = os.open(self._folder, FOLDER)
        except OSError:  # the file is missing, or not a regular file
            return
        try:
            found = self._in_turn(sorted(_event_files(folder)))
            more = MAX_FILES - len(self._offsets)
            for name, size in found:
                if size <= self._offsets.get(name, 0) or name in self._broken:
                    continue
                more -= name not in self._offsets
                if more < 0 and name not in self._offsets:
                    continue
                try:
                    file = _open_below(folder, name, owner=self._writer)
                except OSError as error:
                    self._warn(name, f"event file {name!r} is not read: {error}")
                    continue
                yield name, file
        finally:
            os.close(folder)

    def _in_turn(self, files: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return files by folder, starting after the folder that was read last.

        So a fast-growing folder does not delay the others. A folder's files stay in sequence,
        because a restart affects everything written before the restart.
        """
        folders = list(dict.fromkeys(_folder_of(name) for name, _ in files))
        first = folders.index(self._last) + 1 if self._last in folders else 0
        turns = {name: turn for turn, name in enumerate(folders[first:] + folders[:first])}
        return sorted(files, key=lambda file: turns[_folder_of(file[0])])

    def _with_restarts(
        self, name: str, scalars: Iterable[Scalar | Restart], steps: dict[str, dict[str, int]]
    ) -> Iterator[MetricRecord]:
        """Yield records of a file's scalars, and of restarts, which invalidate earlier points.

        Args:
            name: name of the file.
            scalars: new content of the file.
            steps: last step of each series, by folder; updated by this function.
        """
        own = steps.setdefault(_folder_of(name), {})
        for restarts, some in groupby(scalars, lambda each: isinstance(each, Restart)):
            if restarts:
                yield from self._taken_back(own, min(restart.step for restart in some))
                continue
            for record in self._records_of(name, cast("Iterable[Scalar]", some)):
                for metric in record.values:
                    if metric in own or sum(map(len, steps.values())) < MAX_SERIES:
                        own[metric] = max(record.step, own.get(metric, 0))
                yield record

    def _taken_back(self, steps: dict[str, int], step: int) -> Iterator[SeriesRestart]:
        """Yield restart records; each drops the points of some series from a step on."""
        names = [name for name, last in steps.items() if last >= step]
        self._restarts += bool(names)
        if self._restarts > MAX_RESTARTS:
            self._warn("restarts", f"restarts after the first {MAX_RESTARTS:,} drop no points")
            return
        steps |= dict.fromkeys(names, step - 1)
        for start in range(0, len(names), MAX_RESTARTED):
            some = tuple(names[start : start + MAX_RESTARTED])
            yield SeriesRestart(step=max(step, 0), time=now(), values={}, names=some)

    def _records_of(self, name: str, scalars: Iterable[Scalar]) -> Iterator[MetricRecord]:
        """Yield a record for adjacent scalars of the same step; names start with the folder."""
        prefix, _, _ = name.rpartition("/")
        step, time, values = -1, 0.0, dict[str, float]()
        for scalar in scalars:
            if not 0 <= scalar.step <= LAST_STEP:
                self._warn("step", f"step {scalar.step} of an event file is left out")
                continue
            legal = self._legal(f"{prefix}/{scalar.tag}" if prefix else scalar.tag)
            full = len(values) == MAX_RECORD_VALUES
            if values and (scalar.step != step or legal in values or full):
                yield MetricRecord(step=step, time=time, values=values)
                values = {}
            if not values:
                step, time = scalar.step, scalar.time
            values[legal] = scalar.value
        if values:
            yield MetricRecord(step=step, time=time, values=values)

    def _legal(self, name: str) -> str:
        legal = legal_name(name)
        if legal != name:
            words = f"metric {name[:120]!r} is stored as {legal!r}: {LEGAL_FORM}"
            self._warn(f"name {name[:100]}", words)
        return legal

    def _append(self, records: Iterable[MetricRecord]) -> bool:
        """Append all records, or none; return False if they would exceed `MAX_BYTES`.

        Raises:
            OSError: the file cannot be written.
        """
        content = b"".join(to_json(record).encode() + b"\n" for record in records)
        with open_regular(self._records, writing=True) as file:
            size = os.lseek(file.fileno(), 0, os.SEEK_END)
            if size + len(content) > MAX_BYTES:
                return False
            if (written := os.write(file.fileno(), content)) != len(content):
                os.ftruncate(file.fileno(), size)
                raise OSError(f"{self._records}: only {written} of {len(content)} bytes fit")
        return True

    def _warn(self, about: str, message: str) -> None:
        if self._warned.add(about):
            logger.warning("%s", message)


def event_tail_of(share: Share) -> EventTail | None:
    """Return the reader of a program's event files, on global rank 0's node; otherwise None.

    The built-in trainer needs none, because it writes the same values to its metrics.
    """
    leads = share.launch.node_rank == 0
    return EventTail(share.run) if leads and share.runs_program else None


def _event_files(folder: int) -> Iterator[tuple[str, int]]:
    """Yield path and size of each event file below an open folder, within the limits."""
    found: list[tuple[str, int]] = []
    waiting, left = [""], MAX_ENTRIES
    while waiting and left > 0:
        prefix = waiting.pop()
        try:
            opened = _folder_below(folder, prefix)
        except OSError:  # the folder is gone, or a link replaced it
            continue
        try:
            with os.scandir(opened) as entries:
                for entry in islice(entries, left):
                    left -= 1
                    if entry.is_dir(follow_symlinks=False):
                        if prefix.count("/") < DEEPEST:
                            waiting.append(f"{prefix}{entry.name}/")
                    elif NAME_PART in entry.name and entry.is_file(follow_symlinks=False):
                        found.append(
                            (prefix + entry.name, entry.stat(follow_symlinks=False).st_size)
                        )
        except OSError:
            continue
        finally:
            os.close(opened)
    yield from found


def _open_below(folder: int, name: str, *, owner: int) -> BinaryIO:
    """Open a file below a folder; the path must contain no link.

    Raises:
        OSError: the path is not a regular file of the ranks' user.
    """
    prefix, _, last = name.rpartition("/")
    parent = _folder_below(folder, prefix)
    try:
        return open_regular(Path(last), owner=owner, parent=parent)
    finally:
        os.close(parent)


def _folder_below(folder: int, path: str) -> int:
    """Open a folder below another, part by part; refuse links in the path.

    Raises:
        OSError: a part of the path is no folder.
    """
    opened = os.open(".", FOLDER, dir_fd=folder)
    for part in filter(None, path.split("/")):
        try:
            following = os.open(part, FOLDER, dir_fd=opened)
        finally:
            os.close(opened)
        opened = following
    return opened


def _folder_of(name: str) -> str:
    return name.rpartition("/")[0]


def _read_state(path: Path) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Return the offsets and steps that an earlier process stored; empty if there are none."""
    try:
        found = json.loads(read_small(path))
    except (OSError, ValueError, RecursionError):
        return {}, {}
    if not isinstance(found, dict):
        return {}, {}
    if "files" not in found:  # the file has the format of an older worker
        return _whole_numbers(found), {}
    steps = found.get("steps")
    folders = steps.items() if isinstance(steps, dict) else ()
    return _whole_numbers(found["files"]), {name: _whole_numbers(own) for name, own in folders}


def _whole_numbers(found: object) -> dict[str, int]:
    if not isinstance(found, dict):
        return {}
    return {str(name): end for name, end in found.items() if isinstance(end, int) and end >= 0}
