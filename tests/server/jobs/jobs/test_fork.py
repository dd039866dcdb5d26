"""Forks: a new job from another job's checkpoint, its inherited values, and its retries."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete

from server.core.context import Context
from server.core.database.tables import checkpoints
from server.core.errors import ConflictError, InvalidRequestError, NotFoundError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.checkpoints.queries import read_checkpoint
from server.jobs.jobs.fork import fork, preview
from server.jobs.jobs.queries import job_view
from server.jobs.jobs.resume import preview as preview_resume
from server.jobs.jobs.service import stop
from tests.actors import ADA, ADMIN, BOB, EVE
from tests.server.harness import BRINGS_CODE, Harness
from trainyard.protocol.rest.checkpoints import ForkPreview, ForkRequest
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.resume_parts import ALL_PARTS
from trainyard.protocol.states import JobState
from trainyard.run.failures import FailureReason

TRAINING = {"steps": 100, "global_batch_size": 16, "micro_batch_size": 4}
WIDE = {"resources": {"world_size": 16}, "training": {"micro_batch_size": 1}}
TOO_WIDE = {
    "resources": {"world_size": 16_400},
    "training": {"micro_batch_size": 1, "global_batch_size": 16_400},
}
ENV = {"HF_TOKEN": "secret"}
pytestmark = BRINGS_CODE


def request(**fields: Any) -> ForkRequest:
    return ForkRequest.model_validate(fields)


def held(shown: ForkPreview) -> dict[str, bool]:
    return {g.name: g.holds for g in shown.guarantees}


def said(shown: ForkPreview, name: str) -> str:
    return next(g.detail for g in shown.guarantees if g.name == name)


@pytest.fixture
def source(harness: Harness, context: Context) -> str:
    """A checkpoint of step 40 of a job that stopped there."""
    harness.add_node(slots=8)
    job_id, (supervisor,) = harness.running(training=TRAINING, resources={"world_size": 2}, env=ENV)
    supervisor.train(40)
    identifier = harness.commit_checkpoint(job_id, 40)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    return identifier


def test_a_fork_with_nothing_changed_is_the_same_curve(context: Context, source: str) -> None:
    shown = preview(context, source, request(changes={"resources": {"world_size": 4}}), actor=ADA)
    assert (shown.name, shown.step, shown.start_step) == ("tiny-fork", 40, 40)
    assert shown.parts == ALL_PARTS
    assert all(held(shown).values())
    assert "position 640" in said(shown, "data order")
    assert shown.plan.name == "FSDP 4"


@pytest.mark.parametrize(
    "model", [{"dim": 64}, {"head_dim": 16}, {"rope_factor": 1.0}, {"norm_eps": 1e-5}]
)
def test_a_shape_that_the_size_has_anyway_changes_nothing(
    context: Context, source: str, model: dict[str, Any]
) -> None:
    shown = preview(context, source, request(changes={"model": model}), actor=ADA)
    assert all(held(shown).values()), said(shown, "curve")


def test_more_steps_stretch_the_schedule_and_are_said(context: Context, source: str) -> None:
    shown = preview(context, source, request(changes={"training": {"steps": 200}}), actor=ADA)
    assert [name for name, holds in held(shown).items() if not holds] == ["curve"]
    assert "end of the schedule, in tokens: 204800 -> 409600" in said(shown, "curve")
    pinned = {"training": {"steps": 200}, "lr_schedule": {"total_steps": 100}}
    assert all(held(preview(context, source, request(changes=pinned), actor=ADA)).values())


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"source": "text", "path": "data:other"}},
        {"training": {"seq_len": 64}},
        {"training": {"seed": 7}},
    ],
)
def test_other_data_begin_at_their_start(
    context: Context, source: str, changes: dict[str, Any]
) -> None:
    shown = preview(context, source, request(changes=changes), actor=ADA)
    assert shown.parts == ("model", "optimizer", "counters")
    assert shown.start_step == 40
    assert not held(shown)["data order"]
    assert "starts at position 0" in said(shown, "data order")
    with pytest.raises(InvalidRequestError, match="leave data out") as refusal:
        preview(context, source, request(changes=changes, parts=list(ALL_PARTS)), actor=ADA)
    assert refusal.value.problems[0].pointer == "/parts"


def test_another_batch_keeps_the_order_and_another_rate_the_data(
    context: Context, source: str
) -> None:
    shown = preview(
        context, source, request(changes={"training": {"global_batch_size": 32}}), actor=ADA
    )
    assert held(shown)["data order"]
    assert not held(shown)["global batch"]
    shown = preview(context, source, request(changes={"optimizer": {"lr": 1e-4}}), actor=ADA)
    assert [name for name, holds in held(shown).items() if not holds] == ["curve"]
    assert "optimizer.lr: 0.0003 -> 0.0001" in said(shown, "curve")


def test_only_the_model_starts_a_job_at_step_0(
    context: Context, harness: Harness, source: str
) -> None:
    shown, job_id = fork(context, source, request(parts=["model"], name="tuned"), actor=ADA)
    assert shown is not None
    assert (shown.name, shown.start_step, shown.parts) == ("tuned", 0, ("model",))
    assert {name for name, holds in held(shown).items() if holds} == {"weights", "global batch"}
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(job_id)
    resume = supervisor.reply.attempt.resume
    assert resume is not None
    assert (resume.step, resume.parts) == (40, ("model",))
    assert harness.attempt(job_id).start_step == 0


@pytest.mark.parametrize(
    ("body", "pointer", "match"),
    [
        ({"changes": {"model": {"ffn_dim": 96}}}, "/changes/model/ffn_dim", "the same shape"),
        ({"changes": {"model": {"dim": 128}}}, "/changes/model/dim", "128, but .* has 64: "),
        ({"changes": {"model": {"size": "1B"}}}, "/changes/model/size", "the same shape"),
        ({"changes": {"model": {"nonsense": 1}}}, "/changes/model/nonsense", "unknown"),
        ({"changes": {"training": {"steps": 40}}}, "/changes/training/steps", "stands at step 40"),
        ({"changes": TOO_WIDE}, "/changes/resources/world_size", "MAX_SLOTS"),
        ({"changes": {"model": {"size": "none"}}}, "/changes/model/size", "none"),
        (
            {"changes": {"optimizer": {"state_dtype": "bfloat16"}}},
            "/changes/optimizer/state_dtype",
            "leave optimizer out",
        ),
        (
            {
                "changes": {
                    "training": {"weight_dtype": "bfloat16", "param_dtype": "bfloat16"},
                    "optimizer": {"state_dtype": "bfloat16"},
                }
            },
            "/changes/training/weight_dtype",
            "weights are float32, not bfloat16",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(
    context: Context, source: str, body: dict[str, Any], pointer: str, match: str
) -> None:
    with pytest.raises(InvalidRequestError, match=match) as refusal:
        preview(context, source, request(**body), actor=ADA)
    assert pointer in {problem.pointer for problem in refusal.value.problems}


@pytest.mark.parametrize("parts", [None, ["model"]])
def test_another_sequence_length_is_refused_for_an_own_model(
    context: Context, harness: Harness, parts: list[str] | None
) -> None:
    """The factory receives the length, which may set the shape of a table of positions."""
    harness.add_node(slots=8)
    model = {"factory": "gpt:build", "code": "data:own"}
    job_id, (supervisor,) = harness.running(training=TRAINING, model=model)
    supervisor.train(40)
    identifier = harness.commit_checkpoint(job_id, 40)
    body = request(changes={"training": {"seq_len": 64}}, parts=parts)
    with pytest.raises(InvalidRequestError, match="64, but the checkpoint's model has") as refusal:
        preview(context, identifier, body, actor=ADA)
    assert [one.pointer for one in refusal.value.problems] == ["/changes/training/seq_len"]


def test_an_unknown_or_damaged_checkpoint_is_refused(context: Context, source: str) -> None:
    for act in (preview, fork):
        with pytest.raises(NotFoundError, match="no checkpoint"):
            act(context, source.replace("step-40", "step-41"), request(), actor=ADA)


def test_lineage_is_kept_on_both_sides(context: Context, harness: Harness, source: str) -> None:
    _, job_id = fork(context, source, request(), actor=ADA)
    shown = job_view(context, job_id, scope=SYSTEM_SCOPE)
    assert (shown.forked_from, shown.fork_parts) == (source, ALL_PARTS)
    assert shown.spec.env == {"HF_TOKEN": "********"}
    assert context.secrets.open(harness.job(job_id).env) == ENV, "what views mask is taken over"
    assert harness.kinds(job_id) == ["submitted"]
    (descendant,) = read_checkpoint(context, source, scope=SYSTEM_SCOPE).descendants
    assert (descendant.job_id, descendant.name) == (job_id, "tiny-fork")


@pytest.mark.parametrize("changes", [{}, {"env": {"OTHER": "1"}}, {"name": "mine"}])
def test_another_person_does_not_get_the_secrets_of_the_job(
    context: Context, source: str, changes: dict[str, Any]
) -> None:
    for act in (preview, fork):
        with pytest.raises(InvalidRequestError, match="ada submitted the other job") as refusal:
            act(context, source, request(changes=changes), actor=BOB)
        assert [each.pointer for each in refusal.value.problems] == ["/changes/env/HF_TOKEN"]


@pytest.mark.parametrize("value", [None, "own"])
def test_another_person_forks_with_own_values_or_none(
    context: Context, harness: Harness, source: str, value: str | None
) -> None:
    _, job_id = fork(context, source, request(changes={"env": {"HF_TOKEN": value}}), actor=BOB)
    env = context.secrets.open(harness.job(job_id).env)
    assert env == ({} if value is None else {"HF_TOKEN": value})


def test_the_admin_takes_all_over(context: Context, harness: Harness, source: str) -> None:
    _, job_id = fork(context, source, request(), actor=ADMIN)
    assert context.secrets.open(harness.job(job_id).env) == ENV


def test_a_fork_goes_back_to_its_origin_until_it_has_saved(
    context: Context, harness: Harness, source: str
) -> None:
    at_once = {"retry": {"backoff_seconds": 0.0}}
    _, job_id = fork(context, source, request(changes=at_once), actor=ADA)
    for number in (1, 2):  # also the retry of an attempt without a save
        assert harness.place() == 1
        (supervisor,) = harness.claim_all(job_id)
        attempt = supervisor.reply.attempt
        assert attempt.attempt == number
        assert attempt.job_id == job_id
        assert attempt.resume is not None
        assert attempt.resume.checkpoint_id == source
        assert attempt.resume.path.startswith(source.partition(".")[0])
        assert (harness.attempt(job_id).start_step, harness.job(job_id).progress.step) == (40, 40)
        if number == 1:
            supervisor.end("failed", FailureReason.TRAINER_ERROR)
    supervisor.train(50)
    own = harness.commit_checkpoint(job_id, 50)
    supervisor.end("failed", FailureReason.TRAINER_ERROR)
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(job_id)
    resume = supervisor.reply.attempt.resume
    assert resume is not None
    assert (resume.checkpoint_id, resume.parts) == (own, ALL_PARTS)
    assert all(
        attempt.on_lineage
        for attempt in [job_view(context, job_id, scope=SYSTEM_SCOPE).current_attempt]
        if attempt
    )


def test_a_person_resumes_a_fork_from_its_origin_too(
    context: Context, harness: Harness, source: str
) -> None:
    _, job_id = fork(context, source, request(parts=["model", "counters"]), actor=ADA)
    stop(context, job_id, actor=ADA, reason="")
    assert job_view(context, job_id, scope=SYSTEM_SCOPE).state == JobState.STOPPED
    shown = preview_resume(context, job_id, ResumeRequest(), scope=SYSTEM_SCOPE)
    assert (shown.checkpoint_id, shown.step) == (source, 40)
    changes = {change.name: change.after for change in shown.changes}
    assert changes["step"] == "40"
    assert "data position" not in changes, "the server does not know the origin's position here"


def test_a_fork_runs_only_where_its_origin_lies(
    context: Context, harness: Harness, source: str
) -> None:
    harness.add_node("elsewhere", slots=16, roots={"checkpoints": "another", "data": "root-2"})
    _, job_id = fork(context, source, request(changes=WIDE), actor=ADA)
    assert harness.place() == 0, "16 slots are free, but on another storage"
    assert job_view(context, job_id, scope=SYSTEM_SCOPE).state == JobState.QUEUED


def test_one_that_is_being_deleted_starts_nothing(context: Context, source: str) -> None:
    from server.jobs.checkpoints.deletion import delete

    fork(context, source, request(), actor=ADA)
    with pytest.raises(ConflictError, match="is being loaded by an attempt"):
        delete(context, source, actor=ADA)


def test_a_repeat_under_the_same_key_is_the_same_job(context: Context, source: str) -> None:
    _, first = fork(context, source, request(), actor=ADA, idempotency_key="mine")
    shown, again = fork(context, source, request(), actor=ADA, idempotency_key="mine")
    assert (again, shown and shown.checkpoint_id) == (first, source)
    without = request(changes={"env": None})
    assert fork(context, source, without, actor=EVE, idempotency_key="mine")[1] != first
    with pytest.raises(InvalidRequestError, match="another body"):
        fork(context, source, request(name="other"), actor=ADA, idempotency_key="mine")


def test_a_repeat_is_the_same_job_though_the_checkpoint_has_gone_since(
    context: Context, source: str
) -> None:
    _, first = fork(context, source, request(), actor=ADA, idempotency_key="mine")
    with context.database.write() as connection:
        connection.execute(delete(checkpoints).where(checkpoints.c.id == source))
    assert fork(context, source, request(), actor=ADA, idempotency_key="mine") == (
        None,
        first,
    )
    with pytest.raises(NotFoundError):
        fork(context, source, request(), actor=ADA, idempotency_key="other")
