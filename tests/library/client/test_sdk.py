"""The SDK: requests, retries, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from trainyard.client.errors import (
    ApiError,
    ConflictError,
    ConnectionFailedError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    ServerError,
    UnauthenticatedError,
    UnknownReferenceError,
)
from trainyard.client.sdk import Client
from trainyard.client.transport import BACKOFF, TRIES
from trainyard.protocol.attempt import Overrides

JOB_ID = "01jd0000000000000000000000"
PLAN_REFUSED = {
    "type": "/problems/invalid-request",
    "title": "The request is not valid",
    "status": 422,
    "detail": "/training/steps: Input should be greater than 0",
    "errors": [{"pointer": "/training/steps", "detail": "Input should be greater than 0"}],
    "request_id": "r1",
    "invented_later": True,
}
SESSION = {"name": "ada", "kind": "api", "expires_at": None, "invented_later": {"a": 1}}


class Network:
    """Answers by a script, and records requests and waits."""

    def __init__(self, *answers: httpx.Response | type[httpx.TransportError]) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.slept: list[float] = []

    def yard(self, token: str | None = "t") -> Client:
        """Return an SDK on this network."""
        return Client(
            "http://yard/", token, transport=httpx.MockTransport(self), sleep=self.slept.append
        )

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, httpx.Response):
            return answer
        raise answer("broken", request=request)


def test_a_request_carries_the_token_and_goes_below_the_api() -> None:
    network = Network(httpx.Response(200, json=SESSION))
    assert network.yard("ty_api_x").session().name == "ada"
    request = network.requests[0]
    assert str(request.url) == "http://yard/api/v1/auth/session"
    assert request.headers["authorization"] == "Bearer ty_api_x"


def test_without_a_token_none_is_sent() -> None:
    network = Network(httpx.Response(200, json=SESSION))
    network.yard(None).session()
    assert "authorization" not in network.requests[0].headers


@pytest.mark.parametrize(
    "trouble", [httpx.ConnectError, httpx.ReadTimeout, httpx.Response(503), httpx.Response(502)]
)
def test_a_read_is_tried_again(trouble: httpx.Response | type[httpx.TransportError]) -> None:
    network = Network(trouble, trouble, httpx.Response(200, json=SESSION))
    assert network.yard().session().name == "ada"
    first, second = network.slept
    assert 0.75 * BACKOFF.first <= first <= BACKOFF.first
    assert 1.5 * BACKOFF.first <= second <= 2 * BACKOFF.first


def test_a_submission_is_tried_again_under_the_same_key() -> None:
    network = Network(httpx.ReadError, httpx.Response(422, json=PLAN_REFUSED))
    with pytest.raises(InvalidRequestError):
        network.yard().submit({"name": "a"})
    keys = {request.headers["idempotency-key"] for request in network.requests}
    assert len(network.requests) == 2
    assert len(keys) == 1


def test_two_submissions_have_two_keys() -> None:
    network = Network(httpx.Response(422, json=PLAN_REFUSED))
    yard = network.yard()
    for _ in range(2):
        with pytest.raises(InvalidRequestError):
            yard.submit({})
    assert len({request.headers["idempotency-key"] for request in network.requests}) == 2


@pytest.mark.parametrize("trouble", [httpx.ReadError, httpx.ReadTimeout])
def test_what_the_server_may_have_seen_is_not_sent_twice(
    trouble: type[httpx.TransportError],
) -> None:
    network = Network(trouble)
    with pytest.raises(ConnectionFailedError, match="http://yard"):
        network.yard().stop(JOB_ID)
    assert len(network.requests) == 1


def test_what_the_server_cannot_have_seen_is_sent_again() -> None:
    network = Network(httpx.ConnectError)
    with pytest.raises(ConnectionFailedError):
        network.yard().stop(JOB_ID)
    assert len(network.requests) == TRIES


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, UnauthenticatedError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (413, InvalidRequestError),
        (422, InvalidRequestError),
        (500, ServerError),
        (418, ApiError),
    ],
)
def test_each_status_has_its_error(status: int, kind: type[ApiError]) -> None:
    problem = PLAN_REFUSED | {"status": status}
    with pytest.raises(ApiError) as caught:
        Network(httpx.Response(status, json=problem)).yard().job(JOB_ID)
    assert type(caught.value) is kind
    assert caught.value.problem.errors[0].pointer == "/training/steps"


def test_a_proxys_page_becomes_a_problem_too() -> None:
    with pytest.raises(ApiError) as caught:
        Network(httpx.Response(404, html="<h1>nginx</h1>")).yard().job(JOB_ID)
    assert caught.value.problem.title == "Not Found"


def test_pages_are_fetched_as_they_are_needed() -> None:
    token = {"kind": "api", "created_at": "2026-01-01T00:00:00Z"} | dict.fromkeys(
        ("expires_at", "last_used_at")
    )
    first = {"items": [token | {"id": "1", "name": "a"}], "next_page_token": "more"}
    second = {"items": [token | {"id": "2", "name": "b"}]}
    network = Network(httpx.Response(200, json=first), httpx.Response(200, json=second))
    tokens = network.yard().tokens()
    assert next(tokens).name == "a"
    assert len(network.requests) == 1
    assert [t.name for t in tokens] == ["b"]
    assert network.requests[1].url.params["page_token"] == "more"


@pytest.mark.parametrize(
    ("call", "body"),
    [
        (lambda yard: yard.resume(JOB_ID), {}),
        (
            lambda yard: yard.resume(JOB_ID, world_size=4, dry_run=True),
            {"world_size": 4, "dry_run": True},
        ),
        (
            lambda yard: yard.resume(JOB_ID, overrides=Overrides(micro_batch_size=2)),
            {"overrides": {"micro_batch_size": 2}},
        ),
    ],
)
def test_a_resume_sends_only_what_is_given(
    call: Callable[[Client], object], body: dict[str, object]
) -> None:
    network = Network(httpx.Response(409, json=PLAN_REFUSED))
    with pytest.raises(ApiError):
        call(network.yard())
    assert json.loads(network.requests[0].content) == body


def test_a_wait_for_a_request_that_the_job_lacks_names_it() -> None:
    network = Network(httpx.Response(200, json={"items": []}))
    with pytest.raises(UnknownReferenceError, match=f"job {JOB_ID} has no request no-such-id"):
        network.yard().wait_for_answer(JOB_ID, "no-such-id")


def test_a_page_in_place_of_an_answer_is_said_in_words() -> None:
    network = Network(httpx.Response(200, text="<!doctype html>"))
    with pytest.raises(ConnectionFailedError, match="the address of a Trainyard server"):
        network.yard().session()
