"""The waits of the dashboard's tests."""

from __future__ import annotations

import pytest

from tests.web import browser
from tests.web.browser import Watched

URL = "http://page.test/"


@pytest.fixture
def page(live: Watched) -> Watched:
    """An empty page that may read anything below its URL."""
    live.page.route(f"{URL}**", lambda route: route.fulfill(content_type="text/html", body=""))
    live.page.goto(URL)
    return live


def test_a_page_does_not_rest_while_a_read_is_put_off(page: Watched) -> None:
    page.page.evaluate(
        """() => {
          setTimeout(() => fetch('/late').then(() => { document.title = 'read'; }), 2000);
        }"""
    )
    page.rest()
    assert page.page.title() == "read"


def test_a_page_that_never_rests_is_an_error_with_what_it_reads(
    page: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser, "PATIENCE_MS", 0)
    page.page.evaluate("() => { setInterval(() => fetch('/again'), 200); }")
    with pytest.raises(AssertionError, match="again"):
        page.rest()
    page.page.goto("about:blank")
