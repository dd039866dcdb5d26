"""Validation of bodies: problems are collected in a thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from server.api.http.request_body import SMALL_BYTES, JsonBody
from server.core.errors import InvalidRequestError
from trainyard.base.problems import Problem
from trainyard.protocol.worker_messages import Report
from trainyard.spec.job import JobSpec

EMPTY_CHUNKS = json.dumps({"chunks": [{}] * 900}).encode()


@pytest.mark.parametrize(
    ("model", "content", "pointer"),
    [
        (Report, EMPTY_CHUNKS, "/chunks/0/file"),
        (JobSpec, json.dumps({f"k{n}": 1 for n in range(300)}).encode(), "/k0"),
        (JobSpec, json.dumps({"tags": ["\0"] * 300}).encode(), "/tags/0"),
        (JobSpec, b'{"name": "a", "name": "b"}', "/name"),
        (JobSpec, b"{", ""),
    ],
)
def test_problems_are_gathered_outside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, model: type[Any], content: bytes, pointer: str
) -> None:
    """Their number grows with the body, and the event loop would answer nothing else meanwhile."""
    assert len(content) <= SMALL_BYTES
    gathered_in: list[int] = []
    whole = InvalidRequestError.of

    def of(problems: Iterable[Problem]) -> InvalidRequestError:
        gathered_in.append(threading.get_ident())
        return whole(problems)

    monkeypatch.setattr(InvalidRequestError, "of", of)
    with pytest.raises(InvalidRequestError) as refused:
        asyncio.run(JsonBody(model)(content))
    assert pointer in {problem.pointer for problem in refused.value.problems}
    (thread,) = gathered_in
    assert thread != threading.get_ident()


def test_an_escaped_backslash_before_u0000_is_no_nul() -> None:
    """The bytes look the same, so a thread decides."""
    spec = asyncio.run(JsonBody(JobSpec)(rb'{"description": "\\u0000"}'))
    assert spec.description == r"\u0000"
