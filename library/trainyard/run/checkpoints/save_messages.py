"""Messages between a program's ranks during a save, as small files with fixed names.

```
<job>/a<attempt>/.save-<k>/    save number k of the attempt, from 0; removed after later saves
  begun.json       from rank 0: step and folder
  seen-<r>.json    from rank r, at the end of its block: paths that it sees, or its error
  shares.json      from rank 0, once all ranks have left their blocks: files for each rank
  done-<r>.json    from rank r: size and checksum of each of its files, or its error
  ended.json       from rank 0: the checkpoint is committed, or the error
```
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.run.atomic import replace_file
from trainyard.run.checkpoints.program_manifest import (
    CHECKSUM,
    MAX_FILES,
    SavedFile,
    name_problem,
)
from trainyard.run.checkpoints.saved_files import open_plain

MAX_BYTES = 16 * 1024 * 1024
"""Maximum size of a message, in bytes: 10,000 paths of 1,000 ASCII characters with checksums
fit."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.005, 0.25
BEGUN, SHARES, ENDED = "begun", "shares", "ended"

Message = dict[str, Any]


class CheckpointSaveError(RuntimeError):
    """A checkpoint was not committed; each rank that takes part raises this error or its own."""


@dataclass(frozen=True)
class SaveMessages:
    """Messages of one save, in a folder that all ranks see."""

    folder: Path

    def post(self, name: str, message: Message) -> None:
        """Write a message.

        Raises:
            OSError: the storage reports an error.
        """
        text = json.dumps(message, separators=(",", ":"))
        replace_file(self.folder / f"{name}.json", text, mode=0o666, durable=False)

    def read(self, name: str) -> Message | None:
        """Return a message; None if it is not written yet.

        Raises:
            CheckpointSaveError: the file contains no message.
            OSError: the storage reports an error.
        """
        path = self.folder / f"{name}.json"
        try:
            with os.fdopen(open_plain(path), "rb") as file:
                content = file.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
            message = json.loads(content)
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise CheckpointSaveError(f"{path} is no message of a rank: {error}") from None
        if not isinstance(message, dict):
            raise CheckpointSaveError(f"{path} is no message of a rank")
        return message

    def wait(self, look: Callable[[], Any], *, until: float, missing: Callable[[], str]) -> Any:
        """Poll `look` until it returns a value other than None; return this value.

        Args:
            look: reads the awaited value.
            until: deadline, by the monotonic clock.
            missing: returns a description of the awaited value for the error.

        Raises:
            CheckpointSaveError: the deadline has passed without a value.
        """
        pause = FIRST_PAUSE_SECONDS
        while (found := look()) is None:
            if time.monotonic() >= until:
                raise CheckpointSaveError(f"no answer in time: {missing()}")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        return found


def seen(rank: int) -> str:
    """Return the name of the message that a rank writes at the end of its block."""
    return f"seen-{rank}"


def done(rank: int) -> str:
    """Return the name of a rank's message with the description of its share."""
    return f"done-{rank}"


def error_of(message: Message) -> str | None:
    """Return the error in a message; None without an error."""
    error = message.get("error")
    return None if error is None else str(error)[:2000]


def named_by(message: Message, rank: int) -> list[str]:
    """Return the paths in a rank's message.

    Raises:
        CheckpointSaveError: a path is illegal, or the message has no list of legal length.
    """
    names = message.get("names")
    if not isinstance(names, list) or len(names) > MAX_FILES:
        raise CheckpointSaveError(f"rank {rank} names no list of up to {MAX_FILES:,} files")
    for name in names:
        problem = name_problem(name) if isinstance(name, str) else "a file's name is no text"
        if problem is not None:
            raise CheckpointSaveError(f"rank {rank}: {problem}")
    return names


def described_by(message: Message, rank: int, given: list[str]) -> list[SavedFile]:
    """Return the files in a rank's description of its share.

    Raises:
        CheckpointSaveError: a file is outside the rank's share, or its description is illegal or
            repeated.
    """
    found: list[SavedFile] = []
    left = set(given)
    files: Any = message.get("files")
    for file in files if isinstance(files, list) else [None]:
        match file:
            case {"path": str(path), "size": int(size), "checksum": str(checksum)} if (
                path in left and 0 <= size < 2**62 and CHECKSUM.fullmatch(checksum)
            ):
                left.discard(path)
                found.append(SavedFile(path=path, size=size, checksum=checksum))
            case _:
                raise CheckpointSaveError(
                    f"rank {rank} describes {str(file)[:120]}, no file of its share"
                )
    return found
