"""Charts in use: crosshairs after a zoom, the tooltip's size, smoothing, ticks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.web.browser import Watched
from tests.web.conftest import Theme, Visit
from tests.web.test_spikes import a_job, forget
from tests.web.theatre import Theatre

LOSS, NORM, RATE = "train/loss", "train/grad_norm", "train/lr"
MAX_HIDDEN = 0.1

CROSSHAIRS = """() => [...document.querySelectorAll('figure.chart')].map(figure => {
  const cross = figure.querySelector('.u-cursor-x').getBoundingClientRect();
  const over = figure.querySelector('.u-over').getBoundingClientRect();
  return (cross.left - over.left) / over.width;
})"""
"""Where the crosshair of each chart stands, as a share of its width."""

HIDDEN = """figure => {
  const tip = figure.querySelector('.chart-tip').getBoundingClientRect();
  const over = figure.querySelector('.u-over').getBoundingClientRect();
  const width = Math.min(tip.right, over.right) - Math.max(tip.left, over.left);
  const height = Math.min(tip.bottom, over.bottom) - Math.max(tip.top, over.top);
  return Math.max(width, 0) * Math.max(height, 0) / (over.width * over.height);
}"""
"""The share of a chart's plot that its tooltip hides."""


@pytest.fixture(scope="module")
def eight(theatre: Theatre) -> Iterator[list[str]]:
    """Eight jobs with noise, and losses that end at different heights."""
    context = theatre.scenes.running.context
    steps = np.arange(1, 3001)
    made = []
    for number in range(8):
        noise = np.random.default_rng(number).random(len(steps))
        loss = 1 + 0.3 * number + 9 / (1 + steps / 60) + 0.2 * noise
        columns = {LOSS: loss, NORM: 0.5 + noise, RATE: 3e-4 * np.minimum(steps / 300, 1)}
        made.append(a_job(context, f"read-{number}", columns))
    yield made
    forget(context, made)


def test_crosshairs_agree_after_a_zoom(theatre: Theatre, visit: Visit, eight: list[str]) -> None:
    watched = visit(f"/jobs/{eight[0]}", width=1440)
    page = watched.page
    watched.settle()
    slider = page.get_by_role("slider", name=f"{LOSS} over steps")
    slider.focus()
    for _ in range(6):
        slider.press("Shift+ArrowLeft")
    for key in ("+", "+", "-"):
        slider.press(key)
        watched.settle()
        page.wait_for_timeout(300)
        places = page.evaluate(CROSSHAIRS)
        assert len(places) == 3
        assert max(places) - min(places) < 0.01, (key, places)
        place = int(slider.get_attribute("aria-valuenow") or 0)
        first, last = (int(found) for found in re.findall(r"(?:from|to)=(\d+)", page.url))
        assert abs(places[0] - (place - first) / (last - first)) < 0.02
    over(watched, LOSS, 0.3)
    page.mouse.down()
    over(watched, LOSS, 0.6)
    page.mouse.up()
    watched.settle()
    page.wait_for_timeout(300)
    places = page.evaluate(CROSSHAIRS)
    assert max(places) - min(places) < 0.01, places


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_a_tooltip_leaves_the_chart_in_sight(
    theatre: Theatre, visit: Visit, eight: list[str], width: int, theme: Theme
) -> None:
    pages = {
        f"/compare?jobs={','.join(eight)}": "eight",
        f"/compare?jobs={','.join(eight)}&smooth=0.95&y=log": "smooth",
        f"/jobs/{eight[0]}": "job",
    }
    watched = visit("/jobs", width=width, height=900, theme=theme)
    for path, name in pages.items():
        watched.page.goto(theatre.url + path)
        watched.settle()
        for series in (LOSS, NORM):
            watched.figure(series).scroll_into_view_if_needed()
            for share in (0.1, 0.4, 0.8):
                over(watched, series, share)
                expect(watched.figure(series).locator(".chart-tip")).to_be_visible()
                hidden = watched.figure(series).evaluate(HIDDEN)
                assert hidden < MAX_HIDDEN, (name, series, share, hidden)
            watched.keep(f"tip-{name}-{series[6:]}-{width}-{theme}")
        assert watched.overflow() == 0


def test_the_curves_of_a_job_are_smoothed(theatre: Theatre, visit: Visit, eight: list[str]) -> None:
    watched = visit(f"/jobs/{eight[0]}?from=2000&to=3000")
    watched.settle()
    page = watched.page
    before = watched.painted(NORM)
    page.get_by_label("Smoothing").fill("0.95")
    page.wait_for_url("**smooth=0.95")
    watched.settle()
    assert watched.painted(NORM) < before / 3, "the raw curve is faint, its average is one line"
    page.reload()
    watched.settle()
    expect(page.get_by_label("Smoothing")).to_have_value("0.95")
    over(watched, NORM, 0.5)
    expect(watched.figure(NORM).locator(".chart-tip")).to_contain_text("smoothed")


def over(watched: Watched, series: str, share: float) -> None:
    """Move the pointer over a chart, to a share of its width."""
    box = watched.figure(series).locator(".u-over").bounding_box()
    assert box is not None
    watched.page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
