"""What protocol 2 lacks of a reply, and the reply without it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import MISSING, is_dataclass
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import BaseModel, Field, create_model
from pydantic_core import PydanticUndefined

from server.core.errors import ConflictError
from server.jobs.protocol_2 import (
    FIELDS,
    SHAPE_OF,
    SHAPES,
    ChoreMessage,
    _gaps,
    check_reply,
    defaults_of,
    lacking,
    reply_text,
)
from tests.server.harness import Harness
from trainyard.protocol import worker_messages
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.states import DesiredState
from trainyard.protocol.worker_messages import (
    ClaimReply,
    LaunchMessage,
    NodeHeartbeatReply,
    OperationReportReply,
    PendingRequest,
    RegistrationReply,
    ReportReply,
)
from trainyard.run.records import Request
from trainyard.spec.job import JobSpec
from trainyard.spec.sections.training import TrainingSection


def test_the_recorded_fields_are_frozen() -> None:
    """A field that is added here reaches programs that refuse it."""
    digest = hashlib.sha256(FIELDS.read_bytes()).hexdigest()
    assert digest == "7ca45e3b52517e4cca6697376a6b0fdd7850ff0aba97d4739aab79c4e6f4500c"


class ToyTraining(TrainingSection):
    """A section with a field that protocol 2 lacks."""

    toy: int = 0


class ToySpec(JobSpec):
    """A spec with that section."""

    training: ToyTraining = Field(default_factory=ToyTraining)


class ToyReply(ClaimReply):
    """A claim's reply with that spec."""

    spec: ToySpec


def toy_reply(reply: ClaimReply, toy: int) -> ToyReply:
    document = reply.model_dump(mode="json")
    document["spec"]["training"]["toy"] = toy
    return ToyReply.model_validate_json(json.dumps(document))


def test_a_new_field_with_its_default_is_left_out_of_a_reply(harness: Harness) -> None:
    harness.add_node()
    _, (supervisor,) = harness.launched()
    reply = toy_reply(supervisor.reply, 0)
    assert lacking(reply.spec, Overrides()) == ()
    assert reply_text(reply, 2) == reply_text(supervisor.reply, 2)
    assert json.loads(reply_text(reply, 3))["spec"]["training"]["toy"] == 0


def test_a_new_field_with_another_value_needs_a_newer_worker(harness: Harness) -> None:
    harness.add_node()
    _, (supervisor,) = harness.launched()
    reply = toy_reply(supervisor.reply, 1)
    assert lacking(reply.spec, Overrides()) == ("training.toy",)
    with pytest.raises(ConflictError, match=r"protocol 2 lacks spec\.training\.toy"):
        check_reply(reply, 2)
    check_reply(reply, 3)


