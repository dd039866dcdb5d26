"""Resumes: legality, layouts, branches, resizes."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from server.core.context import Context
from server.core.database.tables import jobs
from server.core.errors import ConflictError, InvalidRequestError, NotFoundError
from server.jobs.attempts.launch import effective_spec
from server.jobs.jobs.resume import resume
from server.jobs.jobs.service import cancel, stop
from tests.actors import ADA, BOB
from tests.server.harness import Harness
from tests.server.jobs.jobs.plans import planned
from tests.server.seen import list_attempts, options, preview
from trainyard.protocol.rest.attempts import AttemptView
from trainyard.protocol.rest.resume import ResumePreview, ResumeRequest
from trainyard.protocol.states import AttemptCause, DesiredState, JobState
from trainyard.run.failures import FailureReason
from trainyard.spec.auto import auto_values
from trainyard.spec.job import parse_job_spec
from trainyard.spec.layout import Layout

TRAINING = {"steps": 100, "global_batch_size": 16, "micro_batch_size": 4}


def request(**fields: Any) -> ResumeRequest:
    return ResumeRequest.model_validate(fields)


@pytest.fixture
def stopped(harness: Harness, context: Context) -> str:
    """A job on 2 of 8 slots, stopped at step 40 with checkpoints of steps 20 and 40."""
    harness.add_node(slots=8)
    job_id, (supervisor,) = harness.running(training=TRAINING, resources={"world_size": 2})
    harness.commit_checkpoint(job_id, 20)
    supervisor.train(40)
    harness.commit_checkpoint(job_id, 40)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    return job_id


def changed(shown: ResumePreview) -> dict[str, tuple[str, str]]:
    return {c.name: (c.before, c.after) for c in shown.changes if c.changed}


def test_nothing_asked_for_changes_nothing(context: Context, stopped: str) -> None:
    shown = preview(context, stopped, request())
    assert (shown.step, shown.branch, shown.plan.world_size) == (40, False, 2)
    assert changed(shown) == {}
    same = {c.name: c.after for c in shown.changes}
    assert same["data position"] == str(40 * 16)
    assert same["learning rate of the next step"]


def test_auto_goes_by_the_slots_of_each_attempt(context: Context, harness: Harness) -> None:
    """A job that ran on CPUs resumes on GPUs, and the comparison names the consequences."""
    harness.add_node("cpus")
    sections = {"checkpoint": {"keep_latest_k": 2}, "resources": {"device": "cpu"}}
    job_id, (supervisor,) = harness.running(step=20, training=TRAINING, **sections)
    assert supervisor.reply.attempt.device == harness.attempt(job_id).device == "cpu"
    first = _current(context, job_id)
    assert (first.device, first.auto) == ("cpu", auto_values(harness.job(job_id).spec, "cpu"))
    harness.commit_checkpoint(job_id, 20)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    harness.add_node("gpus", device="cuda")
    resources = {"device": "cuda"}
    shown = resume(context, job_id, request(overrides={"resources": resources}), actor=ADA)
    assert (shown.plan.device, planned(shown).auto["compile.enabled"]) == ("cuda", True)
    assert changed(shown) == {
        "device": ("cpu", "cuda"),
        "compilation": ("off", "inductor"),
        "memory of a slot": ("17.7 MiB", "14.8 MiB"),
        "checkpoint interval": ("100 steps", "600 s"),
        "asynchronous saves": ("disabled", "async_with_pinned_mem"),
        "steps between logged values": ("1", "10"),
    }
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(job_id)
    assert supervisor.reply.attempt.device == "cuda"
    assert supervisor.reply.spec.compile.enabled == "auto", "a job's spec never changes"
    second = _current(context, job_id)
    assert (second.device, second.auto["training.log_every_steps"]) == ("cuda", 10)
    with context.database.read() as connection:
        held = effective_spec(connection, second.id)
    assert auto_values(held, "cpu") == {}
    assert (held.compile.enabled, held.checkpoint.keep_latest_k) == (True, 2)


def _current(context: Context, job_id: str) -> AttemptView:
    with context.database.read() as connection:
        (newest,) = list_attempts(connection, job_id, before=None, limit=1)
    return newest


def test_a_world_size_alone_takes_the_planners_layout(
    context: Context, harness: Harness, stopped: str
) -> None:
    shown = resume(context, stopped, request(world_size=4), actor=BOB)
    assert changed(shown)["layout"] == ("FSDP 2", "FSDP 4")
    assert "learning rate of the next step" not in changed(shown)
    assert harness.job(stopped).state == JobState.QUEUED
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(stopped)
    attempt = supervisor.reply.attempt
    assert attempt.layout == Layout(dp_shard=4)
    assert attempt.attempt == 2
    assert attempt.resume is not None
    assert attempt.resume.step == 40
    # The trainer derives the same layout from it.
    assert attempt.overrides.apply(supervisor.reply.spec).layout() == attempt.layout
    row = harness.attempt(stopped)
    assert (row.cause, row.actor, row.start_step) == (AttemptCause.RESUME, "bob", 40)


def test_what_a_new_job_may_not_say_keeps_no_stored_one_from_going_on(
    context: Context, harness: Harness, stopped: str
) -> None:
    idle = parse_job_spec(
        {"training": TRAINING, "resources": {"world_size": 2}}
        | {"lr_schedule": {"name": "cosine", "decay_steps": 20}}
    )
    with context.database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.id == stopped).values(spec=idle))
    shown = preview(context, stopped, request(world_size=4))
    assert "/lr_schedule/decay_steps" in {warning.pointer for warning in shown.plan.warnings}
    resume(context, stopped, request(world_size=4), actor=BOB)
    assert harness.job(stopped).state == JobState.QUEUED


def test_a_micro_batch_size_that_is_no_longer_legal_is_lowered(
    context: Context, stopped: str
) -> None:
    shown = preview(context, stopped, request(world_size=8))
    assert planned(shown).batch.micro_batch_size == 2
    assert changed(shown)["micro-batch size"] == ("4", "2")
    with pytest.raises(InvalidRequestError) as refusal:
        preview(context, stopped, request(world_size=8, overrides={"micro_batch_size": 4}))
    assert refusal.value.problems[0].pointer == "/overrides/micro_batch_size"


def test_the_least_idle_micro_batch_size_is_chosen_where_others_idle(
    context: Context, stopped: str
) -> None:
    shown = preview(context, stopped, request(world_size=3))
    assert planned(shown).batch.micro_batch_size == 3  # 4 leaves a third of the slots idle
    assert planned(shown).batch.less_idle_micro_batch_size is None
    offered = {option.world_size: option for option in options(context, stopped).options}
    assert offered[3].layouts[0].batch == planned(shown).batch
    named = preview(context, stopped, request(world_size=3, overrides={"micro_batch_size": 4}))
    assert planned(named).batch.micro_batch_size == 4


def test_a_resize_goes_on_from_the_save_of_its_stop(context: Context, harness: Harness) -> None:
    harness.add_node(slots=8)
    job_id, (supervisor,) = harness.running(training=TRAINING, resources={"world_size": 2})
    harness.commit_checkpoint(job_id, 20)
    supervisor.train(33)
    shown = preview(context, job_id, request(world_size=4))
    assert (shown.saves_first, shown.step, shown.branch) == (True, 33, False)
    assert "step" not in changed(shown)
    supervisor.train(34)
    assert preview(context, job_id, request(world_size=4)).step == 34
    older = preview(context, job_id, request(world_size=4, checkpoint_id=f"{job_id}.a1.step-20"))
    assert (older.saves_first, older.step) == (False, 20)
    assert changed(older)["step"] == ("34", "20")


def test_world_size_and_layout_must_agree(context: Context, stopped: str) -> None:
    axes = {"parallelism": {"dp_replicate": 2, "dp_shard": 2}}
    assert preview(context, stopped, request(overrides=axes)).plan.name == "HSDP 2x2"
    with pytest.raises(InvalidRequestError, match=r"world_size=3, but .* = 4") as refusal:
        preview(context, stopped, request(world_size=3, overrides=axes))
    assert refusal.value.problems[0].pointer == "/world_size"
    with pytest.raises(InvalidRequestError) as refusal:
        preview(context, stopped, request(world_size=2, overrides={"resources": {"world_size": 4}}))
    assert refusal.value.problems[0].pointer == "/overrides/resources/world_size"


def test_what_is_not_named_in_a_section_does_not_shrink_the_job(
    context: Context, stopped: str
) -> None:
    shown = preview(context, stopped, request(overrides={"resources": {"priority": 9}}))
    assert shown.plan.world_size == 2


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"world_size": 20_000}, "/world_size"),
        ({"steps": 40}, "/steps"),
        ({"steps": 90, "overrides": {"steps": 80}}, "/overrides/steps"),
        ({"checkpoint_id": "other.a1.step-3"}, "/checkpoint_id"),
        ({"overrides": {"checkpoint": {"root": "data"}}}, "/overrides/checkpoint/root"),
        ({"overrides": {"checkpoint": {"root": "nowhere"}}}, "/checkpoint/root"),
        (
            {"overrides": {"parallelism": {"pp_stage_modules": [("norm",)]}}},
            "/overrides/parallelism/pp_stage_modules",
        ),
    ],
)
def test_what_is_refused_names_its_field(
    context: Context, harness: Harness, stopped: str, fields: dict[str, Any], pointer: str
) -> None:
    before = harness.dump()
    with pytest.raises(InvalidRequestError) as refusal:
        resume(context, stopped, request(**fields), actor=ADA)
    assert pointer in {problem.pointer for problem in refusal.value.problems}
    assert harness.dump() == before


def test_a_dry_run_stores_nothing(context: Context, harness: Harness, stopped: str) -> None:
    before = harness.dump()
    shown = resume(context, stopped, request(world_size=3, dry_run=True), actor=ADA)
    assert shown.plan.world_size == 3
    assert harness.dump() == before


def test_a_branch_never_takes_up_what_it_left_behind(
    context: Context, harness: Harness, stopped: str
) -> None:
    older = f"{stopped}.a1.step-20"
    assert resume(context, stopped, request(checkpoint_id=older), actor=ADA).branch
    harness.place()
    (supervisor,) = harness.claim_all(stopped)
    assert supervisor.reply.attempt.resume is not None
    assert supervisor.reply.attempt.resume.checkpoint_id == older
    assert cancel(context, stopped, actor=ADA, reason="") == "nothing: all is saved in step-20"
    supervisor.end("cancelled")
    shown = preview(context, stopped, request())
    assert (shown.checkpoint_id, shown.branch) == (older, False)
    assert preview(context, stopped, request(checkpoint_id=f"{stopped}.a1.step-40")).branch


def test_overrides_stay_until_they_are_changed(
    context: Context, harness: Harness, stopped: str
) -> None:
    resume(context, stopped, request(world_size=4, steps=200), actor=ADA)
    harness.place()
    stop(context, stopped, actor=ADA, reason="")
    shown = preview(context, stopped, request())
    assert (shown.plan.world_size, shown.plan.steps) == (4, 200)
    back = preview(context, stopped, request(world_size=2, steps=100))
    assert (back.plan.world_size, back.plan.steps) == (2, 100)


def test_a_resume_gives_the_budget_anew(context: Context, harness: Harness) -> None:
    harness.add_node()
    job_id, supervisors = harness.running(retry={"max_retries": 1, "backoff_seconds": 0})
    for _ in range(2):
        supervisors[0].end("failed", FailureReason.HANG)
        if harness.place():
            supervisors = harness.claim_all(job_id)
    assert harness.job(job_id).state == JobState.FAILED
    assert harness.job(job_id).retries_used == 1
    resume(context, job_id, request(), actor=ADA)
    assert harness.job(job_id).retries_used == 0


def test_a_success_goes_on_with_more_steps_or_from_an_older_checkpoint(
    context: Context, harness: Harness
) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running(training={"steps": 10})
    older = harness.commit_checkpoint(job_id, 5)
    harness.commit_checkpoint(job_id, 10)
    supervisor.end("succeeded")
    with pytest.raises(ConflictError, match="older checkpoint or more steps"):
        resume(context, job_id, request(), actor=ADA)
    assert preview(context, job_id, request(checkpoint_id=older)).step == 5
    resume(context, job_id, request(steps=20), actor=ADA)
    assert harness.job(job_id).state == JobState.QUEUED


def test_a_resize_stops_and_goes_on(context: Context, harness: Harness) -> None:
    harness.add_node(slots=4)
    job_id, (supervisor,) = harness.running(training=TRAINING, resources={"world_size": 2})
    overrides = {"resources": {"priority": 7}}
    resume(context, job_id, request(world_size=4, overrides=overrides), actor=ADA)
    assert harness.job(job_id).state == JobState.STOPPING
    assert supervisor.train(30) == DesiredState.STOP
    harness.commit_checkpoint(job_id, 31)
    supervisor.end("stopped")
    waits = harness.job(job_id)
    assert (waits.state, waits.priority) == (JobState.QUEUED, 7)
    assert (waits.world_size, waits.layout) == (4, "FSDP 4")
    assert harness.place() == 1
    row = harness.attempt(job_id)
    assert (row.cause, row.layout, row.start_step) == ("resize", Layout(dp_shard=4), 31)
    assert harness.job(job_id).desired == DesiredState.RUN


def test_a_stop_takes_a_resize_back(context: Context, harness: Harness) -> None:
    harness.add_node(slots=4)
    job_id, (supervisor,) = harness.running(training=TRAINING)
    resume(context, job_id, request(world_size=4), actor=ADA)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    assert harness.job(job_id).state == JobState.STOPPED
    assert harness.job(job_id).pending is None


def test_what_waits_or_ends_cannot_resume(context: Context, harness: Harness) -> None:
    harness.add_node()
    job_id = harness.submit()
    with pytest.raises(ConflictError, match="is queued"):
        resume(context, job_id, request(), actor=ADA)
    harness.place()
    with pytest.raises(ConflictError, match="is starting"):
        resume(context, job_id, request(), actor=ADA)
    with pytest.raises(NotFoundError):
        preview(context, "nothing", request())


def test_a_resume_waits_for_the_storage_of_its_checkpoints(
    context: Context, harness: Harness, stopped: str
) -> None:
    harness.add_node("elsewhere", slots=16, roots={"checkpoints": "another", "data": "root-2"})
    harness.submit(resources={"world_size": 8}, name="other", training={"micro_batch_size": 1})
    harness.place()
    resume(context, stopped, request(world_size=8), actor=ADA)
    harness.place()
    assert [share.node for share in harness.shares(stopped)] == ["node-1"]


def test_stages_of_another_pipeline_do_not_follow(context: Context, harness: Harness) -> None:
    """A client sends the present section with other axes: stale fields are derived again."""
    harness.add_node(slots=8)
    stages = [
        ["tok_embeddings", "layers.0"],
        [f"layers.{i}" for i in (1, 2, 3)] + ["norm", "output"],
    ]
    axes = {"pp": 2, "pp_stage_modules": stages, "pp_microbatches": 2}
    job_id, (supervisor,) = harness.running(
        training=TRAINING, resources={"world_size": 2}, parallelism=axes
    )
    harness.commit_checkpoint(job_id, 20)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    stale = harness.job(job_id).spec.parallelism
    alone = stale.model_copy(update={"pp": 1, "dp_shard": 2})
    for asked in ({"world_size": 1}, {"overrides": {"parallelism": alone}}):
        shown = preview(context, job_id, request(**asked))
        assert planned(shown).pipeline is None
    kept = planned(preview(context, job_id, request())).pipeline
    assert kept is not None
    assert (kept.layers, kept.microbatches, kept.runs) == ((1, 3), 2, 2)
    chosen = stale.model_copy(update={"pp_stage_modules": (("norm",), ("output",))})
    with pytest.raises(InvalidRequestError, match="legal: tok_embeddings"):
        preview(context, job_id, request(overrides={"parallelism": chosen}))


def test_options_offer_every_size(context: Context, harness: Harness, stopped: str) -> None:
    harness.running(resources={"world_size": 3})
    offered = options(context, stopped)
    assert (offered.checkpoint_id, offered.step) == (f"{stopped}.a1.step-40", 40)
    by_size = {option.world_size: option for option in offered.options}
    assert sorted(by_size) == list(range(1, 9))
    assert [size for size, option in by_size.items() if option.free_now] == [1, 2, 3, 4, 5]
    names = [layout.name for layout in by_size[4].layouts]
    assert names[0] == "FSDP 4"
    assert {"HSDP 2x2", "DDP 4"} < set(names)
    assert all(option.reason is None for option in by_size.values())


def test_a_changed_code_is_allowed_for_one_resume_until_it_has_saved(
    context: Context, harness: Harness, stopped: str
) -> None:
    resume(context, stopped, request(allow_code_change=True), actor=BOB)
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(stopped)
    point = supervisor.reply.attempt.resume
    assert point is not None
    assert point.allow_code_change
    # It fails before it has saved: the retry loads the same checkpoint.
    supervisor.end("failed", FailureReason.TRAINER_ERROR)
    harness.clock.advance(60)
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(stopped)
    assert harness.attempt(stopped).allow_code_change
    supervisor.train(60)
    harness.commit_checkpoint(stopped, 60)
    supervisor.end("failed", FailureReason.TRAINER_ERROR)
    harness.clock.advance(60)
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(stopped)
    assert harness.attempt(stopped).start_step == 60
    assert not harness.attempt(stopped).allow_code_change
    stop(context, stopped, actor=ADA, reason="")
    supervisor.end("stopped")
    resume(context, stopped, request(), actor=BOB)
    assert harness.place() == 1
    assert not harness.attempt(stopped).allow_code_change
