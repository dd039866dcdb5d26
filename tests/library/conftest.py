"""The real API over loopback, on its own database, and the command run against it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from server.api.auth.admin import ensure_admin_token
from server.api.wire.configuration import configured
from server.app.factory import create_app
from server.core.context import Context, SystemClock
from server.core.database.engine import Database
from server.core.database.migrate import upgrade
from server.core.settings import Settings
from tests.server.api.serving import listening_on
from tests.server.clock import FakeClock
from tests.server.conftest import compiled_once
from tests.server.harness import Harness
from trainyard.cli.app import app as command
from trainyard.client.sdk import Client
from trainyard.client.settings import choose_profile

__all__ = ["compiled_once"]

Run = Callable[..., Result]


@dataclass(frozen=True)
class Yard:
    """A running server, and hands that play its nodes."""

    url: str
    token: str
    harness: Harness

    def connect(self) -> Client:
        """Return the SDK, connected with the admin token."""
        return Client(self.url, self.token)


class PresentClock(FakeClock):
    """The machine's clock, for a harness that takes a movable one."""

    now = SystemClock().now


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty database file to copy."""
    path = tmp_path_factory.mktemp("client") / "template.db"
    database = Database(f"sqlite:///{path}")
    upgrade(database)
    database.dispose()
    return path


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide the caller's own connection and terminal."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TERM", "xterm")
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    yield
    choose_profile(None)


@pytest.fixture
def yard(migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    """A server with one node of four slots; the environment points to it."""
    path = shutil.copyfile(migrated, tmp_path / "trainyard.db")
    settings = Settings(database_url=f"sqlite:///{path}", state_dir=tmp_path)
    clock = PresentClock()
    context = Context(settings=settings, database=Database(settings.database_url), clock=clock)
    token = ensure_admin_token(context)
    assert token is not None
    with serving(context) as url:
        running = Yard(url, token.read_text().strip(), Harness(context, clock))
        running.harness.add_node()
        monkeypatch.setenv("TRAINYARD_URL", url)
        monkeypatch.setenv("TRAINYARD_TOKEN", running.token)
        yield running
    context.database.dispose()


@contextmanager
def serving(context: Context) -> Iterator[str]:
    """Serve the API from a thread until the block ends; yields its URL."""
    config = configured(create_app(context), context.settings, connections=500, shutdown_seconds=1)
    with listening_on(config) as (host, port):
        yield f"http://{host}:{port}"


@pytest.fixture(scope="session", autouse=True)
def built_once() -> Iterator[None]:
    """Build the command and its groups once per process, instead of at each call of the runner."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def run() -> Run:
    """Run the `trainyard` command and return its output and exit code."""
    runner = CliRunner()

    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        return runner.invoke(command, arguments, input=stdin, catch_exceptions=False)

    return invoke


class acting:  # noqa: N801 - used as a block
    """Run an action in another thread during the block; raise its error."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._failure: BaseException | None = None

        def run() -> None:
            try:
                act()
            except BaseException as error:  # noqa: BLE001 - raised again at the end of the block
                self._failure = error

        self._thread = threading.Thread(target=run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        if self._failure is not None:
            raise self._failure
