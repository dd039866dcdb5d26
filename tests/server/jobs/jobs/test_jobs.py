"""Actions on jobs: submit, request, delete."""

from __future__ import annotations

import pytest
from sqlalchemy import Table, func, select

from server.cluster.nodes.changes import set_drain
from server.core.context import Context
from server.core.database.tables import attempts, jobs, requests
from server.core.errors import ConflictError, InvalidRequestError, NotFoundError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs.idempotency import forget_old_keys
from server.jobs.jobs.planning import plan_job
from server.jobs.jobs.queries import job_row, job_view, view_of
from server.jobs.jobs.service import add_request, cancel, delete, stop
from tests.actors import ADA, BOB
from tests.server.harness import BRINGS_CODE, Harness
from tests.server.statements import statements
from tests.server.submit import submit
from trainyard.protocol.states import JobState
from trainyard.run.records import Request
from trainyard.spec.job import JobSpec, parse_job_spec


def spec(**sections: object) -> JobSpec:
    return parse_job_spec({"name": "tiny"} | sections)


@BRINGS_CODE
def test_a_submission_is_stored_whole(context: Context, harness: Harness) -> None:
    wanted = spec(env={"API_KEY": "real"}, resources={"world_size": 4, "priority": 3})
    job_id = submit(context, wanted, actor=ADA).id
    job = harness.job(job_id)
    assert context.secrets.restore(job.spec, job.env) == wanted
    assert (job.state, job.priority, job.world_size, job.layout) == ("queued", 3, 4, "FSDP 4")
    assert (job.created_by, job.pending.cause, job.pending.actor) == ("ada", "submit", "ada")
    assert harness.kinds(job_id) == ["submitted"]


def test_a_submission_and_its_view_need_few_statements(context: Context, harness: Harness) -> None:
    """With any number of nodes: their hardware is read only where a rule depends on it."""
    harness.add_node()
    submit(context, JobSpec(), actor=ADA)
    with statements(context) as seen:
        job = submit(context, JobSpec(), actor=ADA)
        view_of(context, job, scope=SYSTEM_SCOPE)
    stored = [each for each in seen if not each.startswith("BEGIN")]
    assert len(stored) == (3 if context.database.is_sqlite else 4), stored
    with statements(context) as seen:
        job_view(context, job.id, scope=SYSTEM_SCOPE)
    assert len([each for each in seen if not each.startswith("BEGIN")]) == 1, seen


@BRINGS_CODE
def test_the_answer_to_a_submission_is_what_a_query_returns(
    context: Context, harness: Harness
) -> None:
    wanted = spec(
        env={"API_KEY": "real"},
        tags=["a", "b"],
        data={"source": "text", "path": "data:x"},
        resources={"world_size": 4, "min_world_size": 2, "max_world_size": 8},
    )
    for each in (wanted, spec(), spec(lr_schedule={"total_tokens": 10**9})):
        job = submit(context, each, actor=ADA)
        with context.database.read() as connection:
            assert job == job_row(connection, job.id, scope=SYSTEM_SCOPE)
        assert view_of(context, job, scope=SYSTEM_SCOPE) == job_view(
            context, job.id, scope=SYSTEM_SCOPE
        )


def test_the_answer_to_a_repeat_has_what_happened_since(context: Context, harness: Harness) -> None:
    first = submit(context, spec(), actor=ADA, idempotency_key="k")
    harness.place()  # without a node the job waits, and its group has the reason
    waits = view_of(
        context, submit(context, spec(), actor=ADA, idempotency_key="k"), scope=SYSTEM_SCOPE
    )
    harness.add_node()
    harness.place()
    placed = view_of(
        context, submit(context, spec(), actor=ADA, idempotency_key="k"), scope=SYSTEM_SCOPE
    )
    assert (waits.id, waits.state, placed.id) == (first.id, JobState.QUEUED, first.id)
    assert waits.reason is not None
    assert (placed.state, placed.current_attempt is None) == (JobState.STARTING, False)


def test_every_problem_is_named_and_nothing_stored(context: Context) -> None:
    wrong = spec(
        checkpoint={"root": "elsewhere"},
        data={"source": "text", "path": "secrets:etc/shadow"},
        resources={"world_size": 3, "nodes": 2},
        parallelism={"tp": 3},
    )
    with pytest.raises(InvalidRequestError) as refusal:
        submit(context, wrong, actor=ADA)
    pointers = {problem.pointer for problem in refusal.value.problems}
    assert pointers == {"/checkpoint/root", "/data/path", "/resources/nodes", "/parallelism/tp"}
    assert count(context, jobs) == 0


