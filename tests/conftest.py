"""What every test gets: none of the caller's settings, and no socket to another machine."""

import contextlib
import multiprocessing.forkserver
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.gate import durations, processes, second_tries, turns
from tests.integration import DEEP, INTEGRATION
from tests.watchdog import watch
from trainyard.base.loopback import is_loopback

# Same examples on every run, and no limit on the time of an example or of its generation: the
# machine may be busy.
settings.register_profile(
    "trainyard",
    deadline=None,
    derandomize=True,
    suppress_health_check=(HealthCheck.too_slow,),
)
# `make mutate` takes it: which example fails is of no interest there, and to find the smallest one
# of each mutant would take most of the time.
settings.register_profile(
    "mutation",
    parent=settings.get_profile("trainyard"),
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile("trainyard")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of continuous integration."""
    group = parser.getgroup("gate", "continuous integration")
    group.addoption(turns.OPTION, action="store_true", help="leave deep tests to their turns")
    group.addoption(second_tries.OPTION, action="store_true", help="count the tests that pass")


def pytest_configure(config: pytest.Config) -> None:
    """Have what the tests start ended with them, however they end, and measure the tests."""
    watch()
    durations.register(config)
    second_tries.register(config)
    turns.register(config)
    config.pluginmanager.register(processes)


class OutsideConnectionError(RuntimeError):
    """A test tried to connect to another machine."""


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the places of tests/integration.py, and skip tests of a GPU where there is none."""
    for mark, places in (
        (pytest.mark.integration, {**INTEGRATION, **DEEP}),
        (pytest.mark.deep, DEEP),
    ):
        paths = [config.rootpath / place for place in places]
        for item in items:
            if any(item.path.is_relative_to(path) for path in paths):
                item.add_marker(mark)
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if not marked:
        return
    import torch  # a second, which tests without torch need not wait for

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(scope="session", autouse=True)
def clean_environment() -> Iterator[None]:
    """Hide the caller's settings and broker; `TRAINYARD_TEST_*` configures tests and stays."""
    with pytest.MonkeyPatch.context() as patch:
        for name in tuple(os.environ):
            ours = name.startswith("TRAINYARD_") and not name.startswith("TRAINYARD_TEST_")
            if ours or name == "REDIS_URL":
                patch.delenv(name)
        yield


@pytest.fixture(scope="session", autouse=True)
def started_forkserver(clean_environment: None, request: pytest.FixtureRequest) -> None:
    """Start the process from which tests fork others, before one of them changes the directory.

    Python 3.11 gives it no `sys.path`: it finds what it shall have imported by its working
    directory alone, and goes on without the rest, so that each rank would import torch anew.
    """
    if "tests.forkserver" in sys.modules:
        with contextlib.chdir(request.config.rootpath):
            multiprocessing.forkserver.ensure_running()


@pytest.fixture(scope="session", autouse=True)
def no_sockets_out() -> Iterator[None]:
    """Refuse a connection to anything but loopback and unix sockets."""
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

    def guarded_connect(sock: socket.socket, address: Any) -> None:
        _refuse_outside(sock, address)
        connect(sock, address)

    def guarded_connect_ex(sock: socket.socket, address: Any) -> int:
        _refuse_outside(sock, address)
        return connect_ex(sock, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded_connect)
        patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
        yield


def _refuse_outside(sock: socket.socket, address: Any) -> None:
    if sock.type == socket.SOCK_DGRAM:  # sends nothing: it chooses an address of this machine
        return
    if sock.family in (socket.AF_INET, socket.AF_INET6) and not is_loopback(address[0]):
        raise OutsideConnectionError(
            f"a test connects to {address!r}; tests reach only loopback and unix sockets, "
            "so give the code under test a fake or a local server"
        )
