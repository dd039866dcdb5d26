"""Settings of single sign-on: a bad one ends the start, and its error names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from server.core.settings import Settings, setting_problems

GOOD: dict[str, Any] = {
    "oidc_issuer": "https://id.example.org/realms/research",
    "oidc_client_id": "trainyard",
    "public_url": "https://trainyard.example.org",
}
ALONE = {"oidc_issuer": None, "oidc_client_id": None}


def test_good_settings() -> None:
    assert Settings(**GOOD).oidc_client_secret() is None
    loopback = {"oidc_issuer": "http://127.0.0.1:8080", "public_url": "http://localhost:8470"}
    assert Settings(**GOOD | loopback).oidc_issuer == "http://127.0.0.1:8080"
    assert Settings().oidc_issuer is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"oidc_issuer": "http://id.example.org"}, "TRAINYARD_OIDC_ISSUER='http://id.example.org'"),
        ({"oidc_issuer": "ftp://127.0.0.1"}, "TRAINYARD_OIDC_ISSUER"),
        ({"oidc_issuer": "id.example.org"}, "TRAINYARD_OIDC_ISSUER"),
        ({"oidc_issuer": "https://user:x@id.example.org"}, "TRAINYARD_OIDC_ISSUER"),
        ({"oidc_issuer": "https://id.example.org?x=1"}, "TRAINYARD_OIDC_ISSUER"),
        ({"oidc_issuer": "https://id.example.org#x"}, "TRAINYARD_OIDC_ISSUER"),
        ({"oidc_issuer": "https://id.example.org:port"}, "TRAINYARD_OIDC_ISSUER"),
        ({"oidc_issuer": f"https://{'x' * 500}"}, "TRAINYARD_OIDC_ISSUER"),
        ({"oidc_issuer": None}, "TRAINYARD_OIDC_ISSUER"),
        ({"oidc_client_id": None}, "TRAINYARD_OIDC_CLIENT_ID"),
        ({"oidc_client_id": ""}, "TRAINYARD_OIDC_CLIENT_ID"),
        ({"public_url": None}, "TRAINYARD_PUBLIC_URL"),
        ({"public_url": "http://trainyard.example.org"}, "TRAINYARD_PUBLIC_URL"),
        ({"oidc_scopes": "profile email"}, "TRAINYARD_OIDC_SCOPES"),
        ({"oidc_sign_up": "everyone"}, "TRAINYARD_OIDC_SIGN_UP"),
        ({"oidc_admin_group": ""}, "TRAINYARD_OIDC_ADMIN_GROUP"),
        ({"oidc_operator_group": ""}, "TRAINYARD_OIDC_OPERATOR_GROUP"),
        (ALONE | {"oidc_admin_group": "a"}, "TRAINYARD_OIDC_ADMIN_GROUP"),
        (ALONE | {"oidc_operator_group": "a"}, "TRAINYARD_OIDC_OPERATOR_GROUP"),
        ({"oidc_name": ""}, "TRAINYARD_OIDC_NAME"),
        ({"oidc_client_secret_file": "/no/such/file"}, "TRAINYARD_OIDC_CLIENT_SECRET_FILE"),
    ],
    ids=str,
)
def test_a_bad_setting_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match="validation error") as refused:
        Settings(**GOOD | change)
    assert named in "\n".join(setting_problems(refused.value))


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret\n")
    secret.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600") as refused:
        Settings(**GOOD, oidc_client_secret_file=secret)
    assert "a secret" not in str(refused.value)
    secret.chmod(0o600)
    assert Settings(**GOOD, oidc_client_secret_file=secret).oidc_client_secret() == "a secret"
