"""Save by all ranks of a program: each rank writes its own files, and rank 0 commits them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from trainyard.run.checkpoints.checkpoint_names import COMMITTED, checkpoint_id
from trainyard.run.checkpoints.fence_file import FencedOffError, FenceError
from trainyard.run.checkpoints.program_manifest import (
    KIND,
    ProgramManifest,
    SavedFile,
    name_problem,
    total_size,
)
from trainyard.run.checkpoints.program_storage import (
    CONTROL,
    JobStorage,
    SaveStorage,
    has_later,
    remove_messages,
)
from trainyard.run.checkpoints.save_messages import (
    BEGUN,
    ENDED,
    SHARES,
    CheckpointSaveError,
    Message,
    SaveMessages,
    described_by,
    done,
    error_of,
    named_by,
    seen,
)
from trainyard.run.checkpoints.saved_files import describe, shares, sync_files, sync_folders
from trainyard.run.limits import LAST_STEP

WAIT_SECONDS = 1800.0
"""Maximum wait of rank 0 for another rank, in seconds; rank 0 waits twice per save."""
LEFT_SECONDS = 90.0
"""Maximum time until other nodes see a message; NFS caches a file's absence for a minute."""
POLL_SECONDS = 10.0
"""Time between two checks for a later save."""


@dataclass
class ProgramCheckpoints:
    """Checkpoints of a program, as used by one of its ranks."""

    storage: SaveStorage
    rank: int
    world_size: int
    report: Callable[[ProgramManifest], None]
    """Called on rank 0 with the manifest of each commit."""
    wait_seconds: float = WAIT_SECONDS
    left_seconds: float = LEFT_SECONDS
    before_commit: Callable[[], None] = lambda: None
    """Called on rank 0 of a job before each commit."""
    _saves: int = field(default=0, init=False)
    _is_fenced: bool = field(default=False, init=False)

    def resume_from(self) -> Path | None:
        """Return the folder of the parent checkpoint; None without one.

        First, rank 0 fences off all earlier attempts, and the other ranks wait for this.

        Raises:
            FencedOffError: a newer attempt of the job has started.
            FenceError: the fence cannot be raised.
            UnusableCheckpointError: the checkpoint is missing, changed or incomplete.
            CheckpointSaveError: rank 0 did not raise the fence in time.
            OSError: the storage reports an error.
        """
        if not isinstance(self.storage, JobStorage):
            if self.rank == 0:
                self.storage.bring_back()
            return None
        self.raise_fence()
        return self.storage.resume_folder()

    @contextmanager
    def save(self, step: int, *, kind: str = "interval") -> Iterator[Path]:
        """Yield the folder of a checkpoint, and commit it once all ranks have left their blocks.

        All ranks must enter the block with the same step. If this attempt has already committed the
        step, the new folder is dropped after the block; outside a job, it replaces the earlier one.

        Args:
            step: completed steps; the number names the checkpoint.
            kind: reason for the save, as a word of up to 16 lower-case letters or underscores.

        Raises:
            ValueError: the step or kind is illegal.
            CheckpointSaveError: the checkpoint is not committed; all ranks raise an error.
            FencedOffError: a newer attempt of the job has started.
            FenceError: the fence cannot be raised.
        """
        if not 0 <= step <= LAST_STEP:
            raise ValueError(f"step={step}; legal: 0 to {LAST_STEP}")
        if not KIND.fullmatch(kind):
            raise ValueError(f"kind={kind!r}; legal: 1 to 16 of a-z and _, such as 'interval'")
        one = _OneSave(self, self._saves, step, kind)
        self._saves += 1  # before any error can occur, because all ranks must count every save
        folder = one.begin()
        try:
            yield folder
        except BaseException as error:
            one.fail(error)
            raise
        manifest = one.end()
        if manifest is not None:
            self.report(manifest)

    def raise_fence(self, check: Callable[[], object] = lambda: None) -> None:
        """Fence off all earlier attempts, once; ranks other than 0 wait for rank 0.

        Args:
            check: raises an error if the wait for rank 0 is useless.

        Raises:
            FencedOffError: a newer attempt of the job has started.
            FenceError: the fence cannot be raised.
            CheckpointSaveError: rank 0 did not raise the fence in time.
            OSError: the storage reports an error.
        """
        storage = self.storage
        if self._is_fenced or not isinstance(storage, JobStorage):
            return
        if self.rank == 0:
            storage.raise_fence(keep_messages=self._saves > 1)
        else:

            def look() -> bool | None:
                if storage.fence_is_raised():
                    return True
                check()
                return None

            SaveMessages(storage.folder).wait(
                look,
                until=time.monotonic() + self.wait_seconds,
                missing=lambda: f"rank 0 has not raised {storage.job_folder}/FENCE",
            )
        self._is_fenced = True


