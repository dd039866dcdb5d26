"""Control files of a run directory: order to stop, requests, and responses to requests."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from trainyard.run.atomic import create_file, replace_file
from trainyard.run.checkpoints.saved_files import open_plain
from trainyard.run.directory import RunDirectory
from trainyard.run.record_base import to_json
from trainyard.run.record_files import replace_record
from trainyard.run.records import Request, RequestAnswer

REQUEST_SUFFIX = ".json"
ANSWER_SUFFIX = ".answer.json"
LONGEST_DEADLINE = 64
"""Maximum number of bytes to read from `stop`."""


def order_stop(run: RunDirectory, *, deadline: float | None = None) -> None:
    """Create `stop`, which orders the trainer to save and end.

    Args:
        run: the run directory.
        deadline: Unix time after which the processes may be killed; the trainer starts no save that
            cannot end before this time. Without a deadline, an existing order stays unchanged. With
            a deadline, an order with another deadline is replaced.

    Raises:
        OSError: the file cannot be written.
    """
    # Neither branch writes through a link that a rank may have created in place of the file.
    if deadline is None:
        create_file(run.stop, "")
    elif stop_deadline(run) != deadline:
        replace_file(run.stop, f"{deadline}\n")


def stop_deadline(run: RunDirectory) -> float | None:
    """Return the deadline of an order to stop; None without a deadline or an order.

    A rank can replace the file by a pipe, a link or a large file. So this function never waits
    for a pipe, follows a link or reads a large file.
    """
    try:
        with os.fdopen(open_plain(run.stop), "rb") as file:
            deadline = float(file.read(LONGEST_DEADLINE).decode("ascii"))
    except (OSError, ValueError):
        return None
    return deadline if math.isfinite(deadline) else None


def should_stop(run: RunDirectory) -> bool:
    """Return whether the trainer must save and end."""
    return run.stop.exists()


def post_request(run: RunDirectory, request_id: str, request: Request) -> None:
    """Write a request, unless it already exists.

    Raises:
        OSError: the file cannot be written.
    """
    folder = run.requests
    folder.mkdir(exist_ok=True)
    create_file(folder / f"{request_id}{REQUEST_SUFFIX}", to_json(request) + "\n")


def request_files(run: RunDirectory) -> Iterator[tuple[str, Path]]:
    """Yield id and file of every request, including answered requests, sorted by id."""
    for path in sorted(run.requests.glob(f"*{REQUEST_SUFFIX}")):
        if not path.name.endswith(ANSWER_SUFFIX):
            yield path.name.removesuffix(REQUEST_SUFFIX), path


def write_answer(run: RunDirectory, request_id: str, answer: RequestAnswer) -> None:
    """Write the response to a request.

    Raises:
        OSError: the file cannot be written.
    """
    replace_record(answer_file(run, request_id), answer)


def answer_file(run: RunDirectory, request_id: str) -> Path:
    """Return the path of the response to a request."""
    return run.requests / f"{request_id}{ANSWER_SUFFIX}"


def answer_files(run: RunDirectory) -> Iterator[tuple[str, Path]]:
    """Yield request id and file of every response, sorted by id."""
    for path in sorted(run.requests.glob(f"*{ANSWER_SUFFIX}")):
        yield path.name.removesuffix(ANSWER_SUFFIX), path
