"""The file of the join token: who may read it, and which line counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.settings import Settings, read_secret


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """A file with the secrets of three pilots."""
    path = tmp_path / "secrets"
    path.touch(0o600)
    path.write_text("one\ntwo\nthree\n")
    return path


def test_a_pilot_takes_the_line_of_its_index(secrets: Path) -> None:
    assert [read_secret(secrets, index) for index in range(3)] == ["one", "two", "three"]
    settings = Settings(join_token_file=secrets, join_token="other")
    assert settings.join_secret(1) == "two"
    assert Settings(join_token="other").join_secret(1) == "other"


def test_a_line_that_is_missing_is_an_error(secrets: Path) -> None:
    with pytest.raises(ValueError, match=r"has 3 lines, but line 3 \(from 0\) is needed"):
        read_secret(secrets, 3)
    with pytest.raises(ValueError, match="cannot be read"):
        read_secret(secrets.with_name("absent"), 0)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_a_file_that_others_may_read_is_refused(secrets: Path, mode: int) -> None:
    secrets.chmod(mode)
    with pytest.raises(ValueError, match=f"has mode {mode:04o}.*chmod 600"):
        read_secret(secrets, 0)


def test_a_file_of_another_user_is_refused(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = secrets.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    if owner == 0:  # as of a mounted Secret, which only the pod sees
        assert read_secret(secrets, 0) == "one"
        secrets.chmod(0o440)
        assert read_secret(secrets, 0) == "one"
        secrets.chmod(0o444)
        with pytest.raises(ValueError, match="has mode 0444"):
            read_secret(secrets, 0)
    else:
        with pytest.raises(ValueError, match="belongs to user"):
            read_secret(secrets, 0)
