"""Launches attempts of a small job on the ranks of the harness, and reads their records."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tests.trainer.commits import write_manifest, write_marker
from tests.trainer.ranks import run_ranks
from trainer.checkpoint.manifest import committed_manifests, metadata_digest
from trainer.data.dataset import Dataset, open_dataset
from trainer.metrics.run_writer import RunWriter
from trainer.run import open_run
from trainer.storage.root import StoragePath
from trainyard.protocol.attempt import AttemptSpec, Overrides, ResumePoint
from trainyard.protocol.manifest import Manifest
from trainyard.protocol.record_parser import parse_record
from trainyard.run.checkpoints.checkpoint_names import checkpoint_path
from trainyard.run.control_files import order_stop
from trainyard.run.directory import RunDirectory
from trainyard.run.failures import Failure
from trainyard.run.record_base import to_json
from trainyard.run.records import EventRecord, MetricRecord, Outcome
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout

Record = TypeVar("Record")

JOB = "job-1"
# About 700 windows: 60 steps of 16 sequences see the end of an epoch.
TEXT = "".join(f"line {i}: {i * i % 97} sheep jumped over {i % 13} fences\n" for i in range(600))
SPEC: dict[str, Any] = {
    "name": "small",
    "model": {"size": "debug", "n_layers": 2, "dropout": 0.1},
    "data": {"source": "text", "path": "data:text.txt"},
    "training": {"steps": 60, "seq_len": 32, "global_batch_size": 16, "micro_batch_size": 4},
    "optimizer": {"lr": 1e-3},
    "lr_schedule": {"warmup_steps": 5},
    "checkpoint": {"interval_steps": 0},
    # More ranks than a machine has GPUs; tests of a GPU set it.
    "resources": {"device": "cpu"},
}


@dataclass(frozen=True)
class Meddling:
    """A test's changes inside the ranks, at their seams; steps count from 1."""

    stop_after: int | None = None
    """Rank 0 finds `stop` after this step, and acts on it at the end of the next."""
    stop_in: float | None = None
    """Seconds until the end of the node, with which this order to stop is sent."""
    ask_after: tuple[tuple[int, str, str], ...] = ()
    """Step, request id and content of the request file that rank 0 finds after this step."""
    delay: tuple[int, int, float] | None = None
    """Rank, step and seconds for which this rank sleeps after this step."""
    slow: tuple[int, float] | None = None
    """Rank and seconds for which this rank sleeps after every step."""
    kill_after: int | None = None
    """Every rank kills itself after this step."""
    allocate_after: tuple[int, int] | None = None
    """Step and bytes: every rank allocates these bytes after this step."""
    make_file: str | None = None
    """An obstructing file, created after the first step."""
    uid: int | None = None
    """Every rank becomes this user, once it has its run directory."""
    wrong_position: int | None = None
    """The sequence at this position of the stream is replaced by another one."""
    breaks: tuple[int, float] | None = None
    """Position and factor: its rank first multiplies its weights by the factor."""

    never_draws: bool = False
    """Weights without a load are NaN, and none can be drawn."""

    in_float64: bool = False
    """Each float32 of the trainer is a float64: remaining differences are not float32 rounding."""

    def after_step(self, run: Path, rank: int, step: int) -> None:
        if rank == 0 and step == self.stop_after:
            deadline = None if self.stop_in is None else time.time() + self.stop_in
            order_stop(RunDirectory(run), deadline=deadline)
        for asked_after, request_id, content in self.ask_after:
            if rank == 0 and step == asked_after:
                (run / "requests").mkdir(exist_ok=True)
                (run / "requests" / f"{request_id}.json").write_text(content)
        if self.delay and (rank, step) == self.delay[:2]:
            time.sleep(self.delay[2])
        if self.slow and rank == self.slow[0]:
            time.sleep(self.slow[1])
        if self.allocate_after and step == self.allocate_after[0]:
            import torch

            torch.empty(self.allocate_after[1], dtype=torch.int8)
        if step == 1 and self.make_file is not None:
            Path(self.make_file).touch()
        if step == self.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)


