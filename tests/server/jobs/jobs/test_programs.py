"""Jobs that run a program: stored, planned, placed, stopped and resumed by the server."""

from __future__ import annotations

from typing import Any

import pytest

from server.core.context import Context
from server.core.errors import ConflictError, InvalidRequestError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs.planning import plan_job
from server.jobs.jobs.queries import job_view
from server.jobs.jobs.resume import options, preview, resume
from server.jobs.jobs.service import add_request, cancel, stop
from tests.actors import ADA
from tests.server.harness import Harness
from tests.server.reports import send
from trainyard.planner.results import ProgramPlan
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.states import DesiredState, JobState
from trainyard.run.directory import Phase
from trainyard.run.failures import FailureReason
from trainyard.run.records import Heartbeat, RankExit, Request
from trainyard.spec.job import JobSpec, parse_job_spec


@pytest.fixture
def allow_code() -> bool:
    """The server accepts jobs that bring code."""
    return True


def sections(*, world_size: int = 2, more: Any = None, **fields: Any) -> dict[str, Any]:
    """Return the sections of a job that runs a program."""
    program = {"command": ["train.py"], "code": {"folder": "data:mine"}} | fields
    return {"program": program, "resources": {"world_size": world_size}} | (more or {})


def spec(**given: Any) -> JobSpec:
    return parse_job_spec({"name": "tiny"} | sections(**given))


def request(**fields: Any) -> ResumeRequest:
    return ResumeRequest.model_validate(fields)


@pytest.mark.parametrize("allow_code", [False])
def test_a_server_that_takes_no_code_refuses_a_program(harness: Harness) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        harness.submit(**sections())
    (problem,) = refusal.value.problems
    assert problem.pointer == "/program"
    assert "TRAINYARD_ALLOW_CODE=true" in problem.detail


def test_a_place_below_an_unknown_root_is_refused_at_its_field(harness: Harness) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        harness.submit(
            **sections(code={"folder": "nowhere:mine"}, environment={"prefix": "none:env"})
        )
    assert [problem.pointer for problem in refusal.value.problems] == [
        "/program/code/folder",
        "/program/environment/prefix",
    ]


def test_its_plan_names_what_is_not_known(context: Context, harness: Harness) -> None:
    harness.add_node()
    plan = plan_job(context, spec(arguments={"lr": 0.1}), actor=ADA)
    assert isinstance(plan, ProgramPlan)
    assert (plan.name, plan.world_size, plan.device) == ("2 slots", 2, "cpu")
    assert plan.command == ("train.py", "--lr", "0.1")
    assert plan.unknown[-1] == "how long it takes"
    assert "/program/resume" in [warning.pointer for warning in plan.warnings]
    known = plan_job(context, spec(steps=10, resume="any_world_size"), actor=ADA)
    assert isinstance(known, ProgramPlan)
    assert (known.steps, known.warnings) == (10, ())
    assert "how long it takes" not in known.unknown


def test_it_waits_for_a_node_that_sees_its_roots(harness: Harness) -> None:
    harness.add_node("a", roots={"checkpoints": "root-1"})
    job_id = harness.submit(**sections())
    assert harness.place() == 0
    harness.add_node("b")
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(job_id)
    assert supervisor.node == "b"
    assert supervisor.reply.spec.program == harness.job(job_id).spec.program


def test_it_is_shown_by_its_slots_and_runs_to_its_end(context: Context, harness: Harness) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.launched(**sections())
    assert supervisor.train(0) == DesiredState.RUN  # the heartbeat of a program without its own
    view = job_view(context, job_id, scope=SYSTEM_SCOPE)
    assert (view.state, view.layout, view.progress.steps) == (JobState.RUNNING, "2 slots", None)
    assert view.verbs == ("stop", "resize", "cancel")
    assert view.current_attempt is not None
    assert view.current_attempt.micro_batch_size is None
    assert view.current_attempt.layout_name == "2 slots"
    assert set(view.set_fields) == {"name", "program", "resources.world_size"} - {"program"} | {
        "program.command",
        "program.code",
    }
    supervisor.end("succeeded")
    view = job_view(context, job_id, scope=SYSTEM_SCOPE)
    assert (view.state, view.verbs) == (JobState.SUCCEEDED, ("delete",))
    with pytest.raises(ConflictError, match="submit it as a new job"):
        resume(context, job_id, request(), actor=ADA)


def test_a_failure_begins_it_again(harness: Harness) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.launched(
        **sections(more={"retry": {"backoff_seconds": 0}}, steps=7)
    )
    supervisor.train(0)
    supervisor.end("failed", FailureReason.TRAINER_ERROR)
    assert harness.job(job_id).layout == "2 slots"
    assert harness.place() == 1
    (again,) = harness.claim_all(job_id)
    assert (again.reply.attempt.attempt, again.reply.attempt.resume) == (2, None)
    assert harness.job(job_id).progress.steps == 7


@pytest.mark.parametrize(
    ("failure", "trains", "ranks", "begun"),
    [
        ({"reason": FailureReason.LAUNCH_ERROR, "free_retry": True}, False, 0, False),
        ({"reason": FailureReason.PROGRAM_ERROR}, True, 0, True),
        ({"reason": FailureReason.PROGRAM_ERROR}, False, 1, True),
    ],
)
def test_an_attempt_counts_as_begun_once_its_ranks_have(
    harness: Harness, failure: dict[str, Any], trains: bool, ranks: int, begun: bool
) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.launched(**sections(more={"retry": {"backoff_seconds": 0}}))
    assert not supervisor.reply.attempt.begun_before
    if trains:
        supervisor.train(0)
    ended = RankExit(rank=0, pid=1, exit_code=1, signal=None, time=1.0)
    supervisor.end("failed", ranks=(ended,) * ranks, **failure)
    harness.clock.advance(2)
    assert harness.place() == 1
    (again,) = harness.claim_all(job_id)
    assert (again.reply.attempt.attempt, again.reply.attempt.begun_before) == (2, begun)


