"""Registration of sources: tokens, and takeovers."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from server.cluster.supply.rows import ONLINE_FOR
from server.core.context import Context
from server.core.errors import (
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    UnauthenticatedError,
)
from server.scheduler.autoscaling.leave_before_end import LeaveKeeper
from tests.actors import authenticate_token
from tests.server.clock import FakeClock
from tests.server.cluster.supply.site import Site, instance, join_token
from tests.server.harness import Harness
from trainyard.protocol.node_sources.messages import LONGEST_SECONDS, MAX_NODE_HOURS


def test_a_join_token_takes_in_one_source(site: Site, context: Context) -> None:
    assert site.token.startswith("ty_source_")
    assert site.principal.source == "slurm"
    assert site.source().shape.slots == 4
    assert site.told("source_changed") == [
        "source slurm is registered: nodes of 4 cpu slots, at most 16"
    ]


def test_a_source_registers_again_and_changes_its_settings(site: Site) -> None:
    assert site.register(site.principal) is None
    assert len(site.told("source_changed")) == 1  # nothing changed
    site.register(site.principal, limits={"nodes": 32})
    assert site.source().limits.nodes == 32
    assert len(site.told("source_changed")) == 2


def test_a_token_belongs_to_one_source(site: Site) -> None:
    with pytest.raises(ForbiddenError, match=r"token of source 'slurm', not of 'other'"):
        site.register(site.principal, name="other")
    with pytest.raises(InvalidRequestError, match=r"/protocol: 2 is not understood"):
        site.register(site.principal, protocol=2)


@pytest.mark.parametrize("value", [1e308, float("nan"), float("inf"), -1.0, LONGEST_SECONDS * 2])
@pytest.mark.parametrize(
    "field", ["request_seconds", "idle_seconds", "leave_seconds", "node_hours_per_month"]
)
def test_a_time_that_no_calendar_has_is_refused(site: Site, field: str, value: float) -> None:
    is_limit = field == "node_hours_per_month"
    if is_limit and value == LONGEST_SECONDS * 2:
        return
    with pytest.raises(ValidationError, match=field):
        site.register(
            site.principal, **({"limits": {field: value}} if is_limit else {field: value})
        )


def test_the_longest_settings_stop_no_round_of_the_scheduler(
    context: Context, harness: Harness
) -> None:
    longest = dict.fromkeys(("request_seconds", "idle_seconds", "leave_seconds"), LONGEST_SECONDS)
    limits = {"node_hours_per_month": MAX_NODE_HOURS}
    site = Site(context, **longest, limits=limits)
    request_id = site.running()
    end = context.now().timestamp() + 3600
    site.describe(request_id, "running", nodes=[instance()], ends_at=end)
    site.join(request_id)
    harness.submit()
    assert LeaveKeeper(context).run() == 1
    assert harness.place() == 0


def test_a_source_whose_provisioner_answers_is_not_taken_over(
    site: Site, context: Context, clock: FakeClock
) -> None:
    with pytest.raises(ConflictError, match=r"a provisioner serves source 'slurm'"):
        site.register(authenticate_token(context, join_token(context)))
    clock.advance(ONLINE_FOR.total_seconds() + 1)
    token = site.register(authenticate_token(context, join_token(context)))
    assert token is not None
    assert authenticate_token(context, token).source == "slurm"
    with pytest.raises(UnauthenticatedError):
        authenticate_token(context, site.token)


def test_an_engine_is_not_changed_under_open_requests(site: Site) -> None:
    request_id = site.ask()
    with pytest.raises(ConflictError, match=r"has 1 open requests in slurm"):
        site.register(site.principal, kind="ssh")
    site.withdraw(request_id)
    site.register(site.principal, kind="ssh")
    assert site.source().kind == "ssh"
