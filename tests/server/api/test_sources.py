"""`/sources`: views and orders of people."""

from __future__ import annotations

import pytest

from server.core.context import Context
from tests.server.api.in_process import TestClient
from tests.server.clock import FakeClock
from tests.server.cluster.supply.site import Site

SOURCES = "/api/v1/sources"


@pytest.fixture
def site(context: Context) -> Site:
    """A registered source."""
    return Site(context, limits={"nodes": 4, "pending": 2, "nodes_per_request": 3})


def test_sources_and_requests_are_listed(
    site: Site, client: TestClient, admin: TestClient, clock: FakeClock
) -> None:
    (shown,) = client.get(SOURCES).json()["items"]
    assert (shown["name"], shown["online"], shown["paused"]) == ("slurm", True, False)
    reply = admin.post(f"{SOURCES}/slurm/requests", json={"nodes": 2})
    assert reply.status_code == 201
    asked = reply.json()
    assert (asked["state"], asked["nodes"], asked["caused_by"]) == ("wanted", 2, "admin")
    clock.advance(1)  # ids of the same millisecond have no order
    running = site.running()
    clock.advance(1800)
    site.describe(running, "ended", gone=True)
    listed = client.get(f"{SOURCES}/slurm/requests").json()["items"]
    assert [each["id"] for each in listed] == [running, asked["id"]]
    for value, expected in (("true", asked["id"]), ("false", running)):
        (only,) = client.get(f"{SOURCES}/slurm/requests?open={value}").json()["items"]
        assert only["id"] == expected
    page = client.get(f"{SOURCES}/slurm/requests?page_size=1").json()
    token = page["next_page_token"]
    (last,) = client.get(f"{SOURCES}/slurm/requests?page_token={token}").json()["items"]
    assert last["id"] == asked["id"]
    one = client.get(f"{SOURCES}/slurm").json()
    assert (one["pending_requests"], one["nodes_asked"], one["nodes_running"]) == (1, 2, 0)
    assert one["node_hours_this_month"] == pytest.approx(0.5)


def test_orders_need_the_admin(site: Site, client: TestClient) -> None:
    request_id = site.ask()
    for path in (
        "/pause",
        "/unpause",
        "/requests",
        "/check",
        f"/requests/{request_id}/cancel",
        f"/requests/{request_id}/end",
    ):
        assert client.post(f"{SOURCES}/slurm{path}").status_code == 403, path
    assert client.delete(f"{SOURCES}/slurm").status_code == 403
    explained = client.post(f"{SOURCES}/slurm/requests/{request_id}/explain")
    assert explained.status_code == 202
    assert site.request(request_id).ask == "explain"


def test_a_paused_source_is_not_asked(site: Site, admin: TestClient) -> None:
    for _ in range(2):
        paused = admin.post(f"{SOURCES}/slurm/pause", json={"reason": "maintenance"}).json()
        assert (paused["paused"], paused["paused_by"]) == (True, "admin")
    assert len(site.told("source_changed")) == 2
    reply = admin.post(f"{SOURCES}/slurm/requests")
    assert reply.status_code == 409
    assert reply.json()["detail"] == "source 'slurm' is paused (maintenance): unpause it first"
    assert admin.post(f"{SOURCES}/slurm/unpause").json()["pause_reason"] is None
    assert admin.post(f"{SOURCES}/slurm/requests").status_code == 201


def test_limits_hold_for_people_too(site: Site, admin: TestClient) -> None:
    def ask(nodes: int) -> tuple[int, str]:
        reply = admin.post(f"{SOURCES}/slurm/requests", json={"nodes": nodes})
        return reply.status_code, reply.json().get("detail", "")

    assert ask(4) == (422, "/nodes: 4 is more than a request of 'slurm' may have; legal: 1 to 3")
    assert ask(3)[0] == 201
    status, detail = ask(2)
    assert status == 409
    assert "3 of 4 are asked for or allocated" in detail
    assert ask(1)[0] == 201
    assert ask(1)[0] == 409
    site.register(site.principal, limits={"node_hours_per_month": 5.0})
    status, detail = ask(2)
    assert status == 409
    assert "of which 4.0 are used or asked for; this needs 2.0 more" in detail


def test_cancel_check_and_delete(site: Site, admin: TestClient) -> None:
    checks = {admin.post(f"{SOURCES}/slurm/check").json()["id"] for _ in range(2)}
    (check,) = checks
    refused = admin.delete(f"{SOURCES}/slurm")
    assert refused.status_code == 409
    assert "1 open requests" in refused.json()["detail"]
    for _ in range(2):
        cancelled = admin.post(f"{SOURCES}/slurm/requests/{check}/cancel").json()
        assert (cancelled["state"], cancelled["reason"]) == ("ended", "cancelled by admin")
    explain = admin.post(f"{SOURCES}/slurm/requests/{check}/explain")
    assert explain.status_code == 409
    assert admin.delete(f"{SOURCES}/slurm").status_code == 204
    assert admin.get(f"{SOURCES}/slurm").status_code == 404
    assert admin.get(f"{SOURCES}/slurm/requests").status_code == 404