def test_it_answers_no_request_of_the_trainer(context: Context, harness: Harness) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.launched(**sections())
    supervisor.train(0)
    with pytest.raises(ConflictError, match=r"runs a program \(program.command\)"):
        add_request(context, job_id, Request(kind="save"), actor=ADA)


def test_it_answers_the_requests_that_its_heartbeat_names(
    context: Context, harness: Harness
) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.launched(**sections())
    beat = Heartbeat(phase=Phase.TRAINING, step=1, time=1.0, answers=("stop", "save"))
    send(context, supervisor, heartbeat=beat)
    assert "save" in job_view(context, job_id, scope=SYSTEM_SCOPE).verbs
    request_id = add_request(context, job_id, Request(kind="save"), actor=ADA)
    (pending,) = send(context, supervisor, heartbeat=beat).requests
    assert pending.id == request_id
    with pytest.raises(ConflictError, match=r"answers no profile: .* run.request\(\)"):
        add_request(context, job_id, Request(kind="profile"), actor=ADA)


def test_a_cancel_names_what_is_lost(context: Context, harness: Harness) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.launched(**sections())
    supervisor.train(0)
    lost = cancel(context, job_id, actor=ADA, reason="")
    assert lost == "all that attempt 1 did, except what the program saved by itself"


def stopped(context: Context, harness: Harness, **fields: Any) -> str:
    harness.add_node()
    job_id, (supervisor,) = harness.launched(**sections(**fields))
    supervisor.train(0)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    return job_id


def test_a_resume_begins_again_and_says_so(context: Context, harness: Harness) -> None:
    job_id = stopped(context, harness, resume="any_world_size")
    shown = preview(context, job_id, request(world_size=3), scope=SYSTEM_SCOPE)
    assert (shown.checkpoint_id, shown.step, shown.saves_first) == (None, 0, False)
    assert shown.plan.name == "3 slots"
    assert shown.plan.warnings[0].detail.startswith("the job has no checkpoint")
    changed = {line.name: (line.before, line.after) for line in shown.changes if line.changed}
    assert changed == {"world size": ("2", "3")}
    resume(context, job_id, request(world_size=3), actor=ADA)
    assert harness.place() == 1
    assert len(harness.shares(job_id)[0].slots) == 3


def test_a_program_of_one_size_resumes_on_no_other(context: Context, harness: Harness) -> None:
    job_id = stopped(context, harness, resume="same_world_size")
    with pytest.raises(InvalidRequestError) as refusal:
        preview(context, job_id, request(world_size=3), scope=SYSTEM_SCOPE)
    (problem,) = refusal.value.problems
    assert problem.pointer == "/world_size"
    assert "resumes only on the same number of slots; legal: 2" in problem.detail
    offered = {
        each.world_size: each for each in options(context, job_id, scope=SYSTEM_SCOPE).options
    }
    assert [layout.name for layout in offered[2].layouts] == ["2 slots"]
    assert offered[2].layouts[0].memory is None
    assert not offered[3].layouts
    assert preview(context, job_id, request(), scope=SYSTEM_SCOPE).plan.name == "2 slots"


def test_overrides_of_the_trainer_are_refused(context: Context, harness: Harness) -> None:
    job_id = stopped(context, harness, steps=5)
    with pytest.raises(InvalidRequestError) as refusal:
        preview(
            context,
            job_id,
            request(overrides={"micro_batch_size": 2, "compile": {}}),
            scope=SYSTEM_SCOPE,
        )
    pointers = [problem.pointer for problem in refusal.value.problems]
    assert pointers == ["/overrides/micro_batch_size", "/overrides/compile"]
    resume(context, job_id, request(steps=9), actor=ADA)
    view = job_view(context, job_id, scope=SYSTEM_SCOPE)
    assert view.effective_spec.total_steps == 9
    assert [(change.field, change.after) for change in view.changes] == [("program.steps", 9)]


@pytest.mark.parametrize("preemptible", [False, True])
def test_only_a_preemptible_program_leaves_for_others(harness: Harness, preemptible: bool) -> None:
    harness.add_node(slots=2)
    job_id, (supervisor,) = harness.launched(**sections(preemptible=preemptible))
    supervisor.train(0)
    harness.clock.advance(harness.context.settings.preempt_after_seconds)
    harness.submit(resources={"world_size": 2, "priority": "high"})
    assert harness.place() == 0
    left = harness.job(job_id).state == JobState.STOPPING
    assert left is preemptible


def test_an_elastic_program_takes_the_largest_free_size(harness: Harness) -> None:
    harness.add_node(slots=3)
    more = {"resources": {"world_size": 4, "min_world_size": 2}}
    job_id = harness.submit(**sections(resume="any_world_size", more=more))
    assert harness.place() == 0
    assert harness.fit() == 1
    assert harness.place() == 1
    job = harness.job(job_id)
    assert (job.world_size, job.layout) == (3, "3 slots")
