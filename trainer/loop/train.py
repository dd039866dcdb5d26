"""One attempt from its fence to its last checkpoint: the order in which everything happens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
import torch._inductor.config
import torch.utils.deterministic

from trainer.checkpoint.collective_errors import on_every_rank, on_rank_0
from trainer.checkpoint.manager import CheckpointManager
from trainer.checkpoint.pending_save import SaveRetry
from trainer.checkpoint.store import committed
from trainer.checkpoint.writer.checkpoint_writer import CheckpointOwner
from trainer.data.batches import BatchReader, MicroBatch
from trainer.data.dataset import Dataset, open_dataset
from trainer.distributed import Ranks, joined
from trainer.errors import CheckpointError, DataError, LaunchError
from trainer.hugging_face.load import load_initial_weights
from trainer.loop.build import Assembly, assemble
from trainer.loop.requests import Control, Decision
from trainer.loop.resume import starting_state
from trainer.loop.save_records import SaveRecords
from trainer.loop.step import StepResult, TrainStep
from trainer.loop.train_state import one_step_on
from trainer.loop.validation import Validation
from trainer.metrics.memory_report import explaining_memory, start_history
from trainer.metrics.metrics_logger import Report
from trainer.metrics.profiler import Recording
from trainer.metrics.run_writer import Recorder
from trainer.models.code import code_digest
from trainer.parallel.compile import waiting_for_compilers
from trainer.parallel.mesh import Place
from trainer.parallel.quantize import refresh_scales
from trainer.process import collecting_between_steps
from trainer.provenance import provenance
from trainer.run import Run
from trainyard.protocol.manifest import TrainState
from trainyard.run.directory import Phase
from trainyard.run.records import Outcome
from trainyard.spec.auto import explicit
from trainyard.spec.job import JobSpec


class OpenDataset(Protocol):
    """How a dataset is opened; tests put a dataset of their own in its place."""

    def __call__(
        self,
        spec: JobSpec,
        *,
        roots: dict[str, str],
        cache_dir: Path,
        on_progress: Callable[[], None],
    ) -> Dataset: ...


def train(
    run: Run,
    recorder: Recorder,
    *,
    open_dataset: OpenDataset = open_dataset,
    after_step: Callable[[int], None] = lambda _step: None,
) -> Outcome:
    """Run an attempt on all ranks of the launch; every rank calls this and returns its outcome.

    Args:
        run: what to train.
        recorder: where this rank says what happens.
        open_dataset: opens the dataset.
        after_step: called on each rank with each completed step, before all ranks agree on what
            follows it.

    Raises:
        RunError: the run cannot go on; the reason is typed.
    """
    if run.spec.training.deterministic:
        compute_deterministically()
    with joined(
        run.attempt.device or run.spec.resources.device,
        hang_seconds=run.spec.guard.hang_seconds,
        flight_recorder=Path(run.directory.flight_recorder),
    ) as ranks:
        start_history(ranks.device)
        recorder.provenance(provenance)
        code = _code_on_every_rank(run, ranks)
        checkpoints = CheckpointManager(
            _owner(run, code),
            cpu_group=ranks.cpu_group,
            device=ranks.device,
            retry=SaveRetry(run.spec.checkpoint.give_up_after_seconds),
        )
        checkpoints.raise_fence()
        on_rank_0(ranks.cpu_group, lambda: _refuse_second_launch(run))
        recorder.enter(Phase.BUILDING_CACHE)
        dataset = _open_on_every_rank(run, ranks, recorder, open_dataset)
        recorder.enter(Phase.LOADING)
        assembly = assemble(run.spec, run.attempt.layout, ranks.device, roots=run.attempt.roots)
        _load_initial_weights(run, ranks, recorder, assembly)
        state = starting_state(run, recorder, checkpoints, assembly, dataset, code)
        loop = Loop(run, ranks, recorder, checkpoints, assembly, state, after_step)
        snapshots = Path(run.directory.snapshots)
        with explaining_memory(assembly, ranks.device, snapshots, rank=ranks.rank):
            outcome = loop.run(dataset)
        recorder.finish(outcome)
    return outcome


def _code_on_every_rank(run: Run, ranks: Ranks) -> str | None:
    """Return the digest of an own model's code, and refuse nodes that see different code."""
    digests = on_every_rank(ranks.cpu_group, lambda: code_digest(run.spec, run.attempt.roots))
    for rank, other in enumerate(digests):
        if other != digests[0]:
            raise LaunchError(
                f"rank {rank} sees other code in model.code={run.spec.model.code!r} than rank 0: "
                f"digest {other} instead of {digests[0]}; every node needs the same files"
            )
    return digests[0]


