"""Commands in running attempts: requested, ordered, carried byte by byte, ended, and audited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy import select

from server.api.auth.tokens import hash_token
from server.core.context import Context
from server.core.database.tables import attempts, events
from server.core.errors import ConflictError, ForbiddenError, InvalidRequestError, NotFoundError
from server.jobs.attempts.reports import ReportedShare, authenticate_share
from server.jobs.shells import service, worker_api
from server.telemetry.ingest.receive import store_report
from tests.actors import ADA, ADMIN, EVE, NO_TOKEN, SAME_NAME
from tests.server.clock import FakeClock
from tests.server.harness import BRINGS_CODE, Harness, Launched, Supervisor
from trainyard.protocol.shell_sessions.messages import (
    INPUT_BYTES,
    WINDOW_BYTES,
    ShellExit,
    ShellInputReply,
    ShellInputRequest,
    ShellOrder,
    ShellOutputMessage,
    ShellOutputReply,
    Terminal,
)
from trainyard.protocol.shell_sessions.views import (
    ShellInput,
    ShellOutput,
    ShellRequest,
    ShellView,
)
from trainyard.protocol.worker_messages import PROTOCOL, Report, ReportReply

LS = ShellRequest(argv=("ls", "-l"))


def share_of(context: Context, supervisor: Supervisor) -> ReportedShare:
    token = hash_token(supervisor.reply.attempt_token)
    return authenticate_share(context, supervisor.attempt_id, token)


def orders(context: Context, supervisor: Supervisor) -> tuple[ShellOrder, ...]:
    report = Report(protocol=PROTOCOL, node=supervisor.node, identity=supervisor.identity)
    reply: ReportReply = store_report(context, share_of(context, supervisor), report)
    return reply.shells


def tell(
    context: Context, supervisor: Supervisor, *, shell_id: str, content: bytes = b"", **more: Any
) -> ShellOutputReply:
    message = ShellOutputMessage(protocol=PROTOCOL, content=content, **{"start": 0, **more})
    return worker_api.store_output(
        context, share_of(context, supervisor), shell_id=shell_id, message=message
    )


def given(
    context: Context, supervisor: Supervisor, *, shell_id: str, start: int = 0
) -> ShellInputReply:
    request = ShellInputRequest(protocol=PROTOCOL, start=start)
    return worker_api.read_input(
        context, share_of(context, supervisor), shell_id=shell_id, request=request
    )


def seen(context: Context, shell: ShellView, start: int = 0) -> ShellOutput:
    return service.read_output(context, shell.job_id, shell.id, start=start, actor=ADA)


@pytest.fixture
def running(launched: Launched) -> Launched:
    """A training job, with its supervisor."""
    launched[1].train()
    return launched


@pytest.fixture
def shell(context: Context, running: Launched) -> ShellView:
    """A command that its node has started."""
    job_id, supervisor = running
    made = service.open_shell(context, job_id, LS, actor=ADA)
    tell(context, supervisor, shell_id=made.id)
    return made


def test_a_server_that_takes_no_code_runs_no_command(context: Context, running: Launched) -> None:
    with pytest.raises(InvalidRequestError, match="TRAINYARD_ALLOW_CODE"):
        service.open_shell(context, running[0], LS, actor=ADA)


@BRINGS_CODE
def test_a_command_is_ordered_until_its_supervisor_reports_it(
    context: Context, running: Launched
) -> None:
    job_id, supervisor = running
    assert orders(context, supervisor) == ()
    terminal = Terminal(rows=40, columns=120, kind="xterm-256color")
    request = ShellRequest(argv=("sh", "-c", "a  b"), terminal=terminal, rank=0)
    made = service.open_shell(context, job_id, request, actor=ADA)
    assert (made.node, made.attempt, made.started_at) == (supervisor.node, 1, None)
    expected = ShellOrder(id=made.id, argv=("sh", "-c", "a  b"), terminal=terminal, rank=0)
    for _ in range(2):
        assert orders(context, supervisor) == (expected,)
    tell(context, supervisor, shell_id=made.id)
    assert orders(context, supervisor) == ()
    assert seen(context, made).shell.started_at is not None


@BRINGS_CODE
def test_output_and_input_arrive_once_though_messages_are_doubled(
    context: Context, running: Launched, shell: ShellView
) -> None:
    _, supervisor = running
    for _ in range(2):
        assert tell(context, supervisor, shell_id=shell.id, content=b"one\n").stored == 4
    assert tell(context, supervisor, shell_id=shell.id, content=b"one\ntwo\n").stored == 8
    assert tell(context, supervisor, shell_id=shell.id, content=b"late", start=20).stored == 8
    assert seen(context, shell).content == b"one\ntwo\n"
    assert (seen(context, shell, 4).content, seen(context, shell, 4).start) == (b"two\n", 4)
    assert seen(context, shell, 8).content == b""
    for _ in range(2):
        body = ShellInput(content=b"yes\n", end=True)
        stored = service.store_input(
            context, shell.job_id, shell_id=shell.id, given=body, actor=ADA
        )
        assert stored.stored == 4
    reply = given(context, supervisor, shell_id=shell.id)
    assert (reply.content, reply.end, reply.wanted) == (b"yes\n", True, True)
    assert given(context, supervisor, shell_id=shell.id, start=4).content == b""


@BRINGS_CODE
def test_a_row_holds_no_more_than_a_window_of_each_stream(
    context: Context, running: Launched, shell: ShellView
) -> None:
    _, supervisor = running
    assert (
        tell(context, supervisor, shell_id=shell.id, content=b"x" * WINDOW_BYTES).stored
        == WINDOW_BYTES
    )
    more = {"start": WINDOW_BYTES}
    assert (
        tell(context, supervisor, shell_id=shell.id, content=b"rest", **more).stored == WINDOW_BYTES
    )
    assert len(seen(context, shell).content) == WINDOW_BYTES
    seen(context, shell, WINDOW_BYTES - 1)
    assert (
        tell(context, supervisor, shell_id=shell.id, content=b"rest", **more).stored
        == WINDOW_BYTES + 4
    )
    assert seen(context, shell, WINDOW_BYTES).content == b"rest"
    for start, expected in ((0, INPUT_BYTES), (INPUT_BYTES, INPUT_BYTES)):
        body = ShellInput(start=start, content=b"y" * INPUT_BYTES, end=start > 0)
        stored = service.store_input(
            context, shell.job_id, shell_id=shell.id, given=body, actor=ADA
        )
        assert stored.stored == expected
    assert not given(context, supervisor, shell_id=shell.id).end


@BRINGS_CODE
def test_the_size_of_the_terminal_is_news(
    context: Context, running: Launched, shell: ShellView
) -> None:
    wide = Terminal(columns=200)
    service.store_input(
        context, shell.job_id, shell_id=shell.id, given=ShellInput(terminal=wide), actor=ADA
    )
    request = ShellInputRequest(protocol=PROTOCOL, start=0)
    reply = given(context, running[1], shell_id=shell.id)
    assert reply.terminal == wide
    assert worker_api.is_news(reply, request)
    known = request.model_copy(update={"terminal": wide})
    assert not worker_api.is_news(reply, known)


@BRINGS_CODE
def test_request_and_end_are_events_without_credentials(
    context: Context, running: Launched
) -> None:
    job_id, supervisor = running
    argv = ("git", "pull", "https://ada:hunter2@host/x")
    made = service.open_shell(context, job_id, ShellRequest(argv=argv), actor=ADA)
    tell(context, supervisor, shell_id=made.id, content=b"bye", exit=ShellExit(exit_code=3))
    tell(context, supervisor, shell_id=made.id, exit=ShellExit(exit_code=3))
    columns = (events.c.kind, events.c.actor, events.c.node, events.c.message, events.c.data)
    with context.database.read() as connection:
        kept = connection.execute(select(*columns).order_by(events.c.id)).all()
    opened, closed = (row for row in kept if row.kind in {"shell_opened", "shell_closed"})
    assert (opened.actor, opened.node) == (ADA.name, supervisor.node)
    assert opened.data["argv"] == ["git", "pull", "https://********@host/x"]
    assert "hunter2" not in opened.message + closed.message
    assert (closed.actor, closed.data["exit_code"]) == (supervisor.node, 3)
    ended = seen(context, made)
    assert (ended.content, ended.shell.exit_code, ended.shell.failure) == (b"bye", 3, None)
    assert ended.shell.ended_at is not None
    assert not tell(context, supervisor, shell_id=made.id, content=b"more").wanted


@BRINGS_CODE
def test_only_who_requested_a_command_reads_and_writes_it(
    context: Context, shell: ShellView
) -> None:
    job_id = shell.job_id
    with pytest.raises(ForbiddenError):
        service.read_output(context, job_id, shell.id, start=0, actor=EVE)
    with pytest.raises(ForbiddenError):
        service.store_input(context, job_id, shell_id=shell.id, given=ShellInput(), actor=EVE)
    with pytest.raises(ForbiddenError):
        service.close_shell(context, job_id, shell.id, actor=EVE)
    with pytest.raises(NotFoundError):
        service.close_shell(context, shell.id, shell.id, actor=ADA)


@BRINGS_CODE
def test_only_who_submitted_the_job_and_the_admin_run_a_command(
    context: Context, running: Launched
) -> None:
    job_id, supervisor = running
    for other in (EVE, SAME_NAME, NO_TOKEN):
        with pytest.raises(ForbiddenError, match="with which ada submitted"):
            service.open_shell(context, job_id, LS, actor=other)
    assert orders(context, supervisor) == ()
    service.open_shell(context, job_id, LS, actor=ADA)
    service.open_shell(context, job_id, LS, actor=ADMIN)
    with context.database.read() as connection:
        opened = events.c.kind == "shell_opened"
        messages = connection.scalars(select(events.c.message).where(opened).order_by(events.c.id))
        assert list(messages) == [
            f"ada, the owner of the job, runs on {supervisor.node}: ls -l",
            f"admin, an admin, in the job of ada, runs on {supervisor.node}: ls -l",
        ]


@BRINGS_CODE
def test_a_job_that_was_never_placed_runs_no_command(context: Context, harness: Harness) -> None:
    job_id = harness.submit()
    with pytest.raises(ForbiddenError, match="with which ada submitted"):
        service.open_shell(context, job_id, LS, actor=EVE)
    with pytest.raises(ConflictError, match="tiny is queued, not running"):
        service.open_shell(context, job_id, LS, actor=ADA)


@BRINGS_CODE
def test_another_token_of_the_same_name_reads_nothing(context: Context, shell: ShellView) -> None:
    for other in (SAME_NAME, ADMIN):
        with pytest.raises(ForbiddenError, match="its output is private"):
            service.read_output(context, shell.job_id, shell.id, start=0, actor=other)


@BRINGS_CODE
def test_a_command_taints_the_attempt_before_it_is_ordered(
    context: Context, harness: Harness, running: Launched
) -> None:
    job_id, supervisor = running

    def tainted() -> bool:
        with context.database.read() as connection:
            return bool(connection.scalar(select(attempts.c.tainted)))

    assert not tainted()
    with pytest.raises(ForbiddenError):
        service.open_shell(context, job_id, LS, actor=EVE)
    assert not tainted()
    made = service.open_shell(context, job_id, LS, actor=ADA)
    assert tainted()
    tell(context, supervisor, shell_id=made.id, exit=ShellExit(exit_code=0))
    supervisor.end("succeeded")
    assert tainted()


@BRINGS_CODE
def test_a_person_has_a_limited_number_of_commands_in_all_attempts(
    context: Context, running: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_OPEN_OF_PERSON", 2)
    job_id, _ = running
    for _ in range(2):
        service.open_shell(context, job_id, LS, actor=ADA)
    with pytest.raises(ConflictError, match="2 commands of ada are running"):
        service.open_shell(context, job_id, LS, actor=ADA)
    service.open_shell(context, job_id, LS, actor=ADMIN)


@BRINGS_CODE
def test_a_closed_command_is_not_wanted(
    context: Context, running: Launched, shell: ShellView
) -> None:
    service.close_shell(context, shell.job_id, shell.id, actor=ADA)
    assert not tell(context, running[1], shell_id=shell.id).wanted
    assert not given(context, running[1], shell_id=shell.id).wanted
    with pytest.raises(ConflictError, match="was closed"):
        service.store_input(context, shell.job_id, shell_id=shell.id, given=ShellInput(), actor=ADA)


@BRINGS_CODE
def test_a_command_whose_output_nobody_reads_is_not_wanted(
    context: Context, clock: FakeClock, running: Launched, shell: ShellView
) -> None:
    clock.advance(40)
    seen(context, shell)
    clock.advance(40)
    assert tell(context, running[1], shell_id=shell.id).wanted
    clock.advance(25)
    assert not tell(context, running[1], shell_id=shell.id).wanted


@BRINGS_CODE
def test_a_command_has_a_time_limit(context: Context, clock: FakeClock, running: Launched) -> None:
    request = ShellRequest(argv=("sleep", "9"), seconds=30)
    made = service.open_shell(context, running[0], request, actor=ADA)
    assert tell(context, running[1], shell_id=made.id).wanted
    clock.advance(31)
    assert not tell(context, running[1], shell_id=made.id).wanted


@BRINGS_CODE
def test_a_command_that_no_node_starts_has_failed(
    context: Context, clock: FakeClock, running: Launched
) -> None:
    made = service.open_shell(context, running[0], LS, actor=ADA)
    clock.advance(61)
    ended = seen(context, made).shell
    assert ended.ended_at is not None
    assert "did not start the command within 60 s" in str(ended.failure)
    assert orders(context, running[1]) == ()


@BRINGS_CODE
def test_a_command_ends_with_its_attempt(
    context: Context, running: Launched, shell: ShellView
) -> None:
    running[1].end("succeeded")
    ended = seen(context, shell).shell
    assert "the attempt has ended on node-1" in str(ended.failure)
    with pytest.raises(ConflictError, match="not running"):
        service.open_shell(context, shell.job_id, LS, actor=ADA)


@BRINGS_CODE
def test_an_attempt_runs_few_commands_at_once(context: Context, running: Launched) -> None:
    job_id, supervisor = running
    made = [service.open_shell(context, job_id, LS, actor=ADA) for _ in range(service.MAX_OPEN)]
    with pytest.raises(ConflictError, match="4 commands"):
        service.open_shell(context, job_id, LS, actor=ADA)
    tell(context, supervisor, shell_id=made[0].id, exit=ShellExit(exit_code=0))
    service.open_shell(context, job_id, LS, actor=ADA)


@BRINGS_CODE
def test_a_rank_names_its_node(context: Context, harness: Harness) -> None:
    for name in ("node-1", "node-2"):
        harness.add_node(name, slots=2)
    job_id, supervisors = harness.launched(resources={"world_size": 4, "nodes": 2})
    for supervisor in supervisors:
        supervisor.train()
    by_rank = {supervisor.reply.node_rank: supervisor for supervisor in supervisors}

    def node_of(**named: Any) -> str:
        request = ShellRequest(argv=("ls",), **named)
        return service.open_shell(context, job_id, request, actor=ADA).node

    assert node_of() == node_of(rank=1) == by_rank[0].node
    assert node_of(rank=2) == by_rank[1].node
    made = service.open_shell(
        context, job_id, ShellRequest(argv=("ls",), node=by_rank[1].node), actor=ADA
    )
    assert made.id in {order.id for order in orders(context, by_rank[1])}
    assert made.id not in {order.id for order in orders(context, by_rank[0])}
    with pytest.raises(NotFoundError):
        tell(context, by_rank[0], shell_id=made.id)
    refused: Mapping[str, dict[str, Any]] = {
        "rank=4 of ranks 0 to 3": {"rank": 4},
        "node='elsewhere' is none of": {"node": "elsewhere"},
        "rank 0 runs on": {"rank": 0, "node": by_rank[1].node},
    }
    for message, named in refused.items():
        with pytest.raises(InvalidRequestError, match=message):
            node_of(**named)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "argv is empty"),
        ({"argv": ("",)}, "argv.0. is empty"),
        ({"argv": ("a\0b",)}, "control character"),
        ({"argv": ("ls",), "seconds": 0}, "greater than or equal to 1"),
    ],
)
def test_a_request_that_runs_nothing_is_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ShellRequest(**body)
