"""The steps of an attempt, and what happens between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial

from trainer.checkpoint.manager import CheckpointManager
from trainer.data.batches import BatchReader, MicroBatch
from trainer.data.dataset import Dataset
from trainer.distributed import Ranks
from trainer.loop.build import Assembly
from trainer.loop.requests import Decision, RequestChannel
from trainer.loop.save_records import SaveRecords
from trainer.loop.step import TrainStep
from trainer.loop.train_state import one_step_on
from trainer.loop.validation import Validation
from trainer.metrics.metrics_logger import MetricsLogger, StepMetrics
from trainer.metrics.profiler import Profiler
from trainer.metrics.run_writer import RunWriter
from trainer.parallel.compile import waiting_for_compilers
from trainer.parallel.mesh import Place
from trainer.process import collecting_between_steps
from trainer.run import Run
from trainyard.protocol.manifest import TrainState
from trainyard.run.directory import Phase
from trainyard.run.records import Outcome
from trainyard.spec.auto import explicit


class Loop:
    """The steps of an attempt, and what happens between them."""

    def __init__(
        self,
        run: Run,
        ranks: Ranks,
        recorder: RunWriter,
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
        self._report = MetricsLogger(run, ranks, start=state)
        self._control = RequestChannel(
            run.directory,
            recorder,
            group=ranks.cpu_group,
            interval_seconds=explicit(run.spec.checkpoint.interval_seconds),
        )
        self._recording = Profiler(run.directory, ranks)
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
            metrics = self._step(batches)
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
                self._state, metrics, write_values=stopping or bool(saving) or validating
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

    def _step(self, batches: Iterator[list[MicroBatch]]) -> StepMetrics:
        with self._report.pace.waiting_for_data():
            micro_batches = next(batches)
        step = self._state.step + 1
        compiling = step == self._first_step
        with (
            self._waiting_for_compilers() if compiling else nullcontext(),
            self._report.pace.step(),
        ):
            metrics = self._train_step(step, micro_batches)
        self._state = one_step_on(self._state, self._spec)
        self._recorder.step = self._state.step
        return metrics

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
