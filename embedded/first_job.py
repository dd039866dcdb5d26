"""The job that `up --submit` submits and follows, by `trainyard submit --wait` as a process."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from embedded.child import PYTHON

DEFAULT_JOB = (
    *("--set", "name=first"),
    *("--set", "training.steps=40"),
    *("--set", "compile.enabled=false"),
    *("--set", "checkpoint.interval_steps=20"),
)
"""The job without a spec file: 40 steps of the debug model on one slot, by the spec's defaults.

It is not compiled, because a new machine may lack a C compiler and the headers of Python. It saves
halfway and at its end: the default interval is beyond its steps, which the planner warns of.
"""
INTERRUPTED = 130
"""Exit status if `up` ends before the job."""
END_SECONDS = 10.0


@dataclass(frozen=True)
class FirstJobRequest:
    """What `up` does with a job once the control plane runs."""

    file: Path | None
    """The spec file; None for the default job."""
    end_afterwards: bool
    """Whether `up` ends when the job has ended, with the job's exit status."""


class FirstJob:
    """The running command; it prints its errors and the progress of the job to the terminal."""

    def __init__(self, request: FirstJobRequest, *, url: str, token: str) -> None:
        self._end_afterwards = request.end_afterwards
        given = DEFAULT_JOB if request.file is None else (str(request.file),)
        self._process = subprocess.Popen(
            (*PYTHON, "trainyard", "submit", *given, "--wait"),
            stdin=subprocess.DEVNULL,
            env=os.environ | {"TRAINYARD_URL": url, "TRAINYARD_TOKEN": token},
        )

    @property
    def pid(self) -> int:
        """Process id of the command."""
        return self._process.pid

    def ends_up(self) -> bool:
        """Return whether the job has ended, and `up` with it."""
        return self._end_afterwards and self._process.poll() is not None

    def leave(self, *, interrupted: bool) -> int:
        """End the command, but not its job; return the exit status for `up`.

        The status is that of the job if `up` ends with it: 0 succeeded, 1 failed, 2 refused, 3
        stopped or cancelled. It is 130 if a signal has ended `up` or the command before. Without
        the request that `up` ends with the job, the status is 0.

        Args:
            interrupted: whether a signal ends `up`. A terminal sends Ctrl-C to the command as well,
                so the command may have ended by itself, with any status.
        """
        ended = self._process.poll() is not None
        if not ended:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(timeout=END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if not self._end_afterwards:
            return 0
        status = self._process.returncode
        return status if ended and not interrupted and status >= 0 else INTERRUPTED
