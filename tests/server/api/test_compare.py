"""Comparisons through the API: the answer, and refusals that name the problem."""

from __future__ import annotations

import pytest

from server.core.context import Context
from tests.server.api.in_process import TestClient
from tests.server.api.test_refusals import pointers
from tests.server.records import add_job
from tests.server.telemetry.metrics.test_compare import LOSS, trained

PATH = "/api/v1/metrics/compare"


def test_a_comparison_over_tokens(client: TestClient, context: Context) -> None:
    first, second = trained(context, 40), trained(context, 40, per_step=2000)
    query = {"jobs": f"{first},{second}", "names": LOSS, "x": "tokens", "to_x": "20000"}
    view = client.get(PATH, params=query).json()
    assert [job["id"] for job in view["jobs"]] == [first, second]
    assert [job["curves"][0]["steps"][-1] for job in view["jobs"]] == [20, 10]
    assert [job["curves"][0]["tokens"][-1] for job in view["jobs"]] == [20_000, 20_000]


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ({}, "query/jobs"),
        ({"jobs": ""}, "query/jobs"),
        ({"jobs": "no-id"}, "query/jobs"),
        ({"names": "a b"}, "query/names"),
        ({"names": "train/los"}, "query/names"),
        ({"max_points": "0"}, "query/max_points"),
        ({"x": "epochs"}, "query/x"),
        ({"from_x": "-1"}, "query/from_x"),
        ({"from_x": "nan"}, "query/from_x"),
        ({"to_x": "inf"}, "query/to_x"),
        ({"from_x": "9", "to_x": "3"}, "query/from_x"),
    ],
)
def test_refusals_name_the_place(
    client: TestClient, context: Context, query: dict[str, str], place: str
) -> None:
    known = {} if place == "query/jobs" else {"jobs": trained(context, 3)}
    response = client.get(PATH, params=known | query)
    assert response.status_code == 422
    assert pointers(response) == {place}


def test_a_job_that_is_not_there_is_named(client: TestClient, context: Context) -> None:
    nobody = context.new_id()
    response = client.get(PATH, params={"jobs": f"{trained(context, 3)},{nobody}"})
    assert response.status_code == 404
    assert pointers(response) == {"query/jobs"}
    assert nobody in response.json()["detail"]


def test_nine_jobs_are_too_many(client: TestClient, context: Context) -> None:
    response = client.get(PATH, params={"jobs": ",".join(add_job(context) for _ in range(9))})
    assert response.status_code == 422
    assert "9 jobs; legal: 1 to 8" in response.json()["detail"]


def test_it_needs_a_token(anonymous: TestClient) -> None:
    assert anonymous.get(PATH).status_code == 401
