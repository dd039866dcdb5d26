"""Rows of the login of a device: its decision and its token, and none for its polls."""

from __future__ import annotations

from fastapi import FastAPI

from server.core.context import Context
from tests.server.api.accounts.people import API, ORIGIN, at, joined
from tests.server.api.in_process import TestClient
from tests.server.clock import FakeClock
from tests.server.core.audit.entries import emptied

DEVICE = f"{API}/auth/device"


def test_a_device_has_a_row_of_its_decision_and_of_its_token(
    app: FastAPI, admin: TestClient, context: Context, clock: FakeClock
) -> None:
    ada, shell = joined(app, admin, "ada"), at(app, "198.51.100.1")
    emptied(context)
    begun = shell.post(DEVICE, json={"host": "login-1"}).json()
    code = {"device_code": begun["device_code"]}
    assert shell.post(f"{DEVICE}/token", json=code).status_code == 400
    assert emptied(context) == []
    body = {"user_code": begun["user_code"], "approved": True}
    ada.browser.post(f"{DEVICE}/decision", json=body, headers=ORIGIN)
    clock.advance(5)
    made = shell.post(f"{DEVICE}/token", json=code).json()
    decided, token = [row for row in emptied(context) if row["outcome"] == "changed"]
    assert (decided["operation"], decided["user"]) == ("access_decide_device", "ada")
    assert (token["operation"], token["user"]) == ("access_get_device_token", "ada")
    assert (token["object"], token["address"]) == (f"tokens/{made['id']}", "198.51.100.1")
    assert made["secret"] not in str(token)
    assert begun["user_code"] not in str(decided)
