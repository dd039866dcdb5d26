"""One attempt in order: process group, fence, data, model, state, steps, last checkpoint.

`train` is the recipe; `Loop` has the steps and the work between them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from trainer.checkpoint.first_checkpoint import with_first_checkpoint
from trainer.checkpoint.manager import CheckpointManager, SaveObserver
from trainer.checkpoint.shared_root import check_shared_root
from trainer.data.batches import BatchReader, MicroBatch
from trainer.data.dataset import Dataset, open_dataset
from trainer.distributed import Ranks, joined, on_rank_0, same_on_every_rank
from trainer.errors import LaunchError
from trainer.kernels.cpu_products import fast_products
from trainer.loop.build import (
    Assembly,
    assemble,
    compute_deterministically,
    load_published_weights,
    loads_all_weights,
    open_on_every_rank,
)
from trainer.loop.kernel_cache import first_compilation
from trainer.loop.network_check import check_network
from trainer.loop.requests import Decision, RequestChannel
from trainer.loop.resume import STOP, Start, starting_state
from trainer.loop.step import TrainStep, one_step_on
from trainer.loop.validation import Validation
from trainer.metrics.collective_waits import CollectiveWaits, measured_waits
from trainer.metrics.memory_report import explaining_memory, start_history
from trainer.metrics.metrics_logger import MetricsLogger, StepMetrics
from trainer.metrics.profiler import Profiler
from trainer.metrics.run_writer import RunWriter
from trainer.models.code import code_digest, code_field
from trainer.parallel.compile import waiting_for_compilers
from trainer.parallel.mesh import MeshCoordinates
from trainer.process import StepCollector
from trainer.provenance import provenance
from trainer.run import TrainerRun
from trainyard.protocol.manifest import Manifest, SaveFailed, SaveSettled
from trainyard.run.control_files import stop_deadline
from trainyard.run.directory import Phase
from trainyard.run.records import Outcome
from trainyard.spec.auto import explicit

logger = logging.getLogger("trainer")


def train(
    run: TrainerRun,
    writer: RunWriter,
    *,
    open_dataset: Callable[..., Dataset] = open_dataset,
    after_step: Callable[[int], None] = lambda _step: None,
) -> Outcome:
    """Run an attempt; all ranks of the launch call this and get the same outcome.

    Args:
        run: the attempt.
        writer: writes the run records of this rank.
        open_dataset: function that opens the dataset; tests replace it.
        after_step: called on each rank after each step, before the ranks take the step's requests.

    Raises:
        RunError: the attempt failed for a known reason.
    """
    # Before the first product on a GPU, because cuBLAS reads its workspace variable only once.
    if run.spec.training.deterministic:
        compute_deterministically()
    with joined(
        run.attempt.device or run.spec.resources.device,
        hang_seconds=run.spec.guard.hang_seconds,
        flight_recorder=run.directory.flight_recorder,
    ) as ranks:
        start_history(ranks.device)  # must precede the first allocation
        bandwidth = check_network(run, ranks)
        writer.provenance(provenance)
        run = with_first_checkpoint(run)
        code = same_on_every_rank(
            ranks.cpu_group,
            lambda: code_digest(run.spec, run.attempt.roots),
            of=f"code in {code_field(run.spec)}",
            error=LaunchError,
        )
        checkpoints = CheckpointManager(run, ranks, code_digest=code)
        # Before any slow work, so that an outrun attempt ends within seconds. An older attempt that
        # still runs can no longer commit a checkpoint, so this attempt's parent stays the newest.
        checkpoints.raise_fence()
        check_shared_root(run, ranks)
        # Open the data before building the model, because tokenization takes longest and needs no
        # GPU memory.
        writer.enter(Phase.BUILDING_CACHE)
        dataset = open_on_every_rank(run, ranks, writer=writer, open_dataset=open_dataset)
        writer.enter(Phase.LOADING)
        assembly = assemble(
            run.spec,
            run.attempt.layout,
            ranks.device,
            roots=run.attempt.roots,
            draws=not loads_all_weights(run),
        )
        load_published_weights(run, ranks, writer=writer, assembly=assembly)
        start = starting_state(
            run, ranks, writer=writer, assembly=assembly, dataset=dataset, code_digest=code
        )
        snapshots = run.directory.snapshots
        model, optimizer = assembly.model, assembly.optimizer
        with (
            explaining_memory(
                model, optimizer, device=ranks.device, snapshots=snapshots, rank=ranks.rank
            ),
            measured_waits(ranks.device) as waits,
            fast_products(ranks.device),
        ):
            loop = Loop(run, ranks, writer, checkpoints, assembly, start, waits, after_step)
            if bandwidth is not None:
                loop.keep({"network/all_reduce_gigabytes_per_second": bandwidth / 1e9})
            outcome = loop.run(dataset)
        writer.finish(outcome)
    return outcome


class Loop(SaveObserver):
    """Steps of an attempt, work between steps, and records of saves."""

    def __init__(
        self,
        run: TrainerRun,
        ranks: Ranks,
        writer: RunWriter,
        checkpoints: CheckpointManager,
        assembly: Assembly,
        start: Start,
        waits: CollectiveWaits,
        after_step: Callable[[int], None],
    ) -> None:
        self._run = run
        self._spec = run.spec
        self._ranks = ranks
        self._writer = writer
        self._state = state = start.state
        self._from_stop = start.from_stop
        self._first_step = state.step + 1
        self._after_step = after_step
        self._waiting_for_compilers = partial(
            waiting_for_compilers, run.spec, assembly.mesh, ranks.cpu_group
        )
        self._first_compilation = partial(first_compilation, run, ranks, assembly.mesh)
        self._collector = StepCollector(run.spec.training.gc_freq)
        self._metrics_logger = MetricsLogger(
            run, ranks, writer, start=state, waits=waits, collector=self._collector
        )
        self._requests = RequestChannel(
            run.directory,
            writer,
            group=ranks.cpu_group,
            interval_seconds=explicit(run.spec.checkpoint.interval_seconds),
        )
        self._profiler = Profiler(run.directory, ranks)
        self._checkpoints = checkpoints
        checkpoints.starts_at(state, self)
        self._assembly = assembly
        self._train_step = TrainStep(
            assembly.forward_backward,
            assembly.optimizer,
            run.spec,
            stages=assembly.stages,
            before_update=checkpoints.wait_until_writable,
        )

    def keep(self, metrics: dict[str, float]) -> None:
        """Keep metrics of the start until the first step is recorded."""
        self._metrics_logger.keep(metrics)

    def run(self, dataset: Dataset) -> Outcome:
        """Train until the last step or a stop; save if a deadline permits; return the outcome."""
        if self._spec.checkpoint.preflight:
            # The preflight ends before the first update (`wait_until_writable`), and only reads the
            # weights.
            self._begin_save("preflight")
        self._writer.enter(Phase.TRAINING)
        with (
            self._checkpoints.drained(),
            BatchReader(
                dataset,
                position=self._state.data.position,
                partition=self._run.partition,
                dp_rank=MeshCoordinates.of(self._ranks.rank, self._run.attempt.layout).dp,
                prefetch=self._spec.data.prefetch_batches,
                skipped=self._state.data.skipped,
            ) as batches,
            self._collector,
        ):
            validation = self._validation(dataset)
            self._make_up(validation, self._first_compilation)
            if validation is not None:
                validation.owed = False  # a stop omitted it, or none is due
            self._train(batches, validation)
        finished = self._state.step >= self._spec.training.steps
        self._writer.enter(Phase.ENDING)
        if not finished and self._lacks_time():
            return self._leave_without_a_save()
        model, optimizer = self._assembly.model, self._assembly.optimizer
        kind = "final" if finished else STOP
        self._checkpoints.save(model, optimizer, self._state, kind=kind)
        assert self._writer.checkpoint_id is not None
        self._requests.recorded(self._profiler.close(self._state.step))
        self._requests.close(self._writer.checkpoint_id)
        if finished:
            self._make_up(validation, self._waiting_for_compilers)
        self._metrics_logger.close()
        return Outcome(
            outcome="succeeded" if finished else "stopped",
            step=self._state.step,
            checkpoint_id=self._writer.checkpoint_id,
        )

    def _lacks_time(self) -> bool:
        """Return whether a save of this step would miss the deadline; all ranks agree.

        First, a save in progress is awaited, regardless of the deadline.
        """
        self._checkpoints.settle()

        def lacks() -> bool:
            deadline, needed = (
                stop_deadline(self._run.directory),
                self._checkpoints.expected_seconds,
            )
            if deadline is None or needed is None or self._checkpoints.has_saved(self._state):
                return False
            left = deadline - time.time()
            if left >= needed:
                return False
            logger.warning(
                "step %d is not saved: saves took %.1f s, and this node ends in %.1f s",
                *(self._state.step, needed, left),
            )
            return True

        return on_rank_0(self._ranks.cpu_group, lacks)

    def _leave_without_a_save(self) -> Outcome:
        """Return the outcome with the last checkpoint; a later attempt continues from there."""
        self._requests.recorded(self._profiler.close(self._state.step))
        self._metrics_logger.close()
        return Outcome(
            outcome="stopped", step=self._state.step, checkpoint_id=self._writer.checkpoint_id
        )

    def _validation(self, dataset: Dataset) -> Validation | None:
        if not self._spec.validation.interval_steps:
            return None
        assert dataset.validation is not None, (
            "a rule of the spec: validation needs a held-out share"
        )
        return Validation(
            dataset.validation,
            self._run,
            ranks=self._ranks,
            writer=self._writer,
            evaluate=self._assembly.forward_backward.evaluate,
            owed=self._from_stop,
        )

    def _make_up(
        self, validation: Validation | None, compiling: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Validate at the present step if an earlier stop omitted this validation.

        No validation runs if a node with a deadline waits for the attempt's end.
        """
        if validation is None or not validation.owes(self.step):
            return
        directory = self._run.directory
        if on_rank_0(self._ranks.cpu_group, lambda: stop_deadline(directory) is not None):
            return
        with compiling():
            self._metrics_logger.write_late(self.step, validation.run())
        self._writer.beat(Phase.TRAINING)

    def _train(self, batches: Iterator[list[MicroBatch]], validation: Validation | None) -> None:
        self._metrics_logger.timers.restart()
        if self._spec.compile.enabled is True:
            # The first step compiles. No heartbeat can be written during compilation, so the
            # supervisor applies the longer hang limit of this phase.
            self._writer.beat(Phase.COMPILING)
        while self._state.step < self._spec.training.steps:
            # Post before the step and take after it, so that the broadcast overlaps with the step.
            self._requests.post(
                save_ended=self._checkpoints.ended, retry_due=self._checkpoints.retry_due
            )
            metrics = self._step(batches)
            self._after_step(self._state.step)
            decision = self._requests.take()
            if Decision.SAVE_ENDED in decision:
                self._checkpoints.settle()
            stopping = Decision.STOP in decision
            saving = self._save_kind(decision)
            # A stop may be a preemption with only seconds left, so the validation is done at the
            # resume.
            validating = bool(validation and validation.is_due(self._state.step) and not stopping)
            if validation and validating:
                with self._metrics_logger.timers.pausing(), self._waiting_for_compilers():
                    self._metrics_logger.keep(validation.run())
            # Check before the save, so that a guard rejects a bad step before it is saved.
            self._metrics_logger.step_done(
                self._state, metrics, write_values=stopping or bool(saving) or validating
            )
            if stopping:
                if validation is not None:
                    validation.owed = True
                self._writer.event("stop_agreed", {})
                return
            if saving:
                self._begin_save(saving)
            with self._metrics_logger.timers.pausing():
                self._requests.recorded(
                    self._profiler.step_done(self._state.step, self._requests.profile)
                )
            self._collector.step_done(self._state.step)
            self._writer.beat(Phase.TRAINING)

    def _step(self, batches: Iterator[list[MicroBatch]]) -> StepMetrics:
        with self._metrics_logger.timers.waiting_for_data():
            micro_batches = next(batches)
        step = self._state.step + 1
        compiling = step == self._first_step
        with (
            self._first_compilation() if compiling else nullcontext(),
            self._metrics_logger.timers.step(),
        ):
            metrics = self._train_step(step, micro_batches)
        self._state = one_step_on(self._state, self._spec)
        self._writer.step = self._state.step
        return metrics

    def _begin_save(self, kind: str) -> None:
        assembly = self._assembly
        self._checkpoints.begin(assembly.model, assembly.optimizer, self._state, kind=kind)

    def _save_kind(self, decision: Decision) -> str | None:
        """Return the kind of checkpoint that is due; `run` saves the last step itself."""
        if self._state.step == self._spec.training.steps:
            return None
        if Decision.SAVE_ASKED in decision:
            return "request"
        failed_kind = self._checkpoints.failed_kind
        if failed_kind is not None:  # the retry also covers saves that become due until then
            return failed_kind if Decision.SAVE_RETRY in decision else None
        interval = explicit(self._spec.checkpoint.interval_steps)
        by_steps = interval > 0 and self._state.step % interval == 0
        # A timed save does not start during another save, because training would wait for the other
        # save.
        by_clock = Decision.SAVE_DUE in decision and not self._checkpoints.under_way
        return "interval" if by_steps or by_clock else None

    @property
    def step(self) -> int:
        """Number of completed training steps."""
        return self._state.step

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Show the save in the heartbeat; do not count its duration in the time of the step."""
        self._writer.beat(Phase.SAVING)
        with self._metrics_logger.timers.pausing():
            yield

    def begun(self) -> None:
        """Assign the pending save requests to this save."""
        self._requests.save_begun()
        self._writer.save_begun()

    def committed(self, manifest: Manifest) -> None:
        """Record the commit in the run's events."""
        self._writer.committed(manifest)

    def settled(self, manifest: Manifest, settled: SaveSettled) -> None:
        """Answer requests, and record the durations of the save, which are now known."""
        self._requests.saved(manifest.checkpoint_id)
        self._metrics_logger.keep(
            {
                "checkpoint/save_seconds": manifest.save_seconds,
                "checkpoint/stall_seconds": settled.stall_seconds,
            }
        )
        self._writer.event("checkpoint_settled", settled.model_dump(mode="json"))

    def failed(self, failure: SaveFailed) -> None:
        """Record why a save failed, and when the retry is due."""
        self._writer.save_failed(failure)
