"""The first step of a fork against the job of its parent checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from server.core.context import Context
from server.core.database.tables import checkpoints, events
from server.jobs.jobs.fork import fork
from server.jobs.jobs.resume import resume
from tests.actors import ADA
from tests.server.harness import Harness
from tests.server.reports import chunk, json_lines, send
from trainyard.protocol.rest.attempts import Continuity
from trainyard.protocol.rest.checkpoints import ForkRequest
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.run.failures import FailureReason
from trainyard.spec.job import JobSpec

SAVED = 30


def lines(spec: JobSpec, first: int, last: int, *, sequences: int = 0, **other: Any) -> bytes:
    """Return the steps of a training run; the first follows some sequences."""
    batch = spec.training.global_batch_size
    tokens = other.get("tokens", sequences * spec.training.seq_len)
    return json_lines(
        [
            {
                "step": step,
                "time": float(step),
                "values": {
                    "train/loss": other.get("loss", 3.0 - step / 100),
                    "train/lr": spec.schedule.rate(step),
                    "train/tokens": float(tokens + (step - first + 1) * spec.tokens_per_step),
                    "train/sequences": float(sequences + (step - first + 1) * batch),
                },
                "data_digest": f"{step + other.get('digest', 0):032x}",
            }
            for step in range(first, last + 1)
        ]
    )


@pytest.fixture
def origin(harness: Harness, context: Context) -> str:
    """A checkpoint of step 30 of a job that continued to step 40."""
    harness.add_node()
    job_id, (supervisor,) = harness.launched()
    send(context, supervisor, chunk("metrics", lines(harness.job(job_id).spec, 1, 40)))
    supervisor.train(40)
    identifier = harness.commit_checkpoint(job_id, SAVED)
    supervisor.end("failed", FailureReason.DATA_ERROR)
    return identifier


def first_steps(
    harness: Harness,
    context: Context,
    *,
    checkpoint_id: str,
    request: dict[str, Any],
    counted: bool = True,
    moved: bool = True,
    **other: Any,
) -> Continuity:
    """Fork, report the first steps of the fork, and return its continuity.

    `counted` and `moved`: whether counters and data continue from the checkpoint.
    """
    _, job_id = fork(context, checkpoint_id, ForkRequest.model_validate(request), actor=ADA)
    harness.place()
    (supervisor,) = harness.claim_all(job_id)
    spec = harness.job(job_id).spec
    after = SAVED if counted else 0
    batch = 16
    counts = {"sequences": SAVED * batch if moved else 0, "tokens": after * batch * 128}
    supervisor.train(after)
    send(context, supervisor, chunk("metrics", lines(spec, after + 1, after + 2, **counts | other)))
    found: Continuity = harness.attempt(job_id).continuity
    return found


def test_a_fork_that_changes_nothing_is_exact_against_the_other_job(
    harness: Harness, context: Context, origin: str
) -> None:
    found = first_steps(harness, context, checkpoint_id=origin, request={})
    assert (found.ok, found.exact, found.differs) == (True, True, ())
    assert found.summary == (
        "same sequences, same token count, same learning rate, "
        "loss within 1e-5 of attempt 1 of the other job"
    )
    (digest,) = (check for check in found.checks if check.name == "data_digest")
    assert digest.expected.endswith("(attempt 1 of the other job)")


def test_another_rate_is_named_and_not_claimed(
    harness: Harness, context: Context, origin: str
) -> None:
    found = first_steps(
        harness, context, checkpoint_id=origin, request={"changes": {"optimizer": {"lr": 1.5e-4}}}
    )
    assert (found.ok, found.exact) == (True, False)
    assert found.differs == ("optimizer.lr: 0.0003 -> 0.00015",)
    assert found.summary == (
        "same sequences, same token count, own learning rate, loss not compared"
    )
    with context.database.read() as connection:
        query = select(events.c.message).where(events.c.kind == "continuity_checked")
        (message,) = connection.scalars(query)
    assert message.endswith("loss not compared; changed: optimizer.lr: 0.0003 -> 0.00015")


def test_a_longer_schedule_has_a_rate_of_its_own(
    harness: Harness, context: Context, origin: str
) -> None:
    found = first_steps(
        harness, context, checkpoint_id=origin, request={"changes": {"training": {"steps": 200}}}
    )
    assert found.ok
    assert "own learning rate" in found.summary
    assert found.differs[0].startswith("end of the schedule, in tokens")


def test_dropout_leaves_rate_and_data_as_they_were(
    harness: Harness, context: Context, origin: str
) -> None:
    found = first_steps(
        harness, context, checkpoint_id=origin, request={"changes": {"model": {"dropout": 0.1}}}
    )
    assert found.differs == ("model.dropout: 0.0 -> 0.1",)
    assert found.summary.startswith("same sequences, same token count, same learning rate, ")
    assert not found.exact


def test_wrong_data_of_a_fork_are_seen(harness: Harness, context: Context, origin: str) -> None:
    changes = {"optimizer": {"lr": 1.5e-4}}
    found = first_steps(
        harness, context, checkpoint_id=origin, request={"changes": changes}, digest=1
    )
    assert not found.ok
    assert found.summary == "differs in data_digest"


def test_another_loss_of_the_same_training_is_seen(
    harness: Harness, context: Context, origin: str
) -> None:
    found = first_steps(harness, context, checkpoint_id=origin, request={}, loss=2.0)
    assert found.summary == "differs in loss"


def test_other_data_and_parts_left_out_claim_nothing_of_them(
    harness: Harness, context: Context, origin: str
) -> None:
    found = first_steps(
        harness,
        context,
        checkpoint_id=origin,
        request={"changes": {"training": {"seed": 7}}},
        moved=False,
        digest=5,
    )
    assert found.ok, found
    assert found.summary.startswith("data from position 0, same token count, same learning rate")
    assert found.differs == ("data left out", "training.seed: 0 -> 7")
    found = first_steps(
        harness,
        context,
        checkpoint_id=origin,
        request={"parts": ["model"]},
        counted=False,
        moved=False,
        digest=9,
    )
    assert found.ok, found
    assert found.summary.startswith("sequences and tokens counted from 0, own learning rate")
    assert found.differs == ("optimizer left out", "counters left out", "data left out")


def test_another_batch_size_is_compared_by_its_counts_alone(
    harness: Harness, context: Context, origin: str
) -> None:
    changes = {"training": {"global_batch_size": 32}}
    found = first_steps(
        harness, context, checkpoint_id=origin, request={"changes": changes}, digest=9
    )
    assert found.ok, found
    assert found.summary.startswith("as many sequences, same token count, ")
    assert any(text.startswith("training.global_batch_size: 16 -> 32") for text in found.differs)


def test_a_checkpoint_of_an_older_version_claims_no_equal_setting(
    harness: Harness, context: Context, origin: str
) -> None:
    with context.database.write() as connection:
        mine = checkpoints.c.id == origin
        manifest = connection.scalars(select(checkpoints.c.manifest).where(mine)).one()
        older = manifest.model_copy(update={"spec": None})
        connection.execute(update(checkpoints).where(mine).values(manifest=older))
    found = first_steps(harness, context, checkpoint_id=origin, request={})
    assert not found.exact
    assert found.differs == ("the settings of the other job, which its checkpoint does not hold",)
    assert "own learning rate, loss not compared" in found.summary


def test_two_starts_of_a_fork_part_where_it_was_forked(
    harness: Harness, context: Context, origin: str
) -> None:
    request = ForkRequest.model_validate({"changes": {"optimizer": {"lr": 1e-4}}})
    _, job_id = fork(context, origin, request, actor=ADA)
    spec = harness.job(job_id).spec
    counts = {"sequences": SAVED * 16, "tokens": SAVED * 16 * 128}
    for number in (1, 2):
        harness.place()
        (supervisor,) = harness.claim_all(job_id)
        supervisor.train(SAVED)
        send(context, supervisor, chunk("metrics", lines(spec, SAVED + 1, SAVED + 2, **counts)))
        if number == 1:
            supervisor.end("failed", FailureReason.DATA_ERROR)
            resume(context, job_id, ResumeRequest(), actor=ADA)
    found = harness.attempt(job_id).continuity
    (loss,) = (check for check in found.checks if check.name == "loss")
    assert loss.within == "1e-5 of attempt 1"
