"""A program with layouts: its launch, its resume options, resumes and retries."""

from __future__ import annotations

from typing import Any

import pytest

from server.core.context import Context
from server.core.errors import ConflictError, InvalidRequestError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs.queries import job_view
from server.jobs.jobs.resume import options, preview, resume
from server.jobs.jobs.service import stop
from tests.actors import ADA
from tests.server.harness import Harness
from trainyard.planner.results import ProgramPlan
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.run.failures import FailureReason
from trainyard.spec.layout import Layout

TENSOR = Layout(dp_shard=2, tp=2)
LISTED: list[dict[str, Any]] = [
    {"dp_shard": 2},
    {"dp_shard": 4},
    {"dp_shard": 2, "tp": 2, "arguments": {"tp": 2}},
]


@pytest.fixture
def allow_code() -> bool:
    """The server accepts jobs that bring code."""
    return True


def sections(**resources: Any) -> dict[str, Any]:
    """Return the sections of a job with a program that has layouts."""
    program = {
        "command": ["train.py"],
        "code": {"folder": "data:mine"},
        "resume": "any_world_size",
        "layouts": LISTED,
    }
    given = {"world_size": 4} | resources
    return {"program": program, "resources": given, "retry": {"backoff_seconds": 0}}


def request(**fields: Any) -> ResumeRequest:
    return ResumeRequest.model_validate(fields)


def stopped(context: Context, harness: Harness) -> str:
    harness.add_node(slots=4)
    job_id, (supervisor,) = harness.launched(**sections())
    supervisor.train(0)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    return job_id


def refusals(context: Context, job_id: str, **fields: Any) -> list[tuple[str, str]]:
    """Return pointer and detail of each problem of a resume."""
    with pytest.raises(InvalidRequestError) as refused:
        preview(context, job_id, request(**fields), scope=SYSTEM_SCOPE)
    return [(problem.pointer, problem.detail) for problem in refused.value.problems]


def test_an_attempt_has_the_first_layout_of_its_slots(context: Context, harness: Harness) -> None:
    harness.add_node(slots=4)
    job_id, (supervisor,) = harness.launched(**sections())
    assert supervisor.reply.attempt.layout == Layout(dp_shard=4)
    supervisor.train(0)
    view = job_view(context, job_id, scope=SYSTEM_SCOPE)
    assert view.layout == "FSDP 4"
    assert view.current_attempt is not None
    assert view.current_attempt.layout_name == "FSDP 4"


def test_a_resume_selects_another_layout_of_the_list(context: Context, harness: Harness) -> None:
    job_id = stopped(context, harness)
    chosen = request(overrides={"parallelism": {"tp": 2}})
    shown = preview(context, job_id, chosen, scope=SYSTEM_SCOPE)
    assert isinstance(shown.plan, ProgramPlan)
    assert (shown.plan.name, shown.plan.command[1:]) == ("FSDP 2 x TP 2", ("--tp", "2"))
    changed = {line.name: (line.before, line.after) for line in shown.changes if line.changed}
    assert changed == {"layout": ("FSDP 4", "FSDP 2 x TP 2")}
    resume(context, job_id, chosen, actor=ADA)
    assert harness.job(job_id).layout == "FSDP 2 x TP 2"
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(job_id)
    assert supervisor.reply.attempt.layout == TENSOR
    assert supervisor.reply.attempt.overrides.parallelism is None
    supervisor.train(0)
    view = job_view(context, job_id, scope=SYSTEM_SCOPE)
    assert view.current_attempt is not None
    assert view.current_attempt.layout_name == "FSDP 2 x TP 2"
    with pytest.raises(ConflictError, match="runs on FSDP 2 x TP 2 with these settings already"):
        resume(context, job_id, chosen, actor=ADA)
    supervisor.end("failed", FailureReason.TRAINER_ERROR)
    assert harness.place() == 1
    (again,) = harness.claim_all(job_id)
    assert again.reply.attempt.layout == TENSOR
    again.train(0)
    assert preview(context, job_id, request(world_size=2), scope=SYSTEM_SCOPE).plan.name == "FSDP 2"


def test_without_sizes_the_layout_stays_or_is_the_first(context: Context, harness: Harness) -> None:
    job_id = stopped(context, harness)
    assert preview(context, job_id, request(), scope=SYSTEM_SCOPE).plan.name == "FSDP 4"
    assert preview(
        context, job_id, request(world_size=2), scope=SYSTEM_SCOPE
    ).plan.layout == Layout(dp_shard=2)


def test_other_layouts_and_sizes_are_refused(context: Context, harness: Harness) -> None:
    job_id = stopped(context, harness)
    assert refusals(context, job_id, world_size=3) == [
        ("/world_size", "world_size=3 has no layout in program.layouts; nearest legal: 2, 4")
    ]
    assert refusals(context, job_id, overrides={"parallelism": {"tp": 4}}) == [
        (
            "/overrides/parallelism",
            "TP 4 is not in program.layouts; legal on 4 slots: FSDP 4, FSDP 2 x TP 2",
        )
    ]
    (problem,) = refusals(context, job_id, overrides={"compile": {}})
    assert problem[1].endswith("legal: parallelism, checkpoint, resources, retry, steps")


def test_the_options_are_the_layouts_of_the_list(context: Context, harness: Harness) -> None:
    job_id = stopped(context, harness)
    found = {each.world_size: each for each in options(context, job_id, scope=SYSTEM_SCOPE).options}
    assert [layout.name for layout in found[4].layouts] == ["FSDP 4", "FSDP 2 x TP 2"]
    assert found[3].layouts == ()
    assert found[3].reason is not None
    assert "nearest legal: 2, 4" in found[3].reason


def test_an_elastic_program_skips_numbers_of_slots_without_a_layout(harness: Harness) -> None:
    harness.add_node(slots=3)
    job_id = harness.submit(**sections(min_world_size=2))
    assert harness.place() == 0
    assert harness.fit() == 1
    assert harness.place() == 1
    job = harness.job(job_id)
    assert (job.world_size, job.layout) == (2, "FSDP 2")
