"""`prove.jsonl`: one line for each run of the command, and one for each check."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from trainyard.client.errors import UsageError

LINES = "prove.jsonl"

Time = Literal["10m", "1h", "8h"]
Line = dict[str, Any]


@dataclass(frozen=True)
class ProofSubject:
    """What is proved. A folder holds the lines of one subject."""

    slots: int
    """Number of slots under test."""
    time: Time
    """Time limit of the whole ladder."""
    local: bool
    """Whether the command runs its own control plane in the folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder while the block runs, so that no second command drives the same jobs.

    Raises:
        UsageError: another command holds the folder, or the folder cannot be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "prove.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"cannot keep results in {folder}: {error.strerror}") from error
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(
            f"another `trainyard prove` uses {folder}", remedy="Give another folder to --to."
        ) from error


class ProofRecord:
    """The lines in a folder, with those of earlier runs of the same command."""

    def __init__(self, folder: Path, subject: ProofSubject) -> None:
        """Read the lines of a folder.

        Raises:
            UsageError: the folder has the lines of another subject, or cannot be used.
        """
        self.path = folder / LINES
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lines = _read(self.path)
        except OSError as error:
            raise UsageError(f"cannot keep results in {folder}: {error.strerror}") from error
        runs = [line for line in self._lines if "run" in line]
        if runs and runs[0]["subject"] != asdict(subject):
            before = " ".join(f"{name}={value}" for name, value in runs[0]["subject"].items())
            raise UsageError(
                f"{self.path} has the results of another command: {before}",
                remedy="Give the same options to continue it, or another folder to --to.",
            )
        self._start = _start(local=subject.local)
        self.run: str = runs[0]["run"] if runs else secrets.token_hex(6)
        """Id of the run, the same for all commands on the folder."""
        self.subject = subject

    def begin(self, facts: Line) -> None:
        """Append the header of a run: subject, start, and facts about machine and software.

        Lines of earlier runs with other facts no longer count, since they are about another
        machine or other software.
        """
        subject = asdict(self.subject)
        header = {"run": self.run, "subject": subject, "start": self._start, "facts": facts}
        self._append(header)

    @property
    def _current(self) -> list[Line]:
        """Lines of the checks since the facts changed."""
        found: list[Line] = []
        facts: Any = None
        for line in self._lines:
            if "run" in line:
                if line["facts"] != facts:
                    found.clear()
                facts = line["facts"]
            else:
                found.append(line)
        return found

    @property
    def checks(self) -> list[Line]:
        """Last line of each check since the facts changed, in the order of their first lines."""
        return list({line["check"]: line for line in self._current}.values())

    @property
    def facts(self) -> Line:
        """Facts of the newest run; empty before the first."""
        headers = [line["facts"] for line in self._lines if "run" in line]
        return dict(headers[-1]) if headers else {}

    @property
    def start(self) -> Line:
        """Time and load at the start of the first run with the newest facts; empty before it."""
        found: Line = {}
        facts: Any = None
        for line in self._lines:
            if "run" in line:
                found = found if line["facts"] == facts else line.get("start", {})
                facts = line["facts"]
        return found

    @property
    def facts_digest(self) -> str:
        """Digest of the facts of the newest run."""
        return sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def seconds(self) -> float:
        """Time of the ended checks since the facts changed, in seconds."""
        return sum(float(line["seconds"]) for line in self._current)

    def tries(self, check: str) -> int:
        """Return the number of ended tries of a check since the facts changed."""
        return sum(line["check"] == check for line in self._current)

    def add(self, line: Line) -> None:
        """Append the line of a check."""
        self._append(line)

    def _append(self, line: Line) -> None:
        """Append a line in one write; an incomplete last line is ended first."""
        cut_off = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        cut_off = cut_off and self.path.stat().st_size > 0
        with self.path.open("a", encoding="utf-8") as file:
            file.write(("\n" if cut_off else "") + json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._lines.append(line)


def utc_now() -> str:
    """Return the time in UTC, as `2026-01-31T12:00:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _start(*, local: bool) -> Line:
    """Return the time, and this machine's load over one minute if it is the tested one."""
    return {"time": utc_now()} | ({"load": round(os.getloadavg()[0], 2)} if local else {})


def _read(path: Path) -> list[Line]:
    """Return the complete lines of a file; empty if the file is missing."""
    if not path.exists():
        return []
    found = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue  # the command was killed while it wrote
        if isinstance(line, dict) and ("run" in line or "check" in line):
            found.append(line)
    return found
