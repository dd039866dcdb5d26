"""A resumed program: samples consumed by its ranks against those of another attempt."""

from __future__ import annotations

import pytest

from server.core.context import Context
from server.jobs.jobs.resume import resume
from server.jobs.jobs.service import stop
from tests.actors import ADA
from tests.server.harness import Harness, Supervisor
from tests.server.jobs.checkpoints import test_program_checkpoints as programs
from tests.server.reports import chunk, json_lines, kept_events, send
from trainyard.data import order_digest
from trainyard.protocol.rest.resume import ResumeRequest

SAVED, RAN_TO, BATCH = 2, 4, 12


@pytest.fixture
def allow_code() -> bool:
    """The server accepts jobs that bring code."""
    return True


def consume(
    context: Context, supervisor: Supervisor, steps: range, *, ranks: int, seed: int = 0
) -> None:
    """Let each rank log the steps with its part of the samples; the step after them is empty."""
    for rank in range(ranks):
        positions = {step: range(step * BATCH + rank, (step + 1) * BATCH, ranks) for step in steps}
        lines = [
            {
                "step": step,
                "time": 1000.0 + step,
                "values": {"train/loss": 2.0},
                "data_digest": order_digest(taken, [seed + place for place in taken]),
                "ranks": ranks,
            }
            for step, taken in positions.items()
        ]
        lines.append({"step": steps.stop, "time": 2000.0, "values": {}, "ranks": ranks})
        file = f"metrics:{rank}" if rank else "metrics"
        send(context, supervisor, chunk(file, json_lines(lines)))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_equal_samples_on_another_number_of_ranks_prove_the_order(
    context: Context, harness: Harness, ranks: int
) -> None:
    second = _resumed(context, harness, ranks)
    consume(context, second, range(SAVED + 1, RAN_TO), ranks=ranks)
    (found,) = kept_events(context, "continuity_checked")
    assert found["exact"]
    assert found["step"] == SAVED + 1
    assert found["summary"] == "order exact, loss within 0.1 % of attempt 1"


def test_other_samples_are_reported(context: Context, harness: Harness) -> None:
    second = _resumed(context, harness, 2)
    consume(context, second, range(SAVED + 1, RAN_TO), ranks=2, seed=1)
    (found,) = kept_events(context, "continuity_checked")
    assert not found["ok"]
    assert found["summary"] == "differs in data_digest"


def _resumed(context: Context, harness: Harness, ranks: int) -> Supervisor:
    """Run an attempt on two ranks beyond its checkpoint, and resume it on some ranks."""
    harness.add_node()
    job_id, reporter = programs.launched(harness)
    consume(context, reporter.supervisor, range(1, RAN_TO + 1), ranks=2)
    reporter.commit(programs.manifest(job_id, 1, SAVED))
    stop(context, job_id, actor=ADA, reason="another size")
    reporter.supervisor.end("stopped")
    resume(context, job_id, ResumeRequest(world_size=ranks), actor=ADA)
    assert harness.place() == 1
    (second,) = harness.claim_all(job_id)
    assert harness.attempt(job_id).start_step == SAVED
    return second
