"""A browser, and servers for it: a whole control plane, or one API over played scenes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Literal

import pytest
from playwright.sync_api import Browser

from tests.e2e.control_plane import ControlPlane, cancel_all, wait_for
from tests.web.browser import Watched, chromium
from tests.web.theatre import Theatre, opened

Theme = Literal["light", "dark"]
Visit = Callable[..., Watched]
MOTION: Literal["reduce"] = "reduce"
"""Without a GPU, an endless animation is painted by the processor, frame by frame."""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="package")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Broker, server, scheduler and worker on a folder of their own."""
    made = ControlPlane(tmp_path_factory.mktemp("web"))
    try:
        yard = made.connect()
        yield made
        cancel_all(yard)
        yard.close()
    finally:
        made.end()


@pytest.fixture(scope="package")
def login_link(plane: ControlPlane) -> str:
    """The link that `up` prints: it logs in once."""
    link = wait_for(lambda: re.search(r"log in +(\S+)", plane.log.read_text()), "login link")
    return link[1]


@pytest.fixture
def live(browser: Browser) -> Iterator[Watched]:
    """An empty page without a login; no error may occur in it."""
    context = browser.new_context(viewport={"width": 1360, "height": 900}, reduced_motion=MOTION)
    faults: list[str] = []
    yield Watched(context.new_page(), faults=faults)
    context.close()
    assert faults == []


@pytest.fixture(scope="package")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    """An API over a database in which all scenes have been played."""
    with opened(tmp_path_factory.mktemp("theatre")) as playing:
        yield playing


@pytest.fixture
def visit(browser: Browser, theatre: Theatre) -> Iterator[Visit]:
    """Opens a page of the theatre for somebody who is logged in; nothing may go wrong in it."""
    faults: list[str] = []
    with ExitStack() as stack:

        def visit(
            path: str,
            *,
            theme: Theme = "light",
            width: int = 1360,
            height: int = 900,
            admin: bool = False,
        ) -> Watched:
            context = stack.enter_context(
                browser.new_context(
                    viewport={"width": width, "height": height},
                    color_scheme=theme,
                    reduced_motion=MOTION,
                )
            )
            theatre.log_in(context.request, admin=admin)
            watched = Watched(context.new_page(), faults=faults)
            watched.page.goto(theatre.url + path)
            return watched

        yield visit
    assert faults == []
