"""Protocol 2: what its workers and supervisors receive, and which launches they can run.

Its models refuse unknown fields and values. `protocol_2.json` holds the fields of each message,
recorded from the programs of that version: None stands for any value, text for its legal values,
divided by `|`. A field that was added since is left out of a reply while it has its default.
What uses anything else that was added since needs a newer worker.

What is an operation now was a chore: its message and its paths have that name.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from pydantic import BaseModel

from server.core.errors import ConflictError
from trainyard.base.model_base import RecordModel
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.operations import OperationTask
from trainyard.protocol.worker_messages import (
    PROTOCOL,
    ClaimReply,
    NodeHeartbeatReply,
    NodeName,
    OperationClaimReply,
    OperationReportReply,
    PendingRequest,
    RegistrationReply,
    ReportReply,
)
from trainyard.spec.job import JobSpec

TASK = "worker.chore"
"""Name of the Celery task that takes a `ChoreMessage`."""
PATH = "/chores/{operation_id}"
"""Path of the worker API, below `/workers`."""
FIELDS = resources.files("server.jobs").joinpath("protocol_2.json")
SHAPES: dict[str, Any] = json.loads(FIELDS.read_text())
SHAPE_OF: dict[type[BaseModel], Any] = {
    RegistrationReply: SHAPES["RegistrationReply"],
    NodeHeartbeatReply: SHAPES["NodeHeartbeatReply"],
    ClaimReply: SHAPES["ClaimReply"],
    ReportReply: SHAPES["ReportReply"],
    OperationClaimReply: SHAPES["ChoreClaimReply"],
    OperationReportReply: SHAPES["ChoreReportReply"],
    JobSpec: SHAPES["ClaimReply"]["spec"],
    Overrides: SHAPES["ClaimReply"]["attempt"]["overrides"],
    OperationTask: SHAPES["ChoreClaimReply"]["task"],
    PendingRequest: SHAPES["ReportReply"]["requests"][0],
}
"""The recorded fields of each reply, and of the parts that are compared before there is one."""
_NEW = object()
"""In place of the shape of a field that protocol 2 lacks."""


class ChoreMessage(RecordModel):
    """The Celery message of an operation."""

    chore_id: str
    """Id of the operation."""
    node: NodeName
    """Node that is to claim it."""


@dataclasses.dataclass(frozen=True)
class _Gap:
    """A field or a value that protocol 2 lacks."""

    path: tuple[str | int, ...]
    needs: str | None
    """What a newer worker is needed for; None for a field that has its default."""


def lacking(*values: BaseModel) -> tuple[str, ...]:
    """Return what these replies, or parts of replies, use that protocol 2 lacks, each once."""
    found = (gap.needs for value in values for gap in _gaps(value, _shape(value), changed=True))
    return tuple(dict.fromkeys(need for need in found if need is not None))


def check_reply(reply: BaseModel, protocol: int) -> None:
    """Refuse a reply that the programs of a protocol cannot read.

    Raises:
        ConflictError: it uses what they lack.
    """
    if protocol < PROTOCOL and (found := lacking(reply)):
        raise ConflictError(f"a worker of protocol 2 lacks {', '.join(found)}; upgrade the worker")


def reply_text(reply: BaseModel, protocol: int) -> str:
    """Return a reply as JSON text that the programs of a protocol can read.

    A request that they lack is left out of the reply to a report, which is stored already, and so
    is any command.

    Raises:
        ConflictError: it uses what they lack.
    """
    if protocol == PROTOCOL:
        return reply.model_dump_json()
    if isinstance(reply, ReportReply):
        known = tuple(request for request in reply.requests if not lacking(request))
        reply = reply.model_copy(update={"requests": known, "shells": ()})
    check_reply(reply, protocol)
    left_out: Any = {}
    for gap in _gaps(reply, _shape(reply)):
        inner = left_out
        for part in gap.path[:-1]:
            inner = inner.setdefault(part, {})
        inner[gap.path[-1]] = True
    return reply.model_dump_json(exclude=left_out)


def _shape(value: BaseModel) -> Any:
    return next(SHAPE_OF[kind] for kind in type(value).__mro__ if kind in SHAPE_OF)


def _gaps(
    value: Any, shape: Any, path: tuple[str | int, ...] = (), *, changed: bool = False
) -> Iterator[_Gap]:
    """Yield what protocol 2 lacks; with `changed` only of fields that differ from their defaults.

    The defaults of known fields need nothing that it lacks.
    """
    if isinstance(value, tuple) and isinstance(shape, list):
        for index, each in enumerate(value):
            yield from _gaps(each, shape[0], (*path, index), changed=changed)
    elif isinstance(shape, str) and value is not None and value not in shape.split("|"):
        yield _Gap(path, f"{_name(path)}={value}")
    elif isinstance(shape, dict) and value is not None:
        kind: Any = type(value)
        for name, default in defaults_of(kind).items():
            known = shape.get(name, _NEW)
            if known is None:  # any value: most fields, of the spec of each job that queues
                continue
            held = getattr(value, name)
            if changed and _equal(held, default):
                continue
            inner = (*path, name)
            if known is _NEW:
                yield _Gap(inner, None if held == default else _name(inner))
            else:
                yield from _gaps(held, known, inner, changed=changed)


def _equal(held: Any, default: Any) -> bool:
    """Return whether a value is its default; pydantic takes several times as long for a model."""
    fields = getattr(held, "__dict__", None)
    if fields is not None and type(held) is type(default) and fields == vars(default):
        return True
    return bool(held == default)


def _name(path: tuple[str | int, ...]) -> str:
    return ".".join(part for part in path if isinstance(part, str))


@cache
def defaults_of(kind: type[Any]) -> Mapping[str, object]:
    """Return the default of each field; of one without it, a value that equals none."""
    if issubclass(kind, BaseModel):
        return {
            name: field.get_default(call_default_factory=True, validated_data={})
            for name, field in kind.model_fields.items()
        }
    return {
        field.name: field.default
        if field.default_factory is dataclasses.MISSING
        else field.default_factory()
        for field in dataclasses.fields(kind)
    }