class _WrongDataset(Dataset):
    """A dataset with the digest of another one, which differs in a single sequence."""

    wrong_position: int

    def windows(self, positions_B: NDArray[np.int64]) -> NDArray[np.int64]:
        windows_BT = super().windows(positions_B)
        windows_BT[positions_B == self.wrong_position] = super().windows(np.array([0]))[0]
        return windows_BT


def _break_weights(position: int, factor: float) -> None:
    """Damage the weights at the sequence of a position, like a damaged sequence would."""
    import torch

    from trainer.loop.step import TrainStep

    step_of = TrainStep.__call__

    def breaking(self: Any, step: int, micro_batches: Any) -> Any:
        if any(batch.weight and position in batch.positions for batch in micro_batches):
            with torch.no_grad():
                groups = self._optimizer.param_groups
                for weight in (each for group in groups for each in group["params"]):
                    getattr(weight, "_local_tensor", weight).mul_(factor)
        return step_of(self, step, micro_batches)

    TrainStep.__call__ = breaking  # type: ignore[method-assign]


def _never_draw() -> None:
    """Fail at the first drawn weight, and leave NaN in weights without a draw or load."""
    import torch

    from trainer.loop import build
    from trainer.models import initial_weights
    from trainer.models.base import Model

    def draw(*_args: Any, **_options: Any) -> None:
        raise AssertionError("a weight is drawn")

    def allocate(model: Model, **options: Any) -> None:
        _allocate(model, **options)
        with torch.no_grad():
            for parameter in model.parameters():
                getattr(parameter, "_local_tensor", parameter).fill_(float("nan"))

    _allocate = build.allocate
    build.allocate = allocate
    initial_weights._fill = draw


def _widen() -> None:
    """Let float32 be float64 in this process."""
    import torch

    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    torch.float32 = torch.float64


def train_rank(run_directory: str, meddling: Meddling) -> str:
    """Run one rank like `python -m trainer`; return the outcome as JSON."""
    from trainer.loop.train import train  # here, so that tests of the run directory need no torch

    def open_meddled(spec: JobSpec, **places: Any) -> Dataset:
        dataset = open_dataset(spec, **places)
        if meddling.wrong_position is not None:
            dataset.__class__ = _WrongDataset
            dataset.wrong_position = meddling.wrong_position  # type: ignore[attr-defined]
        return dataset

    if meddling.in_float64:
        _widen()
    if meddling.never_draws:
        _never_draw()
    if meddling.breaks is not None:
        _break_weights(*meddling.breaks)
    run, rank = Path(run_directory), int(os.environ["RANK"])
    writer = RunWriter(RunDirectory(run), rank=rank, local_rank=rank)
    if meddling.uid is not None:
        for folder in (run, run.parents[1] / "cache"):
            folder.chmod(0o777)
        os.setuid(meddling.uid)
    try:
        outcome = train(
            open_run(run, world_size=int(os.environ["WORLD_SIZE"]), roots={}),
            writer,
            open_dataset=open_meddled,
            after_step=lambda step: meddling.after_step(run, rank, step),
        )
    except BaseException as error:
        writer.fail(error)
        raise
    return to_json(outcome)


@dataclass(frozen=True)
class Attempt:
    """The contents of an attempt's run directory."""

    run: Path

    @property
    def outcome(self) -> Outcome:
        return parse_record(Outcome, (self.run / "outcome.json").read_text())

    @property
    def error(self) -> Failure:
        return parse_record(Failure, (self.run / "error.json").read_text())

    @property
    def lines(self) -> dict[int, MetricRecord]:
        """Return metric lines by step; late values are merged into the step's only line."""
        lines: dict[int, MetricRecord] = {}
        for line in _read_lines(self.run / "metrics.jsonl", MetricRecord):
            found = lines.setdefault(line.step, line)
            if found is not line:
                assert line.data_digest is None, "a step is written twice"
                lines[line.step] = replace(found, values=found.values | line.values)
        return lines

    @property
    def events(self) -> list[EventRecord]:
        return _read_lines(self.run / "events.jsonl", EventRecord)

    def values(self, name: str) -> dict[int, float]:
        """Return one metric by step, for the steps that have it."""
        return {s: line.values[name] for s, line in self.lines.items() if name in line.values}

    @property
    def digests(self) -> dict[int, str]:
        lines = self.lines.items()
        return {step: line.data_digest for step, line in lines if line.data_digest is not None}


