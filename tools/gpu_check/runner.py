"""Runs checks, each in its own process with a time limit, and writes a line for each."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from tools.gpu_check.check import RESULT, DeviceKind
from tools.gpu_check.plan import CPU_FACTOR, STAGE_SECONDS, STAGES, TIMED, Check

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("library/trainyard", "trainer", "benchmarks", "tools/gpu_check")
LINES = "checks.jsonl"
FAILED = "failed.log"
TAIL_CHARACTERS = 3000
"""Maximum number of characters of a failed check's output in its line; the file FAILED has more."""
LOG_CHARACTERS = 100_000
PACKAGES = (
    "torch",
    "triton",
    "torchao",
    "numpy",
    "pydantic",
    "xxhash",
    "safetensors",
    "tokenizers",
    "nvidia-nccl-cu13",
    "nvidia-nccl-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-cudnn-cu12",
)
DRIVER = Path("/proc/driver/nvidia/version")

Line = dict[str, Any]


def run_stages(stages: Sequence[str], to: Path, device: DeviceKind, *, jobs: int = 1) -> bool:
    """Run the checks that have not passed yet; return whether all have passed or were skipped.

    Args:
        stages: names of stages, in their order.
        to: folder for the file of lines; created if absent. A check with a passing line from the
            same versions and device is not repeated.
        device: device under test.
        jobs: number of concurrent checks; checks of the stages in `TIMED` run alone.
    """
    to.mkdir(parents=True, exist_ok=True)
    lines = to / LINES
    _append(lines, {"versions": _versions(), "device": device})
    before = current_lines(lines)
    passed = {(line["stage"], line["check"]) for line in before if line["status"] == "passed"}
    good = True
    with TemporaryDirectory(prefix="gpu-check-", ignore_cleanup_errors=True) as scratch:
        run = _Run(to, device, Path(scratch), is_alone=jobs == 1)
        for timed, group in groupby(stages, key=TIMED.__contains__):
            checks = [
                (stage, check)
                for stage in group
                for check in STAGES[stage]
                if (stage, check.name) not in passed
            ]
            with ThreadPoolExecutor(1 if timed else jobs) as pool:
                try:
                    good &= all(list(pool.map(lambda each: run.one(*each), checks)))
                except BaseException:  # such as Ctrl-C
                    pool.shutdown(wait=False, cancel_futures=True)
                    run.kill()
                    raise
    return good


class _Run:
    """One run of the command: its folder, and the deadline of each stage."""

    def __init__(self, to: Path, device: DeviceKind, scratch: Path, *, is_alone: bool) -> None:
        self._to, self._device, self._scratch, self._is_alone = to, device, scratch, is_alone
        self._factor = CPU_FACTOR if device == "cpu" else 1.0
        self._deadlines: dict[str, float] = {}
        self._lock = Lock()
        self._groups: set[int] = set()
        """Process groups of the running checks."""

    def kill(self) -> None:
        """Kill the running checks with their child processes."""
        for group in tuple(self._groups):
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    def one(self, stage: str, check: Check) -> bool:
        """Run a check and write its line; return whether it passed or was skipped."""
        now = time.monotonic()
        deadline = self._deadlines.setdefault(stage, now + STAGE_SECONDS * self._factor)
        limit = min(check.seconds * self._factor, deadline - now)
        folder, lines = self._scratch / stage / check.name, self._to / LINES
        result = _result(
            check, folder, lines=lines, device=self._device, limit=limit, groups=self._groups
        )
        if not self._is_alone:
            result.pop("processor_seconds", None)  # the time includes other checks
        line = {
            "stage": stage,
            "check": check.name,
            "status": result["status"],
            "seconds": 0.0,
            "figures": {},
            "bounds": {},
            **result,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        with self._lock:
            _append(lines, line)
            if line["status"] == "failed":
                head = f"==== {stage}/{check.name} {line['time']}"
                with (self._to / FAILED).open("a", encoding="utf-8") as file:
                    file.write(f"{head}\n{_output(folder)[-LOG_CHARACTERS:]}\n")
            # Print the same line as in the file.
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
        shutil.rmtree(folder, ignore_errors=True)
        return bool(line["status"] != "failed")


def read_lines(path: Path) -> list[Line]:
    """Return the complete lines of a file; empty if the file is missing."""
    if not path.exists():
        return []
    found = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            continue  # the command was killed while it wrote
    return found


def current_lines(path: Path) -> list[Line]:
    """Return the lines of all runs with the same versions and device as the last run."""
    runs: list[tuple[Line, list[Line]]] = []
    for line in read_lines(path):
        if "versions" in line:
            runs.append((line, []))
        else:
            runs[-1][1].append(line)
    return [line for header, lines in runs if header == runs[-1][0] for line in lines]


def _result(
    check: Check, folder: Path, *, lines: Path, device: DeviceKind, limit: float, groups: set[int]
) -> Line:
    """Run a check if possible; return its status, time and findings."""
    if device == "cpu" and check.needs_cuda:
        return {"status": "skipped", "reason": check.needs_cuda}
    if limit <= 0:
        reason = "the time of the stage was over; the same command again continues from here"
        return {"status": "failed", "error": reason}
    folder.mkdir(parents=True)
    started, processor = time.monotonic(), _processor_seconds()
    ended = _run(check, folder, lines=lines, device=device, limit=limit, groups=groups)
    spent = {
        "seconds": round(time.monotonic() - started, 1),
        "processor_seconds": round(_processor_seconds() - processor, 1),
    }
    result = folder / RESULT
    if ended is None and result.exists():
        return {**spent, **json.loads(result.read_text(encoding="utf-8"))}
    return {"status": "failed", **spent, "error": f"{ended}\n{_output(folder)[-TAIL_CHARACTERS:]}"}


def _run(
    check: Check, folder: Path, *, lines: Path, device: DeviceKind, limit: float, groups: set[int]
) -> str | None:
    """Run a check in its own process group, then kill the group; return the failure, if any."""
    here = {
        "function": check.function,
        "arguments": check.arguments,
        "device": device,
        "scratch": str(folder),
        "lines": str(lines),
    }
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.gpu_check", "--here", json.dumps(here)],
            cwd=ROOT,
            env=_environment(device, folder.parents[1]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        groups.add(process.pid)
        try:
            code = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            return f"no end within {limit:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            groups.discard(process.pid)
    return f"exit code {code}" if code else None


def _processor_seconds() -> float:
    """Return the processor time of all finished checks and their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _environment(device: DeviceKind, scratch: Path) -> dict[str, str]:
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", "1" if device == "cpu" else "4")
    if device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), str(ROOT / "library"), *filter(None, [environment.get("PYTHONPATH")])]
    )
    # Checks share compiled programs; the folder with these caches is removed at the end.
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(scratch / "inductor")
    environment["TRITON_CACHE_DIR"] = str(scratch / "triton")
    return environment


def _append(path: Path, line: Line) -> None:
    """Append a line in one write; if the last line is incomplete, start a new line first."""
    cut_off = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if cut_off else "") + json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _output(folder: Path) -> str:
    """Return the output of a check; empty if it did not run."""
    path = folder / "output"
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _versions() -> dict[str, str]:
    """Return the versions that determine a result: packages, driver, digest of the sources."""
    found = {"python": platform.python_version(), "source": _digest_of_sources()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if DRIVER.exists():
        found["driver"] = DRIVER.read_text(encoding="utf-8").splitlines()[0].strip()
    return found


def _digest_of_sources() -> str:
    digest = blake2b(digest_size=8)
    for path in sorted(p for part in SOURCES for p in (ROOT / part).rglob("*.py")):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