class _OneSave:
    """One rank's part in one save."""

    def __init__(self, checkpoints: ProgramCheckpoints, number: int, step: int, kind: str) -> None:
        self._all = checkpoints
        self._storage, self._rank = checkpoints.storage, checkpoints.rank
        self._others = range(1, checkpoints.world_size)
        self._number, self._step, self._kind = number, step, kind
        control = self._storage.folder / f"{CONTROL}{self._storage.run}{number}"
        self._messages = SaveMessages(control)
        self._mine = ENDED if self._rank == 0 else seen(self._rank)
        """Name of this rank's next message; in case of an error, this message carries the error."""
        self._began = time.monotonic()
        self._folder = control
        self._is_repeated = self._all_left = False
        self._look_at = self._began + min(checkpoints.left_seconds, POLL_SECONDS)
        """Time at which this rank next checks for a later save of rank 0."""
        self._left_at: float | None = None
        """Time at which this rank first noticed that rank 0 is in a later save."""

    def begin(self) -> Path:
        try:
            self._all.raise_fence(self._check)
            if self._rank == 0:
                self._create()
            else:
                self._enter()
        except FencedOffError:
            raise  # each rank detects it on its own; the storage now belongs to a newer attempt
        except (OSError, FenceError) as error:
            with suppress(OSError, CheckpointSaveError):
                self._open_messages()
            if isinstance(error, FenceError):
                self._post_failure(str(error))
                raise
            raise self._failed(error) from error
        return self._folder

    def fail(self, error: BaseException) -> None:
        """Report to the other ranks that the block failed on this rank."""
        self._post_failure(f"{type(error).__name__}: {error}")

    def end(self) -> ProgramManifest | None:
        """Take part in the commit; on rank 0 of a job, return the manifest of a new checkpoint."""
        try:
            if self._rank == 0:
                return self._commit()
            self._follow()
            return None
        except (CheckpointSaveError, FenceError) as error:
            self._post_failure(str(error))
            raise
        except (OSError, ValueError) as error:
            raise self._failed(error) from error
        except BaseException as error:
            self.fail(error)
            raise

    # ---- rank 0 ---------------------------------------------------------------------------------

    def _create(self) -> None:
        if self._others:
            self._open_messages()
        created = self._storage.create(self._step)
        self._is_repeated = created is None
        self._folder = created or self._messages.folder / "repeated"
        if created is None:
            self._folder.mkdir(parents=True)
        place = str(self._folder.relative_to(self._storage.folder))
        self._post(BEGUN, {"step": self._step, "folder": place})

    def _commit(self) -> ProgramManifest | None:
        named = {0: self._sync()} | {
            rank: named_by(message, rank) for rank, message in self._gather(seen).items()
        }
        self._all_left = True
        if self._is_repeated:
            self._post(ENDED, {"error": None})
            shutil.rmtree(self._folder if self._others else self._messages.folder)
            return None
        if not any(named.values()):
            raise ValueError(f"no rank wrote a file into {self._folder}")
        storage = self._storage
        # A script without a job writes no manifest, so nothing compares checksums.
        described = named if isinstance(storage, JobStorage) else {}
        given = shares(described, self._all.world_size)
        self._post(SHARES, {"shares": given})
        files = [*describe(self._folder, given[0])]
        for rank, message in self._gather(done).items():
            files += described_by(message, rank, given[rank])
        manifest = None
        if isinstance(storage, JobStorage):
            manifest = self._manifest(storage, files)
            self._all.before_commit()
            storage.commit(self._folder, manifest)
        else:
            storage.name(self._folder, self._step)
        # The checkpoint is committed; an error here at worst becomes an error of the other ranks.
        with suppress(OSError):
            self._post(ENDED, {"error": None})
            remove_messages(storage.folder, run=storage.run, before=self._number)
        return manifest

    def _manifest(self, storage: JobStorage, files: list[SavedFile]) -> ProgramManifest:
        return ProgramManifest(
            checkpoint_id=checkpoint_id(storage.job_id, storage.attempt, self._step),
            job_id=storage.job_id,
            attempt=storage.attempt,
            step=self._step,
            created_at=datetime.now(UTC),
            world_size=self._all.world_size,
            parent=storage.parent,
            kind=self._kind,
            save_seconds=round(time.monotonic() - self._began, 6),
            size=total_size(files),
            files=tuple(sorted(files, key=lambda file: file.path)),
        )

    def _gather(self, name: Callable[[int], str]) -> dict[int, Message]:
        """Wait for a message from every other rank, and return the messages by rank."""
        found: dict[int, Message] = {}

        def look() -> dict[int, Message] | None:
            if isinstance(self._storage, JobStorage):
                # A rank that was fenced off posts no message.
                self._storage.fence_is_raised()
            for rank in self._others:
                if rank in found or (message := self._messages.read(name(rank))) is None:
                    continue
                if (error := error_of(message)) is not None:
                    raise CheckpointSaveError(f"rank {rank}: {error}")
                found[rank] = message
            return found if len(found) == len(self._others) else None

        def missing() -> str:
            ranks = [rank for rank in self._others if rank not in found]
            return (
                f"ranks {', '.join(map(str, ranks[:8]))}{', ...' * (len(ranks) > 8)} are not "
                f"through the block of step {self._step} after {self._all.wait_seconds:.0f} s"
            )

        self._messages.wait(look, until=time.monotonic() + self._all.wait_seconds, missing=missing)
        return found

    # ---- the other ranks ------------------------------------------------------------------------

    def _enter(self) -> None:
        begun = self._wait(BEGUN, "rank 0 has not begun the save")
        place, step = begun.get("folder"), begun.get("step")
        if step != self._step or not isinstance(place, str) or name_problem(place) is not None:
            error = f"it saves step {self._step}, and rank 0 step {step}; legal: the same step"
            self._post_failure(error)
            raise CheckpointSaveError(f"rank {self._rank}: {error}")
        self._folder = self._storage.folder / place
        self._messages.wait(
            lambda: self._folder.is_dir() or None,
            until=time.monotonic() + self._all.wait_seconds,
            missing=lambda: f"{self._folder}, which rank 0 has made, is not seen here",
        )

    def _follow(self) -> None:
        self._post(self._mine, {"names": self._sync()})
        if self._wait(SHARES, "rank 0 has divided no files", also=ENDED).get("shares"):
            self._describe(self._wait(SHARES, "rank 0 has divided no files"))
        self._wait(ENDED, "rank 0 has not ended the save")

    def _describe(self, message: Message) -> None:
        self._mine = done(self._rank)
        given = message["shares"]
        if not (isinstance(given, list) and len(given) == self._all.world_size):
            raise CheckpointSaveError(f"rank 0 divided the files over {len(given)} ranks")
        files = [vars(file) for file in describe(self._folder, map(str, given[self._rank]))]
        self._post(self._mine, {"files": files})

    def _wait(self, name: str, awaited: str, *, also: str | None = None) -> Message:
        """Wait for the message `name` or `also` from rank 0, and return it.

        Raises:
            CheckpointSaveError: rank 0 ended the save with an error, or no message arrived in time.
        """

        def look() -> Message | None:
            ended = self._check()
            return (ended if also == ENDED else None) or self._messages.read(name)

        # Rank 0 waits for the others twice, so rank 0 gives up first and reports the cause.
        until = time.monotonic() + 3 * self._all.wait_seconds
        found: Message = self._messages.wait(look, until=until, missing=lambda: awaited)
        return found

    def _check(self) -> Message | None:
        """Return rank 0's message about the end of the save; None before the end.

        Raises:
            CheckpointSaveError: the save ended with an error, or rank 0 is in a later save.
        """
        ended = self._messages.read(ENDED)
        if ended is not None and (error := error_of(ended)) is not None:
            raise CheckpointSaveError(error)
        now, patience = time.monotonic(), self._all.left_seconds
        # Not in every poll, because all ranks list the folder.
        if ended is None and now >= self._look_at:
            self._look_at = now + min(patience, POLL_SECONDS)
            if has_later(self._storage.folder, self._storage.run, self._number):
                self._left_at = self._left_at or now
                if now > self._left_at + patience:
                    raise CheckpointSaveError("rank 0 failed in this save, and is in a later one")
        return ended

    # ---- every rank -----------------------------------------------------------------------------

    def _open_messages(self) -> None:
        """On rank 0, create the folder of the messages; on the other ranks, wait for this folder.

        Raises:
            CheckpointSaveError: rank 0 ended the save with an error, or did not start it in time.
            OSError: the storage reports an error.
        """
        if self._rank == 0:
            self._messages.folder.mkdir(parents=True, exist_ok=True)
        else:
            self._wait(BEGUN, "rank 0 has not begun the save")

    def _sync(self) -> list[str]:
        names = sync_files(self._folder)
        sync_folders(self._folder)
        return list(names)

    def _post(self, name: str, message: Message) -> None:
        if self._others:  # a single process needs no messages
            self._messages.post(name, message)

    def _failed(self, error: Exception) -> CheckpointSaveError:
        """Report an error of the storage or of a file to the other ranks, and return the error."""
        self._post_failure(str(error))
        return CheckpointSaveError(f"rank {self._rank}: {error}")

    def _post_failure(self, error: str) -> None:
        """Report an error to the other ranks; on rank 0, also remove a folder that no rank uses."""
        posted = error if self._rank else f"step {self._step} is not committed: {error}"
        with suppress(OSError):
            self._post(self._mine, {"error": posted})
            if self._rank == 0 and (self._all_left or not self._others):
                # No rank writes there now, so free the space of a full disk. Remove the marker
                # first; otherwise the remaining files would count as a checkpoint.
                (self._folder / COMMITTED).unlink(missing_ok=True)
                shutil.rmtree(self._folder, ignore_errors=True)
