"""A browser, and an API over played scenes for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Literal

import pytest
from playwright.sync_api import Browser

from tests.web.browser import Watched, chromium
from tests.web.people import Group
from tests.web.theatre import Served, Theatre, opened

Theme = Literal["light", "dark"]
Visit = Callable[..., Watched]
Enter = Callable[..., Watched]
MOTION: Literal["reduce"] = "reduce"
"""Without a GPU, an endless animation is painted by the processor, frame by frame."""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium."""
    with chromium() as running:
        yield running


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
    """An API over a database of all played scenes."""
    with opened(tmp_path_factory.mktemp("theatre")) as playing:
        yield playing


@pytest.fixture
def visit(browser: Browser, theatre: Served) -> Iterator[Visit]:
    """Opens a page of the theatre with a login; no error may occur in it."""
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


@pytest.fixture
def enter(browser: Browser, group: Group) -> Iterator[Enter]:
    """Opens a page as a user, as the built-in user (`admin`), or without a login (None)."""
    faults: list[str] = []
    with ExitStack() as stack:

        def enter(name: str | None, path: str) -> Watched:
            context = stack.enter_context(
                browser.new_context(viewport={"width": 1360, "height": 900}, reduced_motion=MOTION)
            )
            if name == "admin":
                group.log_in(context.request, admin=True)
            elif name is not None:
                group.log_in_as(context.request, name)
            watched = Watched(context.new_page(), faults=faults)
            watched.page.goto(group.url + path)
            return watched

        yield enter
    assert faults == []
