"""Helpers of the dashboard's tests: painted pixels, errors, and the look of a page."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Error,
    Locator,
    Page,
    Playwright,
    Request,
    expect,
    sync_playwright,
)

REPOSITORY = Path(__file__).parents[2]
BUILT = REPOSITORY / "web" / "dist" / "index.html"
SCREENSHOTS = REPOSITORY / ".screenshots"
KEEP = "TRAINYARD_TEST_SCREENSHOTS"
"""Variable that has pictures kept; to paint and encode one takes processor time."""
PATIENCE_MS = 60_000
"""The machine may be busy; what must be quick is measured elsewhere."""
QUIET_MS = 2500
"""Longer than the dashboard puts off a read after an event: 2 s at most (`useRefresher`)."""
TIMER = "milliseconds => new Promise(done => setTimeout(done, milliseconds))"

PAINTED = """(figure, colour) => {
  const canvas = figure.querySelector('canvas');
  if (!canvas) return { pixels: 0, spread: 0 };
  const copy = document.createElement('canvas');
  copy.width = canvas.width;
  copy.height = canvas.height;
  const context = copy.getContext('2d', { willReadFrequently: true });
  context.fillStyle = getComputedStyle(figure).getPropertyValue(colour).trim();
  context.fillRect(0, 0, 1, 1);
  const [red, green, blue] = context.getImageData(0, 0, 1, 1).data;
  context.clearRect(0, 0, 1, 1);
  context.drawImage(canvas, 0, 0);
  const { data } = context.getImageData(0, 0, copy.width, copy.height);
  let [pixels, top, bottom] = [0, copy.height, 0];
  for (let at = 0; at < data.length; at += 4) {
    const far = Math.abs(data[at] - red) + Math.abs(data[at + 1] - green)
      + Math.abs(data[at + 2] - blue);
    if (data[at + 3] <= 200 || far >= 24) continue;
    const row = Math.floor(at / 4 / copy.width);
    [pixels, top, bottom] = [pixels + 1, Math.min(top, row), Math.max(bottom, row)];
  }
  return { pixels, spread: Math.max(bottom - top, 0) / copy.height };
}"""
"""How many pixels of a chart's canvas have a colour, and the share of its height they span."""

SETTLED = """() => document.querySelector('main h1, dialog h2, main h2') &&
  !document.querySelector('.skeleton, [aria-busy="true"]')"""

OVERFLOW = """() => {
  const shown = [document.documentElement, ...document.querySelectorAll('dialog[open]')];
  const most = document.documentElement.clientWidth;
  return Math.max(...shown.flatMap(element => [
    element.scrollWidth - element.clientWidth,
    Math.ceil(element.getBoundingClientRect().right) - most,
  ]));
}"""

NAMELESS = """() => [...document.querySelectorAll('button, a[href], input, select, textarea')]
  .filter(element => element.checkVisibility() && !(
    element.textContent.trim() || element.ariaLabel || element.title || element.labels?.length
  ))
  .map(element => element.outerHTML.slice(0, 200))"""
"""Controls that a screen reader could not name."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run the Chromium of the PATH until the block ends.

    Raises:
        AssertionError: there is none, or the dashboard is not built.
    """
    path = shutil.which("chromium")
    assert path, "no chromium on the PATH: `make browser` installs it"
    assert BUILT.is_file(), "the dashboard is not built: `make setup` builds it"
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        yield _launched(playwright, path)


def _launched(playwright: Playwright, path: str) -> Browser:
    return playwright.chromium.launch(
        executable_path=path,
        # An animated scroll passes as many places as the machine paints frames.
        args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-smooth-scrolling"],
    )


class Watched:
    """A page, and its errors."""

    def __init__(self, page: Page, *, faults: list[str]) -> None:
        self.page = page
        self._faults = faults
        self._forgiven: list[str] = []
        self._asked: set[Request] = set()
        self._sent: list[Request] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: self._asked.add(request))
        page.on("request", lambda request: self._sent.append(request))
        page.on("requestfinished", lambda request: self._asked.discard(request))
        page.on("requestfailed", lambda request: self._asked.discard(request))
        page.on("console", self._hear)
        page.on("pageerror", self._note)

    def figure(self, series: str) -> Locator:
        """Return the chart of a series."""
        return self.page.locator(f'figure[data-series="{series}"]')

    def points(self, series: str) -> int:
        """Return the number of points in the chart of a series."""
        return int(self.figure(series).get_attribute("data-points") or 0)

    def painted(self, series: str, colour: str = "--accent") -> int:
        """Return the number of pixels of a chart in the colour of its line."""
        count: int = self.figure(series).evaluate(PAINTED, colour)["pixels"]
        return count

    def spread(self, series: str, colour: str) -> float:
        """Return the share of a chart's height that a colour spans, from 0 to 1."""
        share: float = self.figure(series).evaluate(PAINTED, colour)["spread"]
        return share

    def settle(self) -> None:
        """Wait until the page's requests are answered."""
        self.page.wait_for_function(SETTLED)
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")

    def rest(self) -> None:
        """Wait until the page reads only its stream, and no event has delayed a read.

        A deletion by the test during a read of the page is an error: 404.

        Raises:
            AssertionError: the page still reads after `PATIENCE_MS`.
        """
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while True:
            self._sent.clear()
            # With a timer of the page: on a busy machine it is as late as those of its reads.
            self.page.evaluate(TIMER, QUIET_MS)
            requests = {*self._sent, *self._asked}
            reads = {each.url for each in requests if each.resource_type != "eventsource"}
            if not reads:
                return
            assert time.monotonic() < deadline, f"the page still reads {sorted(reads)}"

    def nameless(self) -> list[str]:
        """Return the visible controls without a name."""
        found: list[str] = self.page.evaluate(NAMELESS)
        return found

    def overflow(self) -> int:
        """Return by how many pixels the page, or a dialog over it, is too wide."""
        width: int = self.page.evaluate(OVERFLOW)
        return width

    def forgive(self, status: str) -> None:
        """Allow refusals of the server with this status, earlier and later ones."""
        self._forgive(f"status of {status}")

    def forgive_lost(self) -> None:
        """Allow requests that a test cut off, earlier and later ones."""
        self._forgive("net::ERR_FAILED")

    def _forgive(self, part: str) -> None:
        # The browser reports a failed request after the page has shown it, sometimes seconds later.
        self._forgiven.append(part)
        self._faults[:] = [text for text in self._faults if part not in text]

    def keep(self, name: str) -> None:
        """Keep a screenshot for a person, if the variable is set."""
        if KEEP not in os.environ:
            return
        SCREENSHOTS.mkdir(exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")

    def _hear(self, message: ConsoleMessage) -> None:
        text = f"{message.text} ({message.location['url']})"
        if message.type in {"error", "warning"} and not any(
            part in text for part in self._forgiven
        ):
            self._faults.append(text)

    def _note(self, error: Error) -> None:
        self._faults.append(str(error))
