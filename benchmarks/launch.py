"""Launches of torchrun on one machine, for benchmarks, checks and tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ONE_MACHINE = (
    "--nnodes=1",
    # The kernel chooses a free port. `--standalone` would resolve the machine's host name.
    "--rdzv-backend=c10d",
    "--rdzv-endpoint=127.0.0.1:0",
    "--local-addr=127.0.0.1",
)


def torchrun(ranks: int, *words: str, python: Path = Path(sys.executable)) -> list[str]:
    """Return the command that runs a script, or `-m` and a module, on `ranks` ranks."""
    launcher = [str(python), "-m", "torch.distributed.run", *ONE_MACHINE]
    return [*launcher, f"--nproc-per-node={ranks}", *words]


@dataclass(frozen=True)
class Mark:
    """The moment at which a launch had completed a number of steps."""

    step: int
    seconds: float
    """Seconds since the launch."""
    processor_seconds: float
    """Processor time so far of the live processes started by the launch."""


POLL_SECONDS = 0.05


def launch_and_watch(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    done: Callable[[str], int],
    until: int,
) -> list[Mark]:
    """Run a launch until it has completed `until` steps; return a mark for each change of `done`.

    Args:
        command: the launch.
        folder: its working directory.
        environment: its variables.
        done: returns the number of completed steps, given the launch's output.
        until: step after which the launch is ended.

    Raises:
        RuntimeError: it ended earlier; the message has the end of its output.
    """
    marks: list[Mark] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        begun = time.perf_counter()
        launched = subprocess.Popen(
            [*command],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

        def printed() -> str:
            # The launch writes to the same open file, at any position: read by offset.
            return os.pread(output.fileno(), 1 << 24, 0).decode(errors="replace")

        try:
            while not marks or marks[-1].step < until:
                ended = launched.poll() is not None
                step = done(printed())
                if step > (marks[-1].step if marks else 0):
                    seconds = time.perf_counter() - begun
                    marks.append(Mark(step, seconds, processor_seconds(launched.pid)))
                elif ended:
                    words = " ".join(command)
                    raise RuntimeError(
                        f"{words} ended with {launched.returncode}:\n{printed()[-4000:]}"
                    )
                else:
                    time.sleep(POLL_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(launched.pid, signal.SIGKILL)
            launched.wait()
    return marks


def processor_seconds(root: int) -> float:
    """Return user and system time of the live descendants of a process."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            # After the name of the program, which may hold spaces: state, parent, ...
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            ticks[int(folder.name)] = int(fields[11]) + int(fields[12])

    def started(pid: int) -> bool:
        return pid in parents and (parents[pid] == root or started(parents[pid]))

    total = sum(count for pid, count in ticks.items() if started(pid))
    return total / os.sysconf("SC_CLK_TCK")