def test_a_submission_with_an_ignored_field_is_refused(context: Context) -> None:
    idle = spec(lr_schedule={"name": "cosine", "decay_steps": 20})
    for refuse in (
        lambda: submit(context, idle, actor=ADA),
        lambda: plan_job(context, idle, actor=ADA),
    ):
        with pytest.raises(InvalidRequestError) as refusal:
            refuse()
        assert [p.pointer for p in refusal.value.problems] == ["/lr_schedule/decay_steps"]


OWN = {"factory": "gpt:build", "code": "data:own_model"}
REMOTE = {"hugging_face": "data:model", "remote_code": True}


@pytest.mark.parametrize("allow_code", [False, True])
@pytest.mark.parametrize(("model", "pointer"), [(OWN, "factory"), (REMOTE, "remote_code")])
def test_jobs_bring_code_only_where_the_settings_allow_it(
    context: Context, harness: Harness, allow_code: bool, model: dict[str, object], pointer: str
) -> None:
    own = spec(model=model)
    if allow_code:
        assert harness.job(submit(context, own, actor=ADA).id).spec == own
        return
    with pytest.raises(InvalidRequestError, match="TRAINYARD_ALLOW_CODE=true") as refusal:
        submit(context, own, actor=ADA)
    assert [problem.pointer for problem in refusal.value.problems] == [f"/model/{pointer}"]


def test_weights_and_code_must_lie_beneath_known_roots(context: Context) -> None:
    places = {"initial_weights": "hub:llama", "code": "home:code", "hugging_face": "hub:llama"}
    with pytest.raises(InvalidRequestError) as refusal:
        submit(context, spec(model=places), actor=ADA)
    pointers = [problem.pointer for problem in refusal.value.problems]
    named = ("initial_weights", "code", "hugging_face")
    assert {f"/model/{name}" for name in named} <= set(pointers)


def test_only_more_slots_than_ever_registered_are_refused(
    context: Context, harness: Harness
) -> None:
    submit(
        context,
        spec(
            resources={"world_size": 512},
            training={"global_batch_size": 512, "micro_batch_size": 1},
        ),
        actor=ADA,
    )  # before the first node every job waits
    harness.add_node(slots=4)
    larger = spec(resources={"world_size": 5}, training={"micro_batch_size": 1})
    job_id = submit(context, larger, actor=ADA).id  # and so does a job larger than all of them
    assert harness.place() == 0
    assert harness.job(job_id).reason == "needs 5 slots, 4 are online"
    harness.add_node("more", slots=1)
    settings = context.settings.model_copy(update={"max_slots": 8})
    small = Context(settings, context.database, context.clock)
    huge = spec(resources={"world_size": 9}, training={"micro_batch_size": 1})
    for refused in (
        lambda: submit(small, huge, actor=ADA),
        lambda: plan_job(small, huge, actor=ADA),
    ):
        with pytest.raises(InvalidRequestError, match="more than TRAINYARD_MAX_SLOTS=8") as refusal:
            refused()
        assert refusal.value.problems[0].pointer == "/resources/world_size"


def test_a_job_larger_than_all_nodes_is_planned_with_a_warning(
    context: Context, harness: Harness
) -> None:
    harness.add_node(slots=4)
    wanted = spec(
        resources={"world_size": 8, "device": "cuda"},
        training={"micro_batch_size": 1, "param_dtype": "bfloat16"},
        quantization={"recipe": "float8_rowwise"},
    )
    planned = plan_job(context, wanted, actor=ADA)
    assert planned.name == "FSDP 8"
    assert planned.warnings[0].pointer == "/resources/world_size"
    assert "more than the 4 slots of all nodes" in planned.warnings[0].detail


def test_what_no_node_can_compute_is_refused(context: Context, harness: Harness) -> None:
    wanted = spec(quantization={"recipe": "float8_tensorwise"})
    submit(context, wanted, actor=ADA)  # before the first node nothing is known
    harness.add_node("old", device="cuda", device_name="NVIDIA A100-SXM4-80GB")
    for ask_for in (
        lambda: submit(context, wanted, actor=ADA),
        lambda: plan_job(context, wanted, actor=ADA),
    ):
        with pytest.raises(InvalidRequestError, match=r"A100 SXM \(8.0\)") as refusal:
            ask_for()
        assert refusal.value.problems[0].pointer == "/quantization/recipe"
    harness.add_node("new", device="cuda", device_name="NVIDIA H100 80GB HBM3")
    submit(context, wanted, actor=ADA)
    details = " ".join(warning.detail for warning in plan_job(context, wanted, actor=ADA).warnings)
    assert "would fail on nodes with NVIDIA A100-SXM4-80GB" in details


