"""Spikes in charts by their pixels: of 1,000 to 1,000,000 points, at every zoom, in both themes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import expect
from sqlalchemy import delete, update

from server.core.context import Context
from server.core.database.tables import jobs
from server.telemetry.metrics.points import Floats, Points
from server.telemetry.metrics.store import store_points
from tests.server.records import add_attempt, add_job
from tests.web.browser import REPOSITORY, Watched
from tests.web.conftest import Theme, Visit
from tests.web.theatre import Theatre
from trainyard.spec.job import JobSpec

LOSS, NORM = "train/loss", "train/grad_norm"
SIZES = (1_000, 10_000, 100_000, 1_000_000)
SPIKE = 16.14
REAL = REPOSITORY / "web" / "src" / "shared" / "ui" / "chart" / "values" / "realLosses.json"

STRUCK = """(figure, { share, reach, colour }) => {
  const canvas = figure.querySelector('canvas');
  const copy = document.createElement('canvas');
  [copy.width, copy.height] = [canvas.width, canvas.height];
  const context = copy.getContext('2d', { willReadFrequently: true });
  context.fillStyle = getComputedStyle(figure).getPropertyValue(colour).trim();
  context.fillRect(0, 0, 1, 1);
  const wanted = context.getImageData(0, 0, 1, 1).data;
  context.clearRect(0, 0, 1, 1);
  context.drawImage(canvas, 0, 0);
  const [frame, over] = [canvas, figure.querySelector('.u-over')]
    .map(element => element.getBoundingClientRect());
  const ratio = canvas.width / frame.width;
  const middle = (over.left - frame.left + over.width * share) * ratio;
  const [from, to] = [over.top - frame.top + over.height * 0.15, over.height * 0.4]
    .map(part => Math.round(part * ratio));
  const left = Math.max(Math.floor(middle - reach * ratio), 0);
  const width = Math.ceil(2 * reach * ratio);
  const { data } = context.getImageData(left, from, width, to);
  let struck = 0;
  for (let row = 0; row < to; row += 1) {
    for (let at = row * width * 4; at < (row + 1) * width * 4; at += 4) {
      const far = [0, 1, 2]
        .reduce((sum, each) => sum + Math.abs(data[at + each] - wanted[each]), 0);
      if (far >= 24 || data[at + 3] <= 200) continue;
      struck += 1;
      break;
    }
  }
  return struck / to;
}"""
"""The share of rows, high above a curve, that have its very colour near a place."""


@pytest.fixture(scope="module")
def spiky(theatre: Theatre) -> Iterator[dict[int, str]]:
    """A job of each size, whose gradient norm has a spike of one step."""
    context = theatre.scenes.running.context
    made = {}
    for size in SIZES:
        steps = np.arange(1, size + 1)
        noise = np.random.default_rng(size).random(size)
        norms = 0.7 + 1.5 / (1 + steps / (size / 20)) + 0.4 * noise
        norms[place_of(size) - 1] = SPIKE
        made[size] = a_job(context, f"spike-in-{size}", {NORM: norms})
    yield made
    forget(context, list(made.values()))


def place_of(size: int) -> int:
    """Return the step of the spike."""
    return int(size * 0.265)


def a_job(context: Context, name: str, columns: dict[str, Floats]) -> str:
    """Store an ended job with values of its steps from 1 on, and return its id."""
    job_id = add_job(context, spec=JobSpec(name=name))
    with context.database.write() as connection:
        ended = {"layout": "FSDP 8", "state": "succeeded", "world_size": 8, "attempt": 1}
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(ended))
    attempt_id = add_attempt(context, job_id)
    with context.database.write() as connection:
        points = {
            name: Points(np.arange(1, len(values) + 1), np.linspace(1e9, 2e9, len(values)), values)
            for name, values in columns.items()
        }
        store_points(connection, attempt_id, points)
    return job_id


def forget(context: Context, made: list[str]) -> None:
    """Delete jobs."""
    with context.database.write() as connection:
        connection.execute(delete(jobs).where(jobs.c.id.in_(made)))


def zooms_of(size: int) -> list[tuple[int, int]]:
    """Return stretches around the spike, from all steps down to a dozen."""
    found, width, step = [(1, size)], size / 3, place_of(size)
    while width > 10:
        found.append((max(int(step - 0.4 * width), 1), int(step + 0.6 * width)))
        width /= 16
    return [*found, (step - 6, step + 6)]


def struck(watched: Watched, stretch: tuple[int, int], *, step: int, colour: str) -> float:
    """Return the share of the spike's height that has a colour of the theme."""
    first, last = stretch
    figure = watched.figure(NORM)
    box = figure.locator(".u-over").bounding_box()
    assert box is not None
    near = {
        "share": (step - first) / (last - first),
        "reach": max(4.0, box["width"] / (last - first) + 2),
        "colour": colour,
    }
    share: float = figure.evaluate(STRUCK, near)
    return share


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_a_spike_has_the_colour_of_its_line_at_every_zoom(
    theatre: Theatre, visit: Visit, spiky: dict[int, str], size: int, theme: Theme
) -> None:
    watched = visit("/jobs", theme=theme)
    others = [spiky[other] for other in SIZES if other != size]
    compared = ",".join([others[0], spiky[size]])
    pages = {
        f"/jobs/{spiky[size]}?": "--accent",
        f"/compare?jobs={compared}&names={NORM}&": "--job-2",
        f"/compare?jobs={compared}&names={NORM}&smooth=0.9&": "--job-2",
    }
    for path, colour in pages.items():
        for stretch in zooms_of(size):
            first, last = stretch
            watched.page.goto(f"{theatre.url}{path}from={first}&to={last}")
            watched.settle()
            found = struck(watched, stretch, step=place_of(size), colour=colour)
            assert found > 0.9, (path, stretch, found)
        watched.keep(f"spike-{size}-{theme}-{colour.strip('-')}")


@pytest.mark.parametrize("width", [390, 1440])
def test_ordinary_losses_of_real_runs_are_shown_whole(
    theatre: Theatre, visit: Visit, width: int
) -> None:
    context = theatre.scenes.running.context
    real: dict[str, list[float]] = json.loads(REAL.read_text(encoding="utf-8"))
    real["one over the step"] = [1 / (1 + step) for step in range(5000)]
    made = [
        a_job(context, f"real-{number}", {LOSS: np.array(values)})
        for number, values in enumerate(real.values())
    ]
    watched = visit("/jobs", width=width)
    for job_id, values in zip(made, real.values(), strict=True):
        watched.page.goto(f"{theatre.url}/jobs/{job_id}")
        watched.settle()
        expect(watched.figure(LOSS)).to_have_attribute("data-points", str(len(values)))
        expect(watched.figure(LOSS).locator(".chart-outside")).to_have_count(0)
        assert watched.spread(LOSS, "--accent") > 0.6
        watched.keep(f"real-{made.index(job_id)}-{width}")
    watched.page.close()
    forget(context, made)
