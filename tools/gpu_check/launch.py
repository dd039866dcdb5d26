"""Attempts of a small job, which torchrun launches as on a worker, and their records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.launch import torchrun
from tools.gpu_check.check import DeviceKind
from trainer.checkpoint.manifest import metadata_digest
from trainer.loop.train import train
from trainer.metrics.run_writer import RunWriter
from trainer.process import prefer_growing_segments
from trainer.run import open_run
from trainyard.protocol.attempt import AttemptSpec, Overrides, ResumePoint
from trainyard.protocol.manifest import Manifest, manifest_of_event
from trainyard.protocol.record_parser import parse_record
from trainyard.run.checkpoints.checkpoint_names import checkpoint_path
from trainyard.run.control_files import answer_file
from trainyard.run.directory import RunDirectory
from trainyard.run.records import EventRecord, MetricRecord, RequestAnswer
from trainyard.spec.job import parse_job_spec
from trainyard.spec.layout import Layout

JOB = "gpu-check"
TEXT = "".join(f"line {i}: {i * i % 97} sheep jumped over {i % 13} fences\n" for i in range(2000))
SPEC: dict[str, dict[str, Any]] = {
    "model": {"size": "debug", "n_layers": 2, "dropout": 0.1},
    "data": {"source": "text", "path": "data:text.txt"},
    "training": {
        "steps": 30,
        "seq_len": 64,
        "global_batch_size": 8,
        "micro_batch_size": 4,
        "log_every_steps": 1,
    },
    "optimizer": {"lr": 1e-3},
    "lr_schedule": {"warmup_steps": 5},
    # Settings with device-dependent defaults are set explicitly: both devices must do the same.
    "checkpoint": {"interval_steps": 0, "preflight": False, "async_mode": "disabled"},
    "compile": {"enabled": False},
}


@dataclass(frozen=True)
class Attempt:
    """The run directory of an attempt."""

    run: Path

    def values(self, name: str) -> dict[int, float]:
        """Return the written values of a metric by step."""
        return {s: line.values[name] for s, line in self._lines().items() if name in line.values}

    def digests(self) -> dict[int, str | None]:
        """Return the digest of the sequences of each step."""
        return {step: line.data_digest for step, line in self._lines().items()}

    def committed(self) -> list[Manifest]:
        """Return the manifests that the attempt has committed so far, in order."""
        events = (e for e in self._read("events.jsonl") if '"checkpoint_committed"' in e)
        found = (manifest_of_event(parse_record(EventRecord, e).data) for e in events)
        return [manifest for manifest in found if isinstance(manifest, Manifest)]

    def answer(self, request: str) -> RequestAnswer | None:
        """Return the answer to a request; None before the answer."""
        path = answer_file(RunDirectory(self.run), request)
        return parse_record(RequestAnswer, path.read_text()) if path.exists() else None

    def train_here(self, after_step: Callable[[int], None]) -> None:
        """Run all steps of the attempt in this process, which is the only rank."""
        writer = RunWriter(RunDirectory(self.run), rank=0, local_rank=0)
        train(open_run(self.run, world_size=1, roots={}), writer, after_step=after_step)

    def document(self, name: str) -> dict[str, Any]:
        """Return a JSON file that the attempt wrote."""
        found: dict[str, Any] = json.loads((self.run / name).read_text(encoding="utf-8"))
        return found

    def _lines(self) -> dict[int, MetricRecord]:
        lines: dict[int, MetricRecord] = {}
        for line in (parse_record(MetricRecord, text) for text in self._read("metrics.jsonl")):
            found = lines.setdefault(line.step, line)  # later lines may add values of the step
            lines[line.step] = replace(found, values=found.values | line.values)
        return lines

    def _read(self, name: str) -> list[str]:
        """Return the complete lines of a file; the last line may be partly written."""
        path = self.run / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()


@dataclass(frozen=True)
class Job:
    """A job in a folder with its spec, its storage, and one run directory per attempt."""

    folder: Path
    spec: dict[str, Any]

    @classmethod
    def small(cls, folder: Path, device: DeviceKind, **sections: dict[str, Any]) -> Job:
        """Return the small job on a device, with the given fields of its sections changed."""
        spec = {name: dict(fields) for name, fields in SPEC.items()}
        for name, fields in sections.items():
            spec[name] = spec.get(name, {}) | fields
        spec["resources"] = spec.get("resources", {}) | {"device": device}
        (folder / "data").mkdir(parents=True, exist_ok=True)
        (folder / "data" / "text.txt").write_text(TEXT, encoding="utf-8")
        return cls(folder, {"name": JOB, **spec})

    def prepare(
        self,
        number: int = 1,
        *,
        ranks: int = 1,
        resume: Manifest | None = None,
        steps: int | None = None,
    ) -> Attempt:
        """Write the run directory of an attempt."""
        run = self.folder / "runs" / str(number)
        run.mkdir(parents=True)
        parse_job_spec(self.spec)
        (run / "spec.json").write_text(json.dumps(self.spec), encoding="utf-8")
        described = AttemptSpec(
            job_id=JOB,
            attempt=number,
            layout=Layout(dp_shard=ranks),
            overrides=Overrides(steps=steps),
            resume=None if resume is None else _resume_point(resume),
            roots={
                "data": str(self.folder / "data"),
                "checkpoints": str(self.folder / "storage"),
            },
            cache_dir=str(self.folder / "cache"),
        )
        (run / "attempt.json").write_text(described.model_dump_json(), encoding="utf-8")
        return Attempt(run)

    def run(self, number: int = 1, *, ranks: int = 1, **described: Any) -> Attempt:
        """Run an attempt to its end.

        Raises:
            CalledProcessError: the attempt failed; its output is part of this check's output.
        """
        attempt = self.prepare(number, ranks=ranks, **described)
        subprocess.run(trainer_command(attempt, ranks), env=environment(), check=True)
        return attempt


def _resume_point(manifest: Manifest) -> ResumePoint:
    step = manifest.train_state.step
    return ResumePoint(
        checkpoint_id=manifest.checkpoint_id,
        path=checkpoint_path(JOB, manifest.attempt, step),
        step=step,
        metadata_digest=metadata_digest(manifest),
    )


def trainer_command(attempt: Attempt, ranks: int = 1) -> list[str]:
    """Return the command that launches the trainer under torchrun."""
    return torchrun(ranks, "-m", "trainer", str(attempt.run))


def environment() -> dict[str, str]:
    """Return the environment of ranks on this machine."""
    found = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", **os.environ}
    prefer_growing_segments(found)
    return found


def run_until(attempt: Attempt, reached: Callable[[Attempt], bool], *, seconds: float) -> None:
    """Run an attempt, and kill all of it as soon as a condition holds.

    Raises:
        AssertionError: the attempt or the time ended before the condition held.
    """
    process = subprocess.Popen(trainer_command(attempt), env=environment(), start_new_session=True)
    deadline = time.monotonic() + seconds
    try:
        while not reached(attempt):
            assert process.poll() is None, f"torchrun ended with {process.returncode} before that"
            assert time.monotonic() < deadline, f"nothing of the kind within {seconds:g} s"
            time.sleep(0.02)
    finally:
        # The kernel kills the ranks, which have their own sessions, when torchrun is gone.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
