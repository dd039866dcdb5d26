"""The counters of a job: their change in a step, and windows of the stream that are left out."""

from __future__ import annotations

from trainer.errors import LaunchError
from trainer.run import Run
from trainyard.protocol.manifest import TrainState
from trainyard.spec.job import JobSpec
from trainyard.training.data_stream import advanced, covered, merged


def one_step_on(state: TrainState, spec: JobSpec) -> TrainState:
    """Return the counters after one more step."""
    sequences = spec.training.global_batch_size
    data = state.data.model_copy(
        update={
            "position": advanced(state.data.position, sequences, state.data.skipped),
            "consumed": state.data.consumed + sequences,
        }
    )
    tokens = state.tokens + spec.tokens_per_step
    return state.model_copy(update={"step": state.step + 1, "tokens": tokens, "data": data})


def leave_out(state: TrainState, run: Run) -> TrainState:
    """Return the counters with the attempt's `skip` windows removed from the stream.

    Raises:
        LaunchError: a window begins before the position: it was trained on, at least in part.
    """
    data = state.data
    new = [window for window in run.attempt.skip if not covered(window, data.skipped)]
    for start, end in new:
        if start < data.position:
            raise LaunchError(
                f"skip: the window [{start}, {end}) begins before position {data.position} of the "
                f"checkpoint at step {state.step}; take a checkpoint from before it",
                path=str(run.directory.attempt),
            )
    skipped = merged([*data.skipped, *new])
    update = {"skipped": skipped, "position": advanced(data.position, 0, skipped)}
    return state.model_copy(update={"data": data.model_copy(update=update)})