@dataclass(frozen=True)
class SmallJob:
    """A job in a folder of a test: its text, its storage, and a run directory per attempt."""

    folder: Path
    spec: dict[str, Any] = field(default_factory=lambda: SPEC)

    def __post_init__(self) -> None:
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        (self.folder / "data" / "text.txt").write_text(TEXT)

    def write_documents(self) -> None:
        """Write `data:documents`: many short documents fit into a window of 64 tokens."""
        documents = self.folder / "data" / "documents"
        documents.mkdir()
        for index in range(400):
            sheep = [
                f"sheep {n} of {index} jumped {n * index % 13}\n" for n in range(index % 7 + 1)
            ]
            (documents / f"{index:03}.txt").write_text("".join(sheep))

    def changed(self, folder: Path, **sections: dict[str, Any]) -> SmallJob:
        """Return another job with some fields of some sections changed."""
        merged = {name: {**self.spec.get(name, {}), **new} for name, new in sections.items()}
        return replace(self, folder=folder, spec={**self.spec, **merged})

    @property
    def storage(self) -> Path:
        return self.folder / "storage"

    def committed(self) -> dict[str, Manifest]:
        """The job's checkpoints by id."""
        return {m.checkpoint_id: m for m in committed_manifests(self.storage, JOB)}

    def older(self, manifest: Manifest) -> Manifest:
        """Convert a checkpoint to an older version, which a job with other settings may load."""
        folder = self.storage / checkpoint_path(JOB, manifest.attempt, manifest.train_state.step)
        forgotten = manifest.model_copy(update={"spec": None, "model": None})
        write_manifest(folder, forgotten)
        write_marker(folder)
        return forgotten

    def resume_point(self, manifest: Manifest) -> ResumePoint:
        step = manifest.train_state.step
        return ResumePoint(
            checkpoint_id=manifest.checkpoint_id,
            path=checkpoint_path(JOB, manifest.attempt, step),
            step=step,
            metadata_digest=metadata_digest(manifest),
        )

    def prepare(
        self,
        attempt: int,
        layout: Layout,
        *,
        resume: Manifest | None = None,
        overrides: Overrides | None = None,
        storage: StoragePath | None = None,
        skip: tuple[tuple[int, int], ...] = (),
    ) -> Path:
        """Write the run directory of an attempt, like the worker."""
        run = self.folder / "runs" / str(attempt)
        run.mkdir(parents=True)
        (run / "spec.json").write_text(json.dumps(self.spec))
        parse_job_spec((run / "spec.json").read_text())
        described = AttemptSpec(
            job_id=JOB,
            attempt=attempt,
            layout=layout,
            overrides=overrides or Overrides(),
            resume=self.resume_point(resume) if resume else None,
            skip=skip,
            roots={
                "data": str(self.folder / "data"),
                "checkpoints": str(storage or self.storage),
            },
            cache_dir=str(self.folder / "cache"),
        )
        (run / "attempt.json").write_text(described.model_dump_json())
        return run

    def launch(
        self, attempt: int, layout: Layout, meddling: Meddling = Meddling(), **described: Any
    ) -> Attempt:
        """Run an attempt to its end, which every rank must see alike."""
        run = self.prepare(attempt, layout, **described)
        return self.launch_prepared(run, layout, meddling)

    def launch_prepared(
        self, run: Path, layout: Layout, meddling: Meddling = Meddling()
    ) -> Attempt:
        """Run the attempt of a run directory to its end."""
        outcomes = run_ranks(layout.world_size, train_rank, str(run), meddling, initialize=False)
        assert len(set(outcomes)) == 1, outcomes
        return Attempt(run)


def _read_lines(path: Path, kind: type[Record]) -> list[Record]:
    return [parse_record(kind, line) for line in path.read_text().splitlines()]