def test_a_new_field_anywhere_in_a_claim_is_found(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.add_node()
    _, (supervisor,) = harness.launched()
    shape = SHAPES["ClaimReply"]
    for part, name in (
        (shape, "rendezvous"),
        (shape["attempt"], "job_id"),
        (shape["attempt"]["layout"], "tp"),
        (shape["attempt"]["allocation"][0], "slots"),
    ):
        monkeypatch.delitem(part, name)
    assert set(lacking(supervisor.reply)) == {
        "rendezvous",
        "attempt.job_id",
        "attempt.allocation.slots",
    }  # `attempt.layout.tp` has its default


@pytest.mark.parametrize(
    ("new", "kept"),
    [
        (Request(kind="save", steps=3, ranks="first"), True),
        (Request(kind="save", steps=4, ranks="first"), False),
        (Request(kind="profile", steps=3, ranks="first"), False),
    ],
)
def test_a_request_that_protocol_2_lacks_is_left_out_of_a_report_reply(
    monkeypatch: pytest.MonkeyPatch, new: Request, kept: bool
) -> None:
    shape = SHAPES["ReportReply"]["requests"][0]["request"]
    monkeypatch.delitem(shape, "steps")
    monkeypatch.setitem(shape, "kind", "save|memory_snapshot")
    plain = PendingRequest(id="a", request=Request(kind="save"))
    reply = ReportReply(
        acknowledged={},
        desired=DesiredState.RUN,
        requests=(plain, PendingRequest(id="b", request=new)),
    )
    sent = json.loads(reply_text(reply, 2))["requests"]
    assert [request["id"] for request in sent] == (["a", "b"] if kept else ["a"])
    assert sent[0]["request"].keys() == shape.keys()
    assert len(json.loads(reply_text(reply, 3))["requests"]) == 2


@pytest.mark.parametrize("kind", [RegistrationReply, NodeHeartbeatReply, OperationReportReply])
def test_every_reply_is_cut(kind: type[BaseModel], monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "node_token": None,
        "heartbeat_seconds": 5.0,
        "slots": (),
        "expected": (),
        "time": None,
        "ended": True,
    }
    known = {name: values[name] for name in kind.model_fields}
    newer = create_model("Newer", __base__=kind, toy=(int, 0))
    former = kind(**known).model_dump_json(exclude={"slots", "time"})  # newer than protocol 2
    assert json.loads(reply_text(newer(**known), 2)) == json.loads(former)
    with pytest.raises(ConflictError, match="protocol 2 lacks toy"):
        reply_text(newer(**known, toy=1), 2)


def models_in(kind: Any) -> Iterator[Any]:
    """The models and dataclasses in an annotation."""
    if get_args(kind):
        for inner in get_args(kind):
            yield from models_in(inner)
    elif isinstance(kind, type) and (issubclass(kind, BaseModel) or is_dataclass(kind)):
        yield kind


def changes(kind: Any, shape: Any, place: str) -> Iterator[str]:
    """What of a message protocol 2 cannot do without, or be spared."""
    if isinstance(shape, list):
        shape = shape[0]
    if not isinstance(shape, dict):
        return
    present = get_type_hints(kind)
    defaults = defaults_of(kind)
    for name in shape.keys() - defaults.keys():
        yield f"{place}.{name} is no longer sent"
    for name, default in defaults.items():
        if name not in shape and (default is PydanticUndefined or default is MISSING):
            yield f"{place}.{name} is new and has no default"
        for model in models_in(present[name]):
            yield from changes(model, shape.get(name), f"{place}.{name}")


@pytest.mark.parametrize("kind", [JobSpec, Overrides], ids=str)
def test_the_defaults_of_known_fields_need_nothing_new(kind: type[BaseModel]) -> None:
    """So `lacking` may leave out fields that have their defaults."""
    shape = SHAPE_OF[kind]
    known = {n: each for n, each in defaults_of(kind).items() if n in shape}
    given = {n: each for n, each in known.items() if each is not PydanticUndefined}
    assert len(given) > 5
    for name, default in given.items():
        assert not [gap for gap in _gaps(default, shape[name]) if gap.needs], name


def test_protocol_2_can_read_every_message_with_the_defaults_of_what_is_new() -> None:
    names = {type_.__name__ for type_ in vars(worker_messages).values() if isinstance(type_, type)}
    sent = {name for name in names if name.endswith(("Reply", "Message"))}
    former = {kind.replace("Chore", "Operation") for kind in SHAPES}
    # A worker of protocol 2 never calls for the newer ones.
    assert sent == former | {"EndedJobsReply"}
    found = [
        change for kind, shape in SHAPE_OF.items() for change in changes(kind, shape, kind.__name__)
    ]
    assert not found
    for message in (LaunchMessage, ChoreMessage):
        assert message.model_fields.keys() == SHAPES[message.__name__].keys()


@pytest.mark.parametrize("part", ["ClaimReply", "ReportReply", "ChoreClaimReply"])
def test_a_field_without_a_default_is_found_wherever_it_is_new(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, name = {
        "ClaimReply": (SHAPES["ClaimReply"]["attempt"]["allocation"][0], "slots"),
        "ReportReply": (SHAPES["ReportReply"]["requests"][0]["request"], "kind"),
        "ChoreClaimReply": (SHAPES["ChoreClaimReply"]["task"]["recover"], "fence"),
    }[part]
    monkeypatch.delitem(inner, name)
    (kind,) = [kind for kind, shape in SHAPE_OF.items() if shape is SHAPES[part]]
    assert [c.rpartition(".")[2] for c in changes(kind, SHAPES[part], part)] == [
        f"{name} is new and has no default"
    ]
