"""The tab of artifacts: images and histograms by step, files as downloads, on every screen."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from server.api.auth.tokens import hash_token
from server.jobs.attempts.reports import authenticate_share
from server.telemetry.artifacts.uploads import store_block
from tests.server.harness import Supervisor
from tests.server.reports import chunk, send
from tests.web.actors import Stage, open_context
from tests.web.conftest import Theme, Visit
from tests.web.theatre import Served, served
from trainyard.run.artifacts.array_copy import copy_array
from trainyard.run.artifacts.artifact_records import ArtifactLine, ArtifactRecord
from trainyard.run.artifacts.histogram_bins import fold
from trainyard.run.artifacts.images import Pixels, encode_png
from trainyard.run.artifacts.table_content import table_content
from trainyard.run.record_base import to_json

STEPS = (100, 200, 300)
LONG = "checkpoints/evaluation/predictions-of-the-held-out-set-with-a-long-name.csv"


class Scene:
    """Logs artifacts of an attempt, like its supervisor."""

    def __init__(self, stage: Stage, supervisor: Supervisor) -> None:
        self._context = stage.context
        self._supervisor = supervisor
        self._lines: list[ArtifactLine] = []

    def log(self, record: ArtifactRecord, content: bytes | None = None) -> None:
        digest = None
        if content is not None:
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            token = hash_token(self._supervisor.reply.attempt_token)
            share = authenticate_share(self._context, self._supervisor.attempt_id, token)
            size = len(content)
            store_block(self._context, share, digest, offset=0, size=size, block=content)
        line = ArtifactLine(
            process=0, end=1, record=record, digest=digest, size=len(content or b"")
        )
        self._lines.append(line)

    def report(self) -> None:
        content = b"".join(to_json(line).encode() + b"\n" for line in self._lines)
        send(self._context, self._supervisor, chunk("artifacts", content))


def picture(width: int, height: int, phase: float) -> bytes:
    pixels = bytearray()
    for y in range(height):
        for x in range(width):
            wave = math.sin(x / width * 9 + phase) * math.cos(y / height * 7)
            level = int(127 + 120 * wave)
            pixels += bytes((level, 255 - level, int(255 * y / height)))
    return encode_png(Pixels(bytes(pixels), height, width, 3))


@pytest.fixture(scope="module")
def job_id() -> list[str]:
    """The jobs: one with artifacts, and one without."""
    return []


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory, job_id: list[str]) -> Iterator[Served]:
    """A server with two jobs; the first has artifacts."""
    folder = tmp_path_factory.mktemp("artifacts")
    context = open_context(folder)
    stage = Stage.open(context, at=datetime.now(UTC))
    stage.add_node()
    first, (supervisor,) = stage.launched(name="with-artifacts")
    job_id += [first, stage.submit(name="without")]
    play(Scene(stage, supervisor))
    with served(context, folder) as serving:
        yield serving


def play(scene: Scene) -> None:
    values = random.Random(1)
    for step in STEPS:
        about: dict[str, Any] = {"time": 1.7e9 + step, "step": step}
        caption = f"the cat sat on the mat, after {step} steps"
        image = ArtifactRecord(kind="image", name="samples/first", caption=caption, **about)
        scene.log(image, picture(320, 200, step / 50))
        scene.log(
            ArtifactRecord(kind="image", name="attention", **about), picture(16, 24, step / 70)
        )
        drawn = [values.gauss(0, 1 + step / 300) for _ in range(5000)] + [math.nan] * 3
        folded = fold(copy_array(drawn, what="values", most=10_000), bins=64)
        scene.log(
            ArtifactRecord(kind="histogram", name="weights/layer1", histogram=folded, **about)
        )
    for name, kind in ((LONG, "predictions"), ("model.bin", "model"), ("report.html", "output")):
        record = ArtifactRecord(time=1.7e9, kind=kind, name=name)
        scene.log(record, f"<script>{name}</script>".encode())
    rows = [[row, f"<b>text {row}</b>", row % 2 == 0, row / 7, None] for row in range(120)]
    content, _ = table_content(["id", "prediction", "right", "loss", "note"], rows)
    scene.log(ArtifactRecord(time=1.7e9, kind="table", name="errors.json", step=300), content)
    scene.log(ArtifactRecord(time=1.7e9, kind="table", name="torn.json"), b"{torn")
    scene.report()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_every_screen(visit: Visit, job_id: list[str], theme: Theme, width: int) -> None:
    watched = visit(f"/jobs/{job_id[0]}?tab=artifacts", theme=theme, width=width)
    watched.settle()
    page = watched.page
    expect(page.get_by_role("heading", name="Images")).to_be_visible()
    page.wait_for_function(
        "() => [...document.images].every(i => i.complete && i.naturalWidth > 0)"
    )
    assert watched.overflow() == 0
    assert watched.nameless() == []
    watched.keep(f"artifacts-{width}-{theme}")
    page.get_by_role("heading", name="Files").scroll_into_view_if_needed()
    watched.keep(f"artifacts-{width}-{theme}-end")


def test_a_slider_shows_the_image_and_the_histogram_of_a_step(
    visit: Visit, job_id: list[str]
) -> None:
    watched = visit(f"/jobs/{job_id[0]}?tab=artifacts")
    watched.settle()
    page = watched.page
    shown = page.get_by_role("img", name="the cat sat on the mat, after 300 steps")
    expect(shown).to_be_visible()
    slider = page.get_by_role("slider", name="Step of samples/first")
    expect(slider).to_have_attribute("aria-valuetext", "step 300")
    slider.press("ArrowLeft")
    expect(slider).to_have_attribute("aria-valuetext", "step 200")
    expect(page.get_by_role("img", name="after 200 steps")).to_be_visible()
    bars = page.locator("figure", has_text="weights/layer1")
    expect(bars).to_contain_text("5,000 values, 3 NaN")
    before = bars.locator("rect").first.get_attribute("height")
    page.get_by_role("slider", name="Step of weights/layer1").press("Home")
    expect(bars).to_contain_text("step 100 (1/3)")
    assert bars.locator("rect").count() == 64
    assert bars.locator("rect").nth(32).get_attribute("height") != before


def test_a_file_is_downloaded_and_never_shown(
    visit: Visit, job_id: list[str], tmp_path: Path
) -> None:
    watched = visit(f"/jobs/{job_id[0]}?tab=artifacts")
    watched.settle()
    with watched.page.expect_download() as waiting:
        watched.page.get_by_role("link", name="report.html").click()
    waiting.value.save_as(tmp_path / "report.html")
    assert waiting.value.suggested_filename == "report.html"
    assert (tmp_path / "report.html").read_text() == "<script>report.html</script>"


def test_the_first_rows_of_a_table_are_shown(visit: Visit, job_id: list[str]) -> None:
    for width, theme in ((1280, "light"), (390, "dark")):
        watched = visit(f"/jobs/{job_id[0]}?tab=artifacts", theme=theme, width=width)
        watched.settle()
        page = watched.page
        page.get_by_role("button", name="Show errors.json").click()
        table = page.get_by_role("table", name="errors.json")
        expect(table.get_by_role("row")).to_have_count(51)
        expect(table).to_contain_text("<b>text 49</b>")
        expect(page.get_by_text("The first 50 of 120 rows")).to_be_visible()
        assert watched.overflow() == 0
        table.scroll_into_view_if_needed()
        watched.keep(f"artifacts-table-{width}-{theme}")
        page.get_by_role("button", name="Hide errors.json").click()
        expect(table).to_have_count(0)
        page.get_by_role("button", name="Show torn.json").click()
        expect(page.get_by_text("This file is not a table.")).to_be_visible()


def test_a_job_without_any_names_the_calls(visit: Visit, job_id: list[str]) -> None:
    watched = visit(f"/jobs/{job_id[1]}?tab=artifacts")
    watched.settle()
    expect(watched.page.get_by_text("run.log_image")).to_be_visible()
