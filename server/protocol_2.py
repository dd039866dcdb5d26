"""Protocol 2: what its workers and supervisors receive, and which specs they can run.

Its models refuse unknown fields. `protocol_2.json` holds the fields that each message had, recorded
from the programs of that version; None stands for any value. A field that was added since is left
out of a message while it has its default. A spec that sets one needs a newer worker.

What is an operation now was a chore: its message and its paths have that name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from typing import Any

import orjson
from pydantic import BaseModel

from server.errors import ConflictError
from trainyard.base.model_base import RecordModel
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.operations import OperationTask
from trainyard.protocol.worker_messages import ClaimReply, NodeName, OperationClaimReply
from trainyard.spec.job import JobSpec

TASK = "worker.chore"
"""Name of the Celery task that takes a `ChoreMessage`."""
PATH = "/chores/{operation_id}"
"""Path of the worker API, below `/workers`."""
FIELDS = resources.files("server").joinpath("protocol_2.json")
SHAPES: dict[str, Any] = json.loads(FIELDS.read_text())


class ChoreMessage(RecordModel):
    """The Celery message of an operation."""

    chore_id: str
    """Id of the operation."""
    node: NodeName
    """Node that is to claim it."""


def new_fields(spec: JobSpec, overrides: Overrides) -> tuple[str, ...]:
    """Return the fields of a launch that protocol 2 lacks and that do not have their default."""
    shape = SHAPES["ClaimReply"]
    found = [*_new(spec, shape["spec"]), *_new(overrides, shape["attempt"]["overrides"])]
    return tuple(dict.fromkeys(found))


def new_fields_of_task(task: OperationTask) -> tuple[str, ...]:
    """Return the fields of an operation that protocol 2 lacks and that are not at their default."""
    return tuple(_new(task, SHAPES["ChoreClaimReply"]["task"]))


def check_reply(reply: ClaimReply | OperationClaimReply) -> None:
    """Refuse a claim whose reply the programs of protocol 2 cannot read.

    Raises:
        ConflictError: it uses a field that they lack.
    """
    if found := tuple(_new(reply, _shape(reply))):
        raise ConflictError(f"a worker of protocol 2 lacks {', '.join(found)}; upgrade the worker")


def dump_reply(reply: ClaimReply | OperationClaimReply) -> bytes:
    """Return a reply as JSON text with the fields of protocol 2 alone."""
    return orjson.dumps(_cut(orjson.loads(reply.model_dump_json()), _shape(reply)))


def _shape(reply: ClaimReply | OperationClaimReply) -> Any:
    return SHAPES["ClaimReply" if isinstance(reply, ClaimReply) else "ChoreClaimReply"]


def _new(value: object, shape: Any, place: str = "") -> Iterator[str]:
    if isinstance(value, BaseModel) and isinstance(shape, dict):
        for name, field in type(value).model_fields.items():
            held = getattr(value, name)
            if name in shape:
                yield from _new(held, shape[name], f"{place}{name}.")
            elif held != field.get_default(call_default_factory=True, validated_data={}):
                yield f"{place}{name}"
    elif isinstance(value, tuple) and isinstance(shape, list):
        for each in value:
            yield from _new(each, shape[0], place)


def _cut(value: Any, shape: Any) -> Any:
    if isinstance(value, dict) and isinstance(shape, dict):
        return {name: _cut(value[name], shape[name]) for name in value if name in shape}
    if isinstance(value, list) and isinstance(shape, list):
        return [_cut(each, shape[0]) for each in value]
    return value
