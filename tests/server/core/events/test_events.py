"""Events: each kind has a typed view, the only form that writers store; old rows stay readable."""

from __future__ import annotations

import ast
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import insert

from server.app.factory import document
from server.core.context import Context
from server.core.database.tables import events
from server.core.events.notices import notify, read_notices
from server.core.events.store import NewEvent, append_event
from server.core.events.tail import notice_frame, read_frames
from server.core.subject import Subject
from server.core.visibility.scope import SYSTEM_SCOPE
from server.telemetry.ingest.parse import event_line
from tests.actors import TESTER
from trainyard.protocol.event_kinds import EventData, EventKind, NoticeKind
from trainyard.protocol.job_artifacts.events import ArtifactsStored, OutputDropped
from trainyard.protocol.manifest import SaveFailed, SaveSettled
from trainyard.protocol.node_sources.views import NodesReleased, NodesRequested, SourceChanged
from trainyard.protocol.operations import OperationKind, OperationProgress
from trainyard.protocol.rest import event_data as data
from trainyard.protocol.rest import metrics_and_logs as ranks
from trainyard.protocol.rest.events import (
    KIND_OF,
    NOTICE_KIND_OF,
    AnyEvent,
    EventView,
    Notice,
    StreamItem,
    UnknownEvent,
)
from trainyard.protocol.rest.jobs import Progress, SizeChange
from trainyard.protocol.rest.nodes import (
    NodeDrained,
    NodeLabeled,
    NodeOffline,
    NodeOnline,
    NodeRegistered,
)
from trainyard.protocol.rest.projects import ProjectChanged, ProjectRole, ProjectSettings
from trainyard.protocol.shell_sessions.views import ShellClosed, ShellOpened
from trainyard.protocol.states import AttemptCause, AttemptOutcome, JobState, OperationState
from trainyard.protocol.user_accounts.members import (
    LimitsChanged,
    MembersChanged,
    OwnerChanged,
    ServiceTokenChanged,
    UserLimits,
)
from trainyard.protocol.user_accounts.secret_views import (
    DeliveredSecret,
    SecretChanged,
    SecretsDelivered,
)
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.directory import Phase
from trainyard.run.failures import Failure, FailureReason

