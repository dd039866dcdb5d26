"""The address of the server, and the token for it."""

from __future__ import annotations

import pytest

from trainyard.client.errors import NotConfiguredError
from trainyard.client.settings import Connection, choose_profile, config_path, load, resolve, save


def test_without_settings_the_error_names_the_next_command() -> None:
    with pytest.raises(NotConfiguredError, match="trainyard up"):
        resolve()


def test_the_file_is_the_users_alone_and_read_back() -> None:
    save(Connection("http://old:1", "older"))
    path = save(Connection("http://a:1", "secret"))
    assert path == config_path()
    assert path.stat().st_mode & 0o777 == 0o600
    assert resolve() == load() == Connection("http://a:1", "secret")
    assert [file.name for file in path.parent.iterdir()] == ["config.json"]


def test_the_environment_goes_before_the_file_and_arguments_before_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save(Connection("http://a:1", "filed"))
    monkeypatch.setenv("TRAINYARD_URL", "http://b:2/")
    monkeypatch.setenv("TRAINYARD_TOKEN", "env")
    assert resolve() == Connection("http://b:2", "env")
    assert resolve("http://c:3", "given") == Connection("http://c:3", "given")


def test_a_filed_token_is_never_sent_to_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    save(Connection("http://a:1", "filed"))
    assert resolve("http://a:1/") == Connection("http://a:1", "filed")
    assert resolve("http://evil:1").token is None
    monkeypatch.setenv("TRAINYARD_URL", "http://evil:1")
    assert resolve().token is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"url": '])
def test_a_file_without_settings_is_ignored(text: str) -> None:
    save(Connection("http://a:1", None)).write_text(text)
    assert load() is None


def test_profiles_are_files_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    save(Connection("http://a:1", "first"))
    choose_profile("demo")
    with pytest.raises(NotConfiguredError, match="no profile 'demo' \\(known: default\\)"):
        resolve()
    path = save(Connection("http://b:2", "second"))
    assert (path.name, path.stat().st_mode & 0o777) == ("demo.json", 0o600)
    monkeypatch.setenv("TRAINYARD_URL", "http://c:3")
    monkeypatch.setenv("TRAINYARD_TOKEN", "env")
    assert resolve() == Connection("http://b:2", "second"), "what was chosen goes first"
    choose_profile(None)
    assert resolve() == Connection("http://c:3", "env")
    monkeypatch.delenv("TRAINYARD_URL")
    monkeypatch.delenv("TRAINYARD_TOKEN")
    assert resolve() == Connection("http://a:1", "first")
    monkeypatch.setenv("TRAINYARD_PROFILE", "demo")
    assert resolve() == Connection("http://b:2", "second")


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "x" * 81])
def test_a_profile_is_a_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(NotConfiguredError, match="a name is letters"):
        choose_profile(name)
    if name:
        monkeypatch.setenv("TRAINYARD_PROFILE", name)
        with pytest.raises(NotConfiguredError, match="a name is letters"):
            resolve()
