"""Effects of an engine's answers, and the limits of their proof."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import Engine, event

from server.cluster.nodes.queries import list_nodes
from server.cluster.supply.enroll import claim_request
from server.cluster.supply.service import explain_request
from server.core.context import Context
from server.core.errors import NotFoundError
from server.core.visibility.scope import SYSTEM_SCOPE
from tests.actors import ADA
from tests.server.clock import FakeClock
from tests.server.cluster.supply.site import Site, instance, job
from tests.server.harness import Harness
from trainyard.protocol.node_sources.messages import EngineJob, NeedsLogin, RequestClaim
from trainyard.protocol.worker_messages import PROTOCOL


def test_a_request_follows_its_job(site: Site, clock: FakeClock) -> None:
    request_id = site.ask()
    site.claim(request_id)
    start = clock.now().timestamp()
    site.describe(request_id, "pending", reason="Priority", starts_at=start + 600)
    row = site.request(request_id)
    assert (row.state, row.ref, row.reason) == ("pending", "4711", "Priority")
    assert row.starts_at is not None
    assert row.starts_at.timestamp() == start + 600
    clock.advance(600)
    site.describe(request_id, "running", ends_at=start + 4200)
    row = site.request(request_id)
    assert (row.state, row.started_at, row.reason) == ("running", clock.now(), "")
    site.describe(request_id, "pending", reason="requeued")
    assert site.request(request_id).state == "pending"
    site.describe(request_id, "running")
    site.describe(request_id, "completing")
    assert site.request(request_id).state == "running"
    site.describe(request_id, "ended", gone=True, reason="TIMEOUT")
    row = site.request(request_id)
    assert (row.state, row.ended_at, row.reason) == ("ended", clock.now(), "TIMEOUT")
    assert site.told("nodes_released")[-1] == "1 node of slurm ended: TIMEOUT"
    site.describe(request_id, "running")
    assert site.request(request_id).state == "ended"


def test_a_requeue_that_is_seen_to_complete_brings_the_node_back(
    site: Site, context: Context
) -> None:
    request_id = site.running()
    site.join(request_id)
    # Slurm shows a requeued job as completing until its steps have ended.
    site.describe(request_id, "completing", nodes=[instance()])
    site.describe(request_id, "pending", reason="BeginTime")
    lives = [instance(gone=True), instance(life=1)]
    site.describe(request_id, "running", nodes=lives)
    site.join(request_id, life=1)
    assert site.request(request_id).state == "running"
    (node,) = list_nodes(context, scope=SYSTEM_SCOPE)
    assert (node.online, node.draining) == (True, False)


@pytest.mark.parametrize("how", ["unknown", "missing", "asked", "error"])
def test_an_engine_that_does_not_know_proves_nothing(site: Site, how: str) -> None:
    request_id = site.running()
    match how:
        case "unknown":
            site.describe(request_id, "unknown")
        case "missing":
            site.report(complete=True)
        case "asked":
            site.report(asked=request_id)
        case _:
            site.report(asked=request_id, error="slurmctld is away")
    row = site.request(request_id)
    assert (row.state, row.engine_state) == ("running", "unknown")
    assert row.unknown_since is not None
    site.describe(request_id, "running")
    assert site.request(request_id).unknown_since is None


def test_an_end_without_proof_is_none(site: Site) -> None:
    request_id = site.running()
    site.describe(request_id, "ended", reason="NODE_FAIL")
    assert site.request(request_id).state == "leaving"
    site.describe(request_id, "ended", gone=True)
    assert site.request(request_id).state == "ended"


def test_a_listing_that_failed_names_no_missing_request(site: Site) -> None:
    request_id = site.running()
    site.report(complete=True, error="timed out")
    assert site.request(request_id).engine_state == "running"
    assert site.source().error == "timed out"
    assert site.source().listed_at is None
    site.describe(request_id, "running")
    assert site.source().error == "timed out"  # this call proves nothing of listings
    site.report(job(request_id, "running"), complete=True)
    assert site.source().error is None


def test_the_reply_names_withdrawn_requests_and_orphans(site: Site, context: Context) -> None:
    kept, withdrawn, ended = site.running(), site.running(), site.running()
    site.describe(ended, "ended", gone=True)
    site.withdraw(withdrawn)
    unknown = context.new_id()
    elsewhere = Site(context, name="other").running()
    live = [job(each, "running") for each in (kept, withdrawn, ended, unknown, elsewhere)]
    assert site.report(*live, complete=True) == (withdrawn, *sorted([ended, unknown]))
    assert site.report(job(unknown, "ended", gone=True), complete=True) == (withdrawn,)


def test_a_withdrawn_request_that_never_reached_the_engine_ends(site: Site) -> None:
    request_id = site.ask()
    site.claim(request_id)
    site.report(asked=request_id)
    assert site.request(request_id).state == "wanted"  # it may be about to be submitted
    site.withdraw(request_id)
    site.report(complete=True)
    assert site.request(request_id).state == "leaving"  # listed before it was submitted
    site.report(asked=request_id)
    assert site.request(request_id).state == "ended"


def test_a_refusal_ends_the_request_and_pauses_the_source(site: Site) -> None:
    request_id, other = site.ask(), site.ask()
    site.report(asked=other, error="connection lost")
    assert (site.request(other).state, site.request(other).reason) == ("wanted", "connection lost")
    assert site.source().paused_at is None
    site.report(asked=request_id, error="invalid account", refused=True)
    assert site.request(request_id).state == "ended"
    source = site.source()
    assert (source.paused_by, source.pause_reason) == (
        "server",
        "the engine refuses: invalid account",
    )
    assert site.told("source_changed")[-1] == "slurm is paused: the engine refuses: invalid account"


def test_a_login_that_is_needed_is_shown_until_a_listing_needs_none(site: Site) -> None:
    needs = NeedsLogin(reason="the master connection is gone", command="ssh -MNf login")
    site.report(error="Permission denied", needs_login=needs)
    site.report(error="Permission denied", needs_login=needs)
    request_id = site.ask()
    site.claim(request_id)
    withdrawn = job(request_id, "ended", gone=True, reason="withdrawn before it was submitted")
    site.report(withdrawn, asked=request_id)  # without a call of the engine
    site.report(error="timed out")
    assert site.source().needs_login == needs
    site.report(complete=True, needs_login=needs)  # all machines except one answer
    assert (site.source().needs_login, site.source().error) == (needs, None)
    site.report(complete=True)
    assert site.source().needs_login is None
    assert site.told("source_changed")[1:] == [
        "source slurm needs a login: the master connection is gone",
        "source slurm is back",
    ]


def test_an_explanation_becomes_the_reason(site: Site, context: Context) -> None:
    request_id = site.running()
    why = "waits for 3 jobs of higher priority"
    site.report(asked=request_id, explanation=why)
    row = site.request(request_id)
    assert (row.explanation, row.engine_state) == (why, "running")
    explain_request(context, "slurm", request_id, actor=ADA)
    site.report(job(request_id, "running"), asked=request_id)  # the answer to another call
    assert site.request(request_id).ask == "explain"
    site.report(asked=request_id, explanation=why)
    assert site.request(request_id).ask is None
    site.describe(request_id, "running")
    assert site.request(request_id).explanation == why
    site.describe(request_id, "completing")
    assert site.request(request_id).explanation is None


def test_our_reason_stays_where_the_engine_has_none(site: Site) -> None:
    request_id = site.running()
    site.withdraw(request_id)
    site.describe(request_id, "running")
    assert site.request(request_id).reason == "not needed"
    site.describe(request_id, "completing", reason="COMPLETING")
    assert site.request(request_id).reason == "COMPLETING"
    other = site.running()
    site.withdraw(other)
    site.describe(other, "ended", gone=True)
    assert site.request(other).reason == "not needed"
    assert site.told("nodes_released")[-1] == "1 node of slurm ended: not needed"


def test_times_that_are_none_are_not_stored(site: Site) -> None:
    request_id = site.ask()
    site.claim(request_id)
    never = datetime.max.replace(tzinfo=UTC).timestamp() * 10
    site.describe(request_id, "running", ends_at=never)
    assert site.request(request_id).ends_at is None


def test_the_engine_names_the_instance_that_may_join(site: Site) -> None:
    request_id = site.running(2)
    pilot = site.pilot(request_id, 1)
    assert (pilot.named, pilot.addresses) == ("4711.0.1", ["10.0.0.2"])
    lives = [instance(1, gone=True), instance(1, life=1)]
    site.describe(request_id, "running", nodes=lives)
    assert site.pilot(request_id, 1).named == "4711.1.1"
    site.describe(request_id, "unknown", nodes=[instance(1, life=2)])
    assert site.pilot(request_id, 1).named == "4711.1.1"


def test_a_source_proves_nothing_of_another_ones_nodes(
    site: Site, context: Context, harness: Harness
) -> None:
    request_id = site.running()
    site.join(request_id)
    job_id = harness.submit()
    assert harness.place() == 1
    harness.claim_all(job_id)
    thief, before = Site(context, name="other"), site.request(request_id)
    lies = [instance(gone=True), instance(life=1, addresses=("10.9.9.9",))]
    lie = job(request_id, "ended", gone=True, nodes=lies, ends_at=1.0)
    assert thief.report(lie, complete=True, asked=request_id) == ()
    for more in ({"error": "x", "refused": True}, {"explanation": "x"}):
        thief.report(asked=request_id, **more)
    with pytest.raises(NotFoundError, match="source 'other' has no request"):
        claim_request(
            context,
            request_id,
            RequestClaim(protocol=PROTOCOL, source="other", secret_hashes=("0" * 64,)),
        )
    assert site.request(request_id) == before
    assert site.pilot(request_id).named == "4711.0.0"
    assert site.source().paused_at is None
    assert harness.attempt(job_id).state != "ended"


def test_what_an_earlier_part_of_a_long_answer_described_is_not_missing(site: Site) -> None:
    first, last, missing = site.running(), site.running(), site.running()
    site.describe(first, "running")
    site.report(job(last, "running"), earlier=(first,), complete=True)
    states = {each: site.request(each).engine_state for each in (first, last, missing)}
    assert states == {first: "running", last: "running", missing: "unknown"}


@pytest.mark.parametrize(
    "changes",
    [
        {"ref": "4711\x1b[2J"},
        {"ref": "4711\n"},
        {"nodes": [instance(host="\x1b]0;x\x07")]},
        {"nodes": [instance(addresses=("10.0.0.1\x00",))]},
        {"reason": "Priority\x1b[31m"},
        {"starts_at": float("nan")},
        {"ends_at": -1.0},
    ],
)
def test_what_no_terminal_may_show_and_no_time_is_refused(
    site: Site, changes: dict[str, Any]
) -> None:
    request_id = site.ask()
    site.claim(request_id)
    with pytest.raises(ValidationError):
        site.describe(request_id, "running", **changes)
    markup = "<script>alert(1)</script>"  # text, which pages and terminals show unchanged
    site.describe(request_id, "pending", reason=markup)
    assert site.request(request_id).reason == markup


@pytest.mark.parametrize("state", ["running", "lost", "ended"])
def test_a_report_takes_as_many_statements_for_many_jobs_as_for_one(
    site: Site, context: Context, state: str
) -> None:
    def described(request_id: str) -> EngineJob:
        if state == "running":
            return job(request_id, "running", nodes=[instance()])
        return job(request_id, "ended", gone=state == "ended", reason="TIMEOUT")

    def statements(count: int) -> int:
        ids = [site.running() for _ in range(count)]
        for each in ids:
            site.join(each)
        executed: list[str] = []

        def note(*args: object) -> None:
            executed.append(str(args[2]))

        engine: Engine = context.database.engine
        event.listen(engine, "before_cursor_execute", note)
        try:
            site.report(*map(described, ids))
        finally:
            event.remove(engine, "before_cursor_execute", note)
        return len(executed)

    assert statements(1) == statements(20)
