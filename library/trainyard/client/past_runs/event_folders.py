"""Reads runs of TensorBoard; as in TensorBoard, each folder with event files is one run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainyard.client.past_runs.past_run import PastRun, refuse_pointer
from trainyard.run.other_tools.event_files import NAME_PART, Restart, Scalar, read_events

SLICE_BYTES = 16 * 2**20


def read_folder(folder: Path, files: list[Path], *, root: Path) -> PastRun:
    """Return the run of a folder: the scalars of its event files, in the order of file names.

    As in TensorBoard, points that a restart repeats are dropped. A `SessionLog.START` at step s
    drops the points from step s on that were read before. A point at step s drops the points of its
    own series that were read before and have a step above s.

    Args:
        folder: the folder with the event files.
        files: the event files.
        root: the folder that the user named; the names of runs are relative to it.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is a Git LFS pointer.
    """
    inner = folder.relative_to(root).as_posix()
    name = root.absolute().name if inner == "." else inner
    run = PastRun("tensorboard", name[:200], name, state="succeeded")
    run.reason = "event files record no end"
    for path in sorted(files):
        _read(run, path)
    return run


def _read(run: PastRun, path: Path) -> None:
    refuse_pointer(path)
    with path.open("rb") as file:
        end = 0
        while True:
            found = read_events(file, start=end, limit=SLICE_BYTES)
            for scalar in found.scalars:
                _add(run, scalar)
            run.config |= found.hyperparameters
            if found.unreadable:
                run.note("damaged records are left out")
            if found.broken or found.end == end:
                break
            end = found.end
        if end < path.stat().st_size:
            run.note("a file is cut off or damaged, and is read as far as possible")


def _add(run: PastRun, scalar: Scalar | Restart) -> None:
    """Add a point, or drop the points that a restart repeats."""
    if isinstance(scalar, Restart):
        run.restart(scalar.step)
        return
    if scalar.step >= 0:  # negative steps are left out
        run.rewind(scalar.tag, scalar.step)
    run.add(scalar.tag, scalar.step, time=scalar.time, value=scalar.value)


def event_folders(path: Path, *, most: int) -> Iterator[tuple[Path, list[Path]]]:
    """Yield each folder with event files at or below a path, with the first `most` files in all."""
    found: dict[Path, list[Path]] = {}
    for file in sorted(path.rglob(f"*{NAME_PART}*"))[:most]:
        if file.is_file() and not file.is_symlink():
            found.setdefault(file.parent, []).append(file)
    yield from found.items()
