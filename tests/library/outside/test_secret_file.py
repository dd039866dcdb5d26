"""Files of secrets: permissions, the line that counts, and passwords of URLs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from provisioner.settings import Settings as ProvisionerSettings
from server.core.settings import Settings as ServerSettings
from trainyard.outside.secret_file import read_secret, url_with_password
from worker.settings import Settings

VARIABLE = "TRAINYARD_JOIN_TOKEN_FILE"


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """A file with the secrets of three pilots."""
    path = tmp_path / "secrets"
    path.touch(0o600)
    path.write_text("one\ntwo\nthree\n")
    return path


@pytest.fixture
def password(tmp_path: Path) -> Path:
    """A file with a password of characters that are special in a URL."""
    path = tmp_path / "password"
    path.touch(0o600)
    path.write_text("p@ss/w:rd%#?\n")
    return path


def test_a_pilot_takes_the_line_of_its_index(secrets: Path) -> None:
    assert [read_secret(secrets, VARIABLE, index) for index in range(3)] == ["one", "two", "three"]
    settings = Settings(join_token_file=secrets, join_token="other")
    assert settings.join_secret(1) == "two"
    assert Settings(join_token="other").join_secret(1) == "other"


def test_a_line_that_is_missing_is_an_error(secrets: Path) -> None:
    with pytest.raises(ValueError, match=r"has 3 lines, but line 3 \(from 0\) is needed"):
        read_secret(secrets, VARIABLE, 3)
    with pytest.raises(ValueError, match="cannot be read"):
        read_secret(secrets.with_name("absent"), VARIABLE)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_a_file_that_others_may_read_is_refused(secrets: Path, mode: int) -> None:
    secrets.chmod(mode)
    with pytest.raises(ValueError, match=f"{VARIABLE}=.* has mode {mode:04o}.*chmod 600"):
        read_secret(secrets, VARIABLE)


def test_a_file_of_another_user_is_refused(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = secrets.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    if owner == 0:  # like a mounted secret, which only the container sees
        assert read_secret(secrets, VARIABLE) == "one"
        secrets.chmod(0o440)
        assert read_secret(secrets, VARIABLE) == "one"
        secrets.chmod(0o444)
        with pytest.raises(ValueError, match=r"has mode 0444.*chmod 440"):
            read_secret(secrets, VARIABLE)
    else:
        with pytest.raises(ValueError, match="belongs to user"):
            read_secret(secrets, VARIABLE)


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("redis://redis:6379/0", "redis://:p%40ss%2Fw%3Ard%25%23%3F@redis:6379/0"),
        ("rediss://[::1]:6379/0?a=b", "rediss://:p%40ss%2Fw%3Ard%25%23%3F@[::1]:6379/0?a=b"),
        ("postgresql://me@db/name", "postgresql://me:p%40ss%2Fw%3Ard%25%23%3F@db/name"),
    ],
)
def test_a_url_gets_the_password_of_its_file(url: str, whole: str, password: Path) -> None:
    name: Literal["DATABASE", "BROKER"] = "BROKER" if url.startswith("redis") else "DATABASE"
    assert url_with_password(url, password, name=name) == whole
    assert url_with_password(url, None, name=name) == url


@pytest.mark.parametrize("with_file", [False, True])
@pytest.mark.parametrize(
    ("name", "url", "why"),
    [
        ("DATABASE", "garbage", "is not legal: .*sqlite://, postgresql://"),
        ("DATABASE", "sqlite:trainyard.db", "is not legal: .*sqlite://"),
        ("DATABASE", "mysql://me:secret@db/name", "is not legal: .*sqlite://, postgresql://"),
        ("DATABASE", "postgresql+asyncpg://me@db/name", "is not legal"),
        ("DATABASE", "postgresql://me@db:port/name", "cannot be read: .*'port'"),
        ("BROKER", "postgresql://me@db/name", "is not legal: .*redis://, rediss://"),
        ("BROKER", "amqp://:secret@broker", "is not legal"),
        ("BROKER", "redis://[::1/0", "cannot be read"),
        ("DATABASE", "mysql://me:a/secret@db/name", r"mysql://\*+@db/name cannot be read"),
        ("DATABASE", "postgresql://me:secret/a@db/name", "cannot be read: a slash in its password"),
        ("BROKER", "", "is not legal"),
    ],
)
def test_a_url_of_another_kind_is_named_with_what_is_legal(
    name: Literal["DATABASE", "BROKER"], url: str, why: str, password: Path, *, with_file: bool
) -> None:
    with pytest.raises(ValueError, match=f"^TRAINYARD_{name}_URL=.*{why}") as refused:
        url_with_password(url, password if with_file else None, name=name)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("postgresql://:secret@db:5432/name", "has a password of its own"),
        ("postgresql://me:@db/name", "has a password of its own"),
        ("sqlite:///trainyard.db", "has no host"),
        ("postgresql:///name?host=/run", "has no host"),
    ],
)
def test_a_file_is_refused_where_the_url_takes_no_password(
    url: str, fault: str, password: Path
) -> None:
    expected = f"TRAINYARD_DATABASE_URL=.* {fault}, and TRAINYARD_DATABASE_PASSWORD_FILE is set"
    with pytest.raises(ValueError, match=expected) as refused:
        url_with_password(url, password, name="DATABASE")
    assert "secret" not in str(refused.value)


def test_each_program_reads_its_passwords_from_files(password: Path) -> None:
    for settings in (ServerSettings, Settings, ProvisionerSettings):
        made = settings(broker_url="redis://redis:6379/0", broker_password_file=password)
        assert made.whole_broker_url() == "redis://:p%40ss%2Fw%3Ard%25%23%3F@redis:6379/0"
    server = ServerSettings(database_url="postgresql://me@db/x", database_password_file=password)
    assert server.whole_database_url() == "postgresql://me:p%40ss%2Fw%3Ard%25%23%3F@db/x"