def _owner(run: Run, code_digest: str | None) -> CheckpointOwner:
    return CheckpointOwner(
        root=run.checkpoint_root,
        job_id=run.attempt.job_id,
        attempt=run.attempt.attempt,
        spec=run.submitted,
        settings=run.spec,
        layout=run.attempt.layout,
        parent=run.attempt.resume.checkpoint_id if run.attempt.resume else None,
        code_digest=code_digest,
    )


def _refuse_second_launch(run: Run) -> None:
    """Refuse to mix what this launch saves with what another launch of the attempt has saved."""
    job, attempt = run.attempt.job_id, run.attempt.attempt
    saved = [m.checkpoint_id for m in committed(run.checkpoint_root, job) if m.attempt == attempt]
    if saved:
        folder = run.checkpoint_root / job / f"a{attempt}"
        raise CheckpointError(
            f"{folder} holds checkpoints of another launch of this attempt, such as {saved[0]}: "
            "give a higher attempt number, another job name, or another storage root",
            path=str(folder),
        )


def _open_on_every_rank(
    run: Run, ranks: Ranks, recorder: Recorder, open_dataset: OpenDataset
) -> Dataset:
    """Open the dataset everywhere, and refuse nodes that see different data."""
    opened: list[Dataset] = []

    def digest() -> str:
        opened.append(
            open_dataset(
                run.spec,
                roots=run.attempt.roots,
                cache_dir=run.cache_dir,
                on_progress=recorder.beat,
            )
        )
        return opened[0].digest

    digests = on_every_rank(ranks.cpu_group, digest)
    for rank, other in enumerate(digests):
        if other != digests[0]:
            raise DataError(
                f"rank {rank} sees other data than rank 0: dataset digest {other} instead of "
                f"{digests[0]}; every node needs the same files"
            )
    return opened[0]


def _load_initial_weights(run: Run, ranks: Ranks, recorder: Recorder, assembly: Assembly) -> None:
    """Put given weights in place of drawn ones, if the job starts from some."""
    spec = run.spec
    if spec.model.initial_weights is None or run.attempt.resume is not None:
        return
    files = load_initial_weights(assembly.model, spec, run.attempt.roots, ranks.cpu_group)
    recorder.event(
        "weights_loaded",
        {"place": spec.model.initial_weights, "files": [file.model_dump() for file in files]},
    )
    refresh_scales(assembly.model)