def test_a_repeat_under_the_same_key_is_harmless(context: Context) -> None:
    first = submit(context, spec(), actor=ADA, idempotency_key="k").id
    again = submit(context, spec(), actor=ADA, idempotency_key="k").id
    assert again == first
    assert submit(context, spec(), actor=BOB, idempotency_key="k").id != first
    with pytest.raises(InvalidRequestError, match="another body"):
        submit(context, spec(name="other"), actor=ADA, idempotency_key="k")
    assert count(context, jobs) == 2


def test_a_refused_submission_does_not_take_its_key(context: Context, harness: Harness) -> None:
    harness.add_node("old", device="cuda", device_name="NVIDIA A100-SXM4-80GB")
    wanted = spec(quantization={"recipe": "float8_tensorwise"})
    with pytest.raises(InvalidRequestError):
        submit(context, wanted, actor=ADA, idempotency_key="k")
    assert submit(context, spec(), actor=ADA, idempotency_key="k").id


def test_requests_go_to_a_running_trainer_only(context: Context, harness: Harness) -> None:
    harness.add_node()
    save = Request(kind="save")
    job_id, (supervisor,) = harness.launched()
    with pytest.raises(ConflictError, match="is starting, not running"):
        add_request(context, job_id, save, actor=ADA)
    supervisor.train()
    request_id = add_request(context, job_id, save, actor=ADA)
    for _ in range(15):
        add_request(context, job_id, save, actor=ADA)
    with pytest.raises(ConflictError, match="16 requests wait"):
        add_request(context, job_id, save, actor=ADA)
    supervisor.end("succeeded")
    with context.database.read() as connection:
        row = connection.execute(select(requests).where(requests.c.id == request_id)).one()
    assert row.request == save
    assert not row.answer.ok, "an ended attempt answers what is left"


def test_deleting_leaves_one_event(context: Context, harness: Harness) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running()
    with pytest.raises(ConflictError, match="stop or cancel it first"):
        delete(context, job_id, actor=ADA, checkpoints="keep")
    harness.commit_checkpoint(job_id, 1)
    supervisor.end("succeeded")
    delete(context, job_id, actor=ADA, checkpoints="keep")
    assert harness.kinds(job_id) == ["job_deleted"]
    assert count(context, jobs) == count(context, attempts) == 0


@pytest.mark.integration
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_an_event_of_a_job_that_is_gone_is_stored_under_the_lock_too(
    context: Context, harness: Harness
) -> None:
    """Other events lock by the update of their job's row, which no longer exists here."""
    job_id = harness.submit()
    cancel(context, job_id, actor=ADA, reason="")
    with statements(context) as seen:
        delete(context, job_id, actor=ADA, checkpoints="keep")
    assert any(each.startswith("SELECT pg_advisory_xact_lock") for each in seen), seen


def test_a_deleted_job_leaves_its_key(context: Context) -> None:
    first = submit(context, spec(), actor=ADA, idempotency_key="k").id
    stop(context, first, actor=ADA, reason="")
    delete(context, first, actor=ADA, checkpoints="keep")
    again = submit(context, spec(), actor=ADA, idempotency_key="k").id
    assert again != first
    assert count(context, jobs) == 1


def test_keys_are_forgotten_after_a_week(context: Context, harness: Harness) -> None:
    submit(context, spec(), actor=ADA, idempotency_key="k")
    harness.clock.advance(7 * 24 * 3600 - 1)
    assert forget_old_keys(context) == 0
    harness.clock.advance(2)
    assert forget_old_keys(context) == 1


@pytest.mark.parametrize("verb", [stop, cancel])
def test_verbs_on_nothing(context: Context, verb: object) -> None:
    assert callable(verb)
    with pytest.raises(NotFoundError):
        verb(context, "nothing", actor=ADA, reason="")


def test_higher_priority_starts_first(harness: Harness) -> None:
    harness.add_node(slots=1)
    low = harness.submit()
    harness.clock.advance(1)
    high = harness.submit(resources={"world_size": 1, "priority": 5})
    assert harness.place() == 1
    assert harness.job(high).state == JobState.STARTING
    assert harness.job(low).reason == "needs 1 slot, 0 free, 1 held by tiny"
    harness.place()
    assert harness.kinds(low) == ["submitted"], "why it waits is for live views only"


def test_drained_nodes_take_nothing_new(context: Context, harness: Harness) -> None:
    harness.add_node()
    job_id = harness.submit()
    set_drain(context, "node-1", "finish", actor=ADA)
    assert harness.place() == 0
    assert harness.job(job_id).reason == "no node is online that takes new work"


def count(context: Context, table: Table) -> int:
    with context.database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())