SERVER = Path(__file__).parents[4] / "server"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
STRICT: TypeAdapter[EventView] = TypeAdapter(EventView)
ITEM: TypeAdapter[StreamItem] = TypeAdapter(StreamItem)
LENIENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)
FAILURE = Failure(reason=FailureReason.HANG, message="rank 1 is silent")
OPERATION: dict[str, Any] = {
    "operation_id": "c1",
    "kind": OperationKind.VERIFY,
    "checkpoint_id": "j.a1.step-4",
}
TIMES: dict[str, Any] = {"failing_since": NOW, "next_try_at": NOW, "give_up_at": NOW}
EXAMPLES: tuple[EventData, ...] = (
    data.Submitted(world_size=2, layout="FSDP 2"),
    data.Queued(cause=AttemptCause.RETRY, not_before=NOW, reason="hang"),
    data.Placed(layout="FSDP 2", nodes=("a",), parent_checkpoint_id=None, start_step=0),
    data.Claimed(),
    data.Running(),
    data.WeightsLoaded(place="data:weights", files=(), step=0, time=1.0),
    data.Resumed(checkpoint_id="j.a1.step-4", step=4, time=1.0),
    data.StopRequested(reason="enough"),
    data.StopAgreed(step=4, time=1.0),
    data.CancelRequested(reason="enough", lost="4 steps"),
    data.PriorityChanged(before=0, priority=50),
    SizeChange(at=NOW, before=6, world_size=4, reason="c is silent"),
    data.RolledBack(
        checkpoint_id=None, step=0, window=(8, 16), reason=FailureReason.NON_FINITE_LOSS
    ),
    data.ResumeRequested(world_size=4, layout="FSDP 4", checkpoint_id=None, branch=False),
    data.NodeEnded(outcome=AttemptOutcome.FAILED, failure=FAILURE),
    data.AttemptEnded(outcome=AttemptOutcome.FAILED, failure=FAILURE),
    data.JobEnded(state=JobState.FAILED, reason="hang"),
    data.Unreachable(),
    data.Reachable(),
    data.CheckpointCommitted(checkpoint_id="j.a1.step-4", step=4, size=1, kind="interval"),
    SaveFailed(kind="interval", message="full", tries=1, saved_step=0, step=4, **TIMES),
    data.CheckpointDamaged(checkpoint_id="j.a1.step-4", fault=CheckpointFault.FILE_MISSING),
    data.CheckpointPinned(checkpoint_id="j.a1.step-4", pinned=True),
    data.OperationQueued(**OPERATION, reason="asked for"),
    data.OperationStarted(**OPERATION, fence=1),
    data.OperationEnded(**OPERATION, state=OperationState.SUCCEEDED, ok=True),
    data.ContinuityChecked(ok=True, step=5, checks=()),
    data.RequestAnswered(request_id="r1", ok=True, message="saved"),
    data.LineSkipped(file="metrics.jsonl", offset=0, error="no record"),
    data.MetricsDropped(what="series", limit=2000, first="train/x"),
    OutputDropped(what="artifacts", reason="disk_full", first="samples/a"),
    ranks.StragglerFound(rank=1, kind="data", factor=1.5, share=0.2, step=9, time=1.0),
    ranks.StragglerGone(rank=1, step=20, time=1.0),
    NodeRegistered(slots=2, device="cpu"),
    NodeOnline(),
    NodeOffline(),
    NodeDrained(draining=True, running="finish", reasons=("Xid 79",)),
    NodeLabeled(changed={"zone": "a", "rack": None}),
    data.JobDeleted(),
    data.Imported(tool="wandb", run_id="9dcz13mm", points=3),
    ProjectChanged(project="vision", before=None, after=ProjectSettings(weight=2.0, max_slots=16)),
    MembersChanged(project="vision", user="ada", before=None, after=ProjectRole.MEMBER),
    ServiceTokenChanged(project="vision", user="nightly@vision", token="ci", revoked=False),
    LimitsChanged(project="vision", user=None, before=UserLimits(), after=UserLimits(max_slots=8)),
    OwnerChanged(before="ada", owner="bob"),
    SecretChanged(project="vision", name="hf", version=2),
    SecretsDelivered(
        secrets=(DeliveredSecret(variable="HF_TOKEN", name="hf", of="project", version=2),)
    ),
    SourceChanged(source="slurm", online=True, paused=False, needs_login=False),
    NodesRequested(request_id="r1", source="slurm", nodes=2),
    NodesReleased(request_id="r1", source="slurm", nodes=2, ended=True),
    ShellOpened(shell_id="s1", argv=("ls", "-l"), rank=1),
    ShellClosed(shell_id="s1", exit_code=0),
)
NOTICES: tuple[EventData, ...] = (
    ranks.FactsStored(config=3, summary=1),
    data.Waiting(reason="needs 2 slots, 1 free"),
    data.PhaseEntered(phase=Phase.SAVING),
    SaveSettled(checkpoint_id="j.a1.step-4", stall_seconds=0.5),
    data.OperationWaiting(**OPERATION, waiting="no node sees the root"),
    data.OperationProgressed(
        **OPERATION, progress=OperationProgress(doing="reads", done=1, total=2)
    ),
    data.MetricsStored(step=5, values={"train/loss": math.nan}, progress=Progress(steps=10)),
    ranks.RankTimesStored(step=9),
    ArtifactsStored(count=2, group="image"),
    data.LogStored(rank=0, lines=3),
)


def on_the_wire(context: Context) -> list[str]:
    """Return every stored event as the stream and the list encode it, the oldest first."""
    with context.database.read() as connection:
        frames = read_frames(connection, after=0, scope=SYSTEM_SCOPE)
    return [frame.content.decode().split("\ndata: ")[1].strip() for frame in frames]


def store(context: Context, kind: str, content: dict[str, Any]) -> None:
    """Store a row in the form of another version."""
    row = {"at": context.now(), "kind": kind, "actor": "test", "message": "m", "data": content}
    with context.database.write() as connection:
        connection.execute(insert(events).values(row))


def test_every_kind_has_a_view_of_its_own() -> None:
    assert sorted(KIND_OF.values()) == sorted(EventKind)
    assert {type(example) for example in EXAMPLES} == set(KIND_OF)
    assert sorted(NOTICE_KIND_OF.values()) == sorted(NoticeKind)
    assert {type(example) for example in NOTICES} == set(NOTICE_KIND_OF)
    assert not set(EventKind) & set(NoticeKind)


def test_what_is_written_of_each_kind_is_read_as_its_view(context: Context) -> None:
    with context.database.write() as connection:
        for example in EXAMPLES:
            event = NewEvent(example, TESTER, Subject("j"), "m")
            append_event(context, connection, event)
    read = [STRICT.validate_json(text) for text in on_the_wire(context)]
    assert [event.kind for event in read] == [KIND_OF[type(example)] for example in EXAMPLES]
    assert [type(event.data) for event in read] == [type(example) for example in EXAMPLES]
    written = [example.model_dump_json() for example in EXAMPLES]
    assert [event.data.model_dump_json() for event in read] == written


