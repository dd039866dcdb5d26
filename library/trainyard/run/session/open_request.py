"""Requests of people to a running script, and responses to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from trainyard.run.control_files import answer_file, request_files, write_answer
from trainyard.run.directory import RunDirectory
from trainyard.run.records import Request, RequestAnswer, RequestKind


@dataclass(frozen=True)
class OpenRequest:
    """A request without a response."""

    directory: RunDirectory
    id: str
    request: Request

    @property
    def kind(self) -> RequestKind:
        """Kind of the request."""
        return self.request.kind

    def answer(self, message: str, *, step: int, ok: bool = True) -> None:
        """Respond to the request; the person who made the request reads the message.

        Args:
            message: result, or reason of the failure; it is cut after 4,000 characters.
            step: completed optimizer steps.
            ok: whether the script did what was requested.

        Raises:
            OSError: the response cannot be written.
        """
        write_answer(self.directory, self.id, RequestAnswer(ok=ok, message=message, step=step))


def open_requests(directory: RunDirectory) -> Iterator[OpenRequest]:
    """Yield the requests without a response, oldest first; damaged requests are omitted."""
    for request_id, path in request_files(directory):
        if answer_file(directory, request_id).exists():
            continue
        try:
            found = json.loads(path.read_bytes())
            kind = found["kind"]
            request = Request(
                kind=kind, steps=found.get("steps", 3), ranks=found.get("ranks", "first")
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        if kind in get_args(RequestKind):
            yield OpenRequest(directory, request_id, request)
