"""Checkpoints of the stand-in: one file, index, manifest and marker, under the fence of the job."""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import xxhash

from trainyard.run.atomic import replace_file

TRANSIENT = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
"""Errors after which a save is tried again: those of the real trainer."""
DATA_FILE, INDEX, MANIFEST, MARKER = "__0_0.distcp", ".metadata", "manifest.json", "COMMITTED"


class OutrunError(Exception):
    """A newer attempt has raised the fence."""


@dataclass(frozen=True)
class Storage:
    """The checkpoints of a job, as one of its attempts writes them."""

    root: Path
    job_id: str
    attempt: int

    def raise_fence(self) -> None:
        """Forbid older attempts to commit.

        Raises:
            OutrunError: a newer attempt has raised the fence already.
            OSError: the storage refuses.
        """
        with self._fenced():
            pass

    def load(self, resume: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """Return the counters and the state of the checkpoint from which the attempt resumes.

        Raises:
            ValueError: it is not whole, or another one.
            OSError: the storage refuses.
        """
        folder = self.root / resume["path"]
        text = (folder / MANIFEST).read_bytes()
        manifest = json.loads(text)
        content = (folder / DATA_FILE).read_bytes()
        whole = (folder / MARKER).read_text().strip() == _digest(text)
        files = {file["path"]: file["xxh3_128"] for file in manifest["files"]}
        same = (manifest["checkpoint_id"], files[INDEX], files[DATA_FILE]) == (
            resume["checkpoint_id"],
            resume["metadata_digest"],
            _digest(content),
        )
        if not (whole and same):
            raise ValueError(f"{folder} is not the committed checkpoint {resume['checkpoint_id']}")
        return manifest["train_state"], content.decode()

    def save(self, state: str, manifest: dict[str, Any]) -> dict[str, Any]:
        """Write and commit a checkpoint; return its manifest. A failure leaves no folder.

        Args:
            state: content of the data file.
            manifest: all that does not follow from job, attempt, step and files.

        Raises:
            OutrunError: a newer attempt has raised the fence.
            OSError: the storage refuses.
        """
        started, step = time.monotonic(), manifest["train_state"]["step"]
        folder = self.root / self.job_id / f"a{self.attempt}" / f"step-{step}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True)
            contents = {DATA_FILE: state, INDEX: f"index of {self.job_id} {self.attempt} {step}"}
            for name, content in contents.items():
                (folder / name).write_text(content)
            files = [
                {"path": name, "size": len(content), "xxh3_128": _digest(content.encode())}
                for name, content in contents.items()
            ]
            seconds = time.monotonic() - started
            whole = manifest | {
                "checkpoint_id": f"{self.job_id}.a{self.attempt}.step-{step}",
                "job_id": self.job_id,
                "attempt": self.attempt,
                "created_at": datetime.now(UTC).isoformat(),
                "save_seconds": seconds,
                "files": files,
                "writers": [{"rank": 0, "size": len(state), "files": 1, "write_seconds": seconds}],
            }
            text = json.dumps(whole).encode()
            replace_file(folder / MANIFEST, text)
            with self._fenced():
                replace_file(folder / MARKER, _digest(text))
        except (OSError, OutrunError):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return whole

    @contextmanager
    def _fenced(self) -> Iterator[None]:
        """Hold the fence, raised to this attempt, while the block runs."""
        job = self.root / self.job_id
        job.mkdir(parents=True, exist_ok=True)
        fence = job / "FENCE"
        with (job / "FENCE.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            highest = int(fence.read_text()) if fence.exists() else 0
            if highest > self.attempt:
                raise OutrunError(f"attempt {self.attempt} was outrun by attempt {highest}")
            if highest < self.attempt:
                replace_file(fence, f"{self.attempt}\n")
            yield


def _digest(content: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(content)