def test_what_is_noticed_of_each_kind_is_read_as_its_view(context: Context) -> None:
    with context.database.write() as connection:
        for example in NOTICES:
            notify(context, connection, subject=Subject("j", 2, "a"), data=example)
    with context.database.read() as connection:
        rows = read_notices(connection, since=context.now(), job_id="j", scope=SYSTEM_SCOPE)
    texts = [notice_frame(row).content.decode() for row in rows]
    assert all(text.startswith("data: ") for text in texts), "without an id"
    read = [ITEM.validate_json(text.removeprefix("data: ")) for text in texts]
    by_kind = {notice.kind: notice for notice in read}
    assert len(by_kind) == len(NOTICES)
    for example in NOTICES:
        notice = by_kind[NOTICE_KIND_OF[type(example)]]
        assert isinstance(notice, Notice)
        assert (notice.job_id, notice.attempt, notice.node) == ("j", 2, "a")
        assert notice.data.model_dump_json() == example.model_dump_json()


def test_a_writer_cannot_store_what_is_not_declared(context: Context) -> None:
    with pytest.raises(ValidationError, match="why\n  Extra inputs are not permitted"):
        data.Claimed(why="mypy refuses this too")  # type: ignore[call-arg]
    event = NewEvent(EventData(), TESTER, Subject(), "of no kind")
    with context.database.write() as connection, pytest.raises(KeyError):
        append_event(context, connection, event)


def test_the_server_writes_events_through_one_door_and_every_kind() -> None:
    sources = {path: path.read_text() for path in SERVER.rglob("*.py")}
    inserting = {path.name for path, text in sources.items() if "insert(events)" in text}
    assert inserting == {"store.py"}
    used = {
        node.id
        for text in sources.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name)
    }
    assert {model.__name__ for model in (*KIND_OF, *NOTICE_KIND_OF)} <= used


def test_the_document_discriminates_events_by_their_kind() -> None:
    described = document()
    schemas = described["components"]["schemas"]
    for name, kinds in (("EventView", KIND_OF), ("NoticeView", NOTICE_KIND_OF)):
        discriminator = schemas[name]["discriminator"]
        assert discriminator["propertyName"] == "kind"
        assert set(discriminator["mapping"]) == set(kinds.values())
        assert {one["$ref"] for one in schemas[name]["oneOf"]} == set(
            discriminator["mapping"].values()
        )
        for model, kind in kinds.items():
            member = schemas[discriminator["mapping"][kind].rsplit("/", 1)[1]]["properties"]
            assert member["kind"]["const"] == kind
            assert member["data"]["$ref"].endswith(f"/{model.__name__}")
    view = {"$ref": "#/components/schemas/EventView"}
    assert schemas["Page_EventView_"]["properties"]["items"]["items"] == view
    stream = described["paths"]["/api/v1/stream"]["get"]["responses"]["200"]
    frame = stream["content"]["text/event-stream"]["schema"]["properties"]["data"]
    of_reset = {"type": "object", "maxProperties": 0}
    item = {"$ref": "#/components/schemas/StreamItem"}
    assert frame["contentSchema"] == {"anyOf": [item, of_reset]}
    assert view in schemas["StreamItem"]["anyOf"]


def test_an_event_of_an_older_version_is_read_with_what_it_has(context: Context) -> None:
    store(context, "node_drained", {"draining": True, "since": "gone by now"})
    store(context, "resumed", {"checkpoint_id": "j.a1.step-4", "step": 4, "time": 1.0})
    drained, resumed = [
        LENIENT.validate_json(text, extra="ignore") for text in on_the_wire(context)
    ]
    assert drained.data == NodeDrained(draining=True)
    assert resumed.data == data.Resumed(checkpoint_id="j.a1.step-4", step=4, time=1.0)
    schema = document()["components"]["schemas"]["NodeDrained"]
    assert schema["required"] == ["draining"]
    assert "additionalProperties" not in schema


@pytest.mark.parametrize("kind", ["invented_later", "placed"])
def test_an_event_of_unknown_kind_or_shape_is_read_as_it_is(context: Context, kind: str) -> None:
    store(context, kind, {"colour": "red"})
    (text,) = on_the_wire(context)
    read = LENIENT.validate_json(text, extra="ignore")
    assert type(read) is UnknownEvent
    assert (read.kind, read.data) == (kind, {"colour": "red"})


def test_a_line_of_the_trainer_is_held_to_its_model() -> None:
    line = {"time": 1.0, "kind": "resumed", "step": 4, "data": {"added_later": 1}}
    with pytest.raises(ValidationError, match="checkpoint_id\n  Field required"):
        event_line(json.dumps(line).encode(), job_id="j", attempt=1)
    line["data"] = {"added_later": 1, "checkpoint_id": "j.a1.step-4"}
    read = event_line(json.dumps(line).encode(), job_id="j", attempt=1)
    assert read == data.Resumed(checkpoint_id="j.a1.step-4", step=4, time=1.0)