class Loop:
    """The steps of an attempt, and what happens between them."""

    def __init__(
        self,
        run: Run,
        ranks: Ranks,
        recorder: Recorder,
        checkpoints: CheckpointManager,
        assembly: Assembly,
        state: TrainState,
        after_step: Callable[[int], None],
    ) -> None:
        self._run = run
        self._spec = run.spec
        self._ranks = ranks
        self._recorder = recorder
        self._state = state
        self._first_step = state.step + 1
        self._after_step = after_step
        self._engine = assembly.forward_backward
        self._waiting_for_compilers = partial(
            waiting_for_compilers, run.spec, assembly.mesh, ranks.cpu_group
        )
        self._report = Report(run, ranks, recorder, start=state)
        self._control = Control(
            run.directory,
            recorder,
            group=ranks.cpu_group,
            interval_seconds=explicit(run.spec.checkpoint.interval_seconds),
        )
        self._recording = Recording(run.directory, ranks)
        self._checkpoints = checkpoints
        checkpoints.starts_at(state, SaveRecords(recorder, self._control, self._report))
        self._assembly = assembly
        self._train_step = TrainStep(
            self._engine,
            assembly.optimizer,
            run.spec,
            stages=assembly.stages,
            before_update=checkpoints.wait_staged,
        )

    def run(self, dataset: Dataset) -> Outcome:
        """Train until the last step or a stop, save, and return the outcome."""
        if self._spec.checkpoint.preflight:
            self._save("preflight")
        self._recorder.enter(Phase.TRAINING)
        with (
            self._checkpoints.drained(),
            BatchReader(
                dataset,
                position=self._state.data.position,
                partition=self._run.partition,
                dp_rank=Place.of(self._ranks.rank, self._run.attempt.layout).dp,
                prefetch=self._spec.data.prefetch_batches,
                skipped=self._state.data.skipped,
            ) as batches,
            collecting_between_steps() as collect,
        ):
            self._train(batches, self._validation(dataset), collect)
        finished = self._state.step >= self._spec.training.steps
        self._recorder.enter(Phase.ENDING)
        self._save("final" if finished else "stop")
        assert self._recorder.checkpoint_id is not None
        self._control.recorded(self._recording.close(self._state.step))
        self._control.close(self._recorder.checkpoint_id)
        self._report.close()
        return Outcome(
            outcome="succeeded" if finished else "stopped",
            step=self._state.step,
            checkpoint_id=self._recorder.checkpoint_id,
        )

    def _validation(self, dataset: Dataset) -> Validation | None:
        if not self._spec.validation.interval_steps:
            return None
        assert dataset.validation is not None, "the rules demand a share that is held out"
        return Validation(
            dataset.validation, self._run, self._ranks, self._recorder, self._engine.evaluate
        )

    def _train(
        self,
        batches: Iterator[list[MicroBatch]],
        validation: Validation | None,
        collect: Callable[[int], None],
    ) -> None:
        self._report.pace.restart()
        if self._spec.compile.enabled is True:
            # In the first step; nobody can beat meanwhile, so it has a limit of silence of its own.
            self._recorder.beat(Phase.COMPILING)
        while self._state.step < self._spec.training.steps:
            self._control.post(
                save_ended=self._checkpoints.ended, retry_due=self._checkpoints.retry_due
            )
            result = self._step(batches)
            self._after_step(self._state.step)
            decision = self._control.take()
            if Decision.SAVE_ENDED in decision:
                self._checkpoints.settle()
            stopping = Decision.STOP in decision
            saving = self._save_kind(decision)
            # A stop may be a preemption with seconds to live: it does not wait for a validation.
            validating = bool(validation and validation.is_due(self._state.step) and not stopping)
            if validation and validating:
                with self._report.pace.pausing(), self._waiting_for_compilers():
                    self._report.keep(validation.run())
            self._report.step_done(
                self._state, result, write_values=stopping or bool(saving) or validating
            )
            if stopping:
                self._recorder.event("stop_agreed", {})
                return
            if saving:
                self._checkpoints.begin(
                    self._assembly.model, self._assembly.optimizer, self._state, kind=saving
                )
            if self._recording.is_due(self._state.step, self._control.asked):
                with self._report.pace.pausing():
                    self._control.recorded(
                        self._recording.step_done(self._state.step, self._control.asked)
                    )
            collect(self._state.step)
            self._recorder.beat(Phase.TRAINING)

    def _step(self, batches: Iterator[list[MicroBatch]]) -> StepResult:
        with self._report.pace.waiting_for_data():
            micro_batches = next(batches)
        step = self._state.step + 1
        compiling = step == self._first_step
        with (
            self._waiting_for_compilers() if compiling else nullcontext(),
            self._report.pace.step(),
        ):
            result = self._train_step(step, micro_batches)
        self._state = one_step_on(self._state, self._spec)
        self._recorder.step = self._state.step
        return result

    def _save(self, kind: str) -> None:
        assembly = self._assembly
        self._checkpoints.save(assembly.model, assembly.optimizer, self._state, kind=kind)

    def _save_kind(self, decision: Decision) -> str | None:
        """Return why a checkpoint is due between two steps; the last one is saved apart."""
        if self._state.step == self._spec.training.steps:
            return None
        if Decision.SAVE_ASKED in decision:
            return "request"
        failed_kind = self._checkpoints.failed_kind
        if failed_kind is not None:  # the next try saves for whatever is due till then
            return failed_kind if Decision.SAVE_RETRY in decision else None
        interval = explicit(self._spec.checkpoint.interval_steps)
        by_steps = interval > 0 and self._state.step % interval == 0
        # By the clock none begins while one is being written: training would wait for its end.
        by_clock = Decision.SAVE_DUE in decision and not self._checkpoints.under_way
        return "interval" if by_steps or by_clock else None


WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def compute_deterministically() -> None:
    """Have this process compute so from now on; comes before its first product on a GPU.

    An operation that has no deterministic kernel raises RuntimeError and names itself.
    """
    # Without workspaces of its own for each stream, cuBLAS may split a sum in another way.
    os.environ.setdefault(WORKSPACE, ":4096:8")
    # Attention too: flash and memory-efficient backward then add up in one order, cuDNN's is left.
    torch.use_deterministic_algorithms(True)
    # It would write NaN into every new tensor, a pass over memory for what is overwritten anyway.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # Kernels that are chosen by their time may be others in the next run, and add up otherwise.
    torch._inductor.config.deterministic = True
