"""The compare page: curves, the view in the URL, added and removed jobs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, Response, expect
from sqlalchemy import delete, update

from server.core.database.tables import attempts, jobs
from server.telemetry.metrics.points import Points
from server.telemetry.metrics.store import store_points
from tests.e2e.control_plane import wait_for
from tests.server.records import add_attempt, add_job
from tests.web.browser import Watched
from tests.web.conftest import Theme, Visit
from tests.web.theatre import Theatre
from trainyard.spec.job import JobSpec

LOSS, NORM, OWN = "train/loss", "train/grad_norm", "own/score"
LAYOUTS = ("FSDP 8", "TP 2 x FSDP 4", "PP 2 x FSDP 4", "CP 2 x FSDP 4", "HSDP 2x4", "DDP 8",
           "FSDP 4", "TP 8")  # fmt: skip
START = 1_767_225_600.0


@pytest.fixture(scope="module")
def eight(theatre: Theatre) -> Iterator[list[str]]:
    """Eight jobs of different speed and loss; the second has NaN, only the third `own/score`."""
    context = theatre.scenes.running.context
    made = []
    for number, layout in enumerate(LAYOUTS):
        name = f"layouts-{layout.lower().replace(' ', '-').replace('-x-', '-')}"
        job_id = add_job(context, spec=JobSpec(name=name))
        made.append(job_id)
        steps = range(1, 1601 - 120 * number)
        values = [curve(step, number) for step in steps]
        columns = {
            LOSS: values,
            NORM: [0.4 + 2 / (1 + step / 90) + 0.2 * math.sin(step * number) for step in steps],
            "train/lr": [3e-4 * min(step / 100, 1) for step in steps],
            "perf/tokens_per_second_per_device": [
                4000.0 + 300 * number + step % 7 for step in steps
            ],
            "train/tokens": [step * 8192.0 * (2 if number == 4 else 1) for step in steps],
            **({OWN: [float(step) for step in steps]} if number == 2 else {}),
        }
        times = [START + 5000 * number + step * (1.0 + 0.2 * number) for step in steps]
        with context.database.write() as connection:
            changes = {"layout": layout, "state": "succeeded", "world_size": 8}
            connection.execute(update(jobs).where(jobs.c.id == job_id).values(changes))
        attempt_id = add_attempt(context, job_id)
        with context.database.write() as connection:
            by_name = {name: Points.of(steps, times, column) for name, column in columns.items()}
            store_points(connection, attempt_id, by_name)
            newest = update(attempts).where(attempts.c.id == attempt_id)
            connection.execute(newest.values(last_step=steps[-1]))
    yield made
    with context.database.write() as connection:
        connection.execute(delete(jobs).where(jobs.c.id.in_(made)))


def curve(step: int, number: int) -> float:
    """Return a falling loss, with different noise for each job."""
    if number == 1 and 700 <= step < 720:
        return math.nan
    noise = math.sin((step + 17) * 12.9898 * (number + 1)) * 43758.5453 % 1 - 0.5
    fall: float = 9 / (1 + step / (40 + 8 * number)) ** 0.8
    return 1.7 + 0.08 * number + fall + noise * 0.25


@pytest.fixture
def refused() -> Iterator[Callable[[Page], None]]:
    """Watches a page; the server may refuse none of its requests."""
    answers: list[str] = []

    def note(response: Response) -> None:
        if response.status >= 400:
            answers.append(f"{response.status} {response.url}")

    yield lambda page: page.on("response", note)
    assert answers == []


def test_jobs_are_ticked_in_the_list_and_compared(
    theatre: Theatre, visit: Visit, eight: list[str]
) -> None:
    watched = visit("/jobs?q=layouts-")
    page = watched.page
    watched.settle()
    first, second = sorted(eight, reverse=True)[:2]  # the newest on top
    page.locator(f'tr[data-job="{first}"]').get_by_role("checkbox").check()
    page.keyboard.press("j")  # from the row of the checkbox to the next one
    page.keyboard.press("x")
    expect(page.get_by_role("status").filter(has_text="ticked")).to_have_text("2 jobs ticked")
    watched.keep("jobs-ticked")
    page.keyboard.press("c")
    page.wait_for_url(f"**/compare?jobs={first},{second}")
    # The previous page stays until the new one has loaded.
    expect(watched.figure(LOSS)).to_have_attribute("data-curves", re.compile("layouts.* layouts"))
    watched.settle()
    assert watched.painted(LOSS, "--job-1") > 100
    assert watched.painted(LOSS, "--job-2") > 100
    assert watched.painted(LOSS, "--job-3") == 0
    page.go_back()
    expect(page.get_by_role("checkbox")).to_have_count(8)
    for box in page.get_by_role("checkbox").all():
        box.check()
    extra = page.get_by_role("checkbox", name="Compare ")
    assert extra.count() == 8
    page.get_by_label("Search by words").fill("smoke")
    expect(page.get_by_role("checkbox", name="Compare smoke")).to_be_disabled()


def test_the_whole_view_is_in_the_url(
    theatre: Theatre, visit: Visit, eight: list[str], refused: Callable[[Page], None]
) -> None:
    watched = visit(f"/compare?jobs={eight[0]},{eight[4]}")
    page = watched.page
    refused(page)
    watched.settle()
    page.get_by_role("button", name="Tokens", exact=True).click()
    page.get_by_role("button", name="log y").click()
    page.get_by_label("Smoothing").fill("0.8")
    page.get_by_role("button", name=re.compile("Metrics: ")).click()
    page.get_by_role("checkbox", name=NORM).uncheck()
    page.keyboard.press("Escape")
    page.wait_for_url("**&x=tokens&y=log&smooth=0.8")
    drag(watched, LOSS, start=0.25, end=0.5)
    page.wait_for_url(re.compile(r"&from=\d+&to=\d+$"))
    wait_for(lambda: watched.points(LOSS) < 2000, "the chosen stretch alone")
    before = (page.url, watched.points(LOSS))
    page.reload()
    watched.settle()
    assert (page.url, watched.points(LOSS)) == before
    expect(page.get_by_role("button", name="Tokens", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(page.get_by_role("button", name="log y")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_label("Smoothing")).to_have_value("0.8")
    expect(watched.figure(NORM)).to_have_count(0)
    expect(page.locator(".command-text")).to_contain_text(re.compile("--x tokens --from .* --csv"))
    # The second job has twice the tokens per step, so half the points in the same stretch.
    page.get_by_role("button", name="Remove layouts-fsdp-8").click()
    wait_for(lambda: watched.points(LOSS) < before[1] / 2, "half the points")
    page.get_by_role("button", name="Show all").click()
    expect(page).not_to_have_url(re.compile("from="))


def test_a_job_keeps_its_colour_when_another_one_leaves(
    theatre: Theatre, visit: Visit, eight: list[str], refused: Callable[[Page], None]
) -> None:
    # Only the removed job has the series: it must no longer be requested.
    watched = visit(f"/compare?jobs={eight[2]},{eight[0]}&names={LOSS},{OWN}")
    page = watched.page
    refused(page)
    watched.settle()
    expect(watched.figure(OWN)).to_have_attribute("data-points", "1360")
    page.get_by_role("button", name="Remove layouts-pp-2-fsdp-4").click()
    page.wait_for_url(f"**/compare?jobs=,{eight[0]}&names={LOSS},{OWN}")
    expect(watched.figure(OWN)).to_have_count(0)
    watched.settle()
    assert watched.painted(LOSS, "--job-1") == 0
    assert watched.painted(LOSS, "--job-2") > 100
    field = page.get_by_role("combobox")
    field.fill("layouts-pp")
    expect(page.get_by_role("option")).to_have_count(1)
    field.press("Enter")
    page.wait_for_url(f"**/compare?jobs={eight[2]},{eight[0]}&**")
    expect(watched.figure(OWN)).to_have_count(1)


def test_curves_are_read_zoomed_and_told_apart_by_keyboard(
    theatre: Theatre, visit: Visit, eight: list[str]
) -> None:
    watched = visit(f"/compare?jobs={eight[0]},{eight[1]}&names={LOSS}")
    page = watched.page
    watched.settle()
    slider = page.get_by_role("slider", name=f"{LOSS} of the jobs compared")
    expect(slider).to_have_attribute("aria-valuenow", "1600")
    slider.focus()
    slider.press("ArrowLeft")
    expect(slider).to_have_attribute("aria-valuetext", re.compile(r"^step 1,600: layouts-fsdp-8 "))
    for _ in range(40):
        slider.press("Shift+ArrowLeft")
    tip = watched.figure(LOSS).locator(".chart-tip")
    expect(tip).to_contain_text("layouts-tp-2-fsdp-4")
    slider.press("ArrowDown")
    expect(tip.locator(".chart-tip-chosen")).to_contain_text("layouts-fsdp-8")
    expect(page.locator(".legend-chosen")).to_have_attribute("data-job", eight[0])
    slider.press("+")
    expect(page).to_have_url(re.compile(r"from=\d+&to=\d+"))
    slider.press("Escape")
    expect(page).not_to_have_url(re.compile("from="))


def test_nan_is_counted_and_marked(theatre: Theatre, visit: Visit, eight: list[str]) -> None:
    watched = visit(f"/compare?jobs={eight[0]},{eight[1]}&names={LOSS}&from=650&to=760")
    watched.settle()
    row = watched.page.locator(f'tr[data-job="{eight[1]}"]')
    expect(row.locator(".legend-value")).to_contain_text("20 NaN")
    box = watched.figure(LOSS).locator(".u-over").bounding_box()
    assert box is not None
    watched.page.mouse.move(box["x"] + box["width"] * 60 / 110, box["y"] + box["height"] / 2)
    expect(watched.figure(LOSS).locator(".chart-tip")).to_contain_text("1 point NaN or infinite")
    watched.keep("compare-nan")


@pytest.fixture
def diverging(theatre: Theatre) -> Iterator[str]:
    """A job whose loss grows beyond all bounds over its last 150 of 1,000 steps.

    Comes before `visit`, whose pages close before the job is deleted.
    """
    context = theatre.scenes.running.context
    job_id = add_job(context, spec=JobSpec(name="diverging"))
    with context.database.write() as connection:
        ended = {"layout": "FSDP 8", "state": "failed", "world_size": 8, "attempt": 1}
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(ended))
    attempt_id = add_attempt(context, job_id)
    steps = range(1, 1001)
    losses = [curve(step, 3) * 1.15 ** max(step - 850, 0) for step in steps]
    points = Points.of(steps, [START + step for step in steps], losses)
    with context.database.write() as connection:
        store_points(connection, attempt_id, {LOSS: points})
    yield job_id
    with context.database.write() as connection:
        connection.execute(delete(jobs).where(jobs.c.id == job_id))


def test_a_run_that_diverges_does_not_flatten_the_others(
    theatre: Theatre, diverging: str, visit: Visit, eight: list[str]
) -> None:
    watched = visit(f"/compare?jobs={eight[0]},{diverging}&names={LOSS}")
    page = watched.page
    outside = watched.figure(LOSS).locator(".chart-outside")
    switch = page.get_by_role("button", name="full range")
    watched.settle()
    expect(outside).to_have_text(re.compile("^▲ to "))
    assert watched.spread(LOSS, "--job-1") > 0.4, "the frame is for the usual values"
    watched.keep("compare-diverging")
    switch.click()
    page.wait_for_url("**&full=1")
    page.reload()
    watched.settle()
    expect(switch).to_have_attribute("aria-pressed", "true")
    expect(outside).to_have_count(0)
    assert watched.spread(LOSS, "--job-1") < 0.1, "a flat line at the bottom"
    page.goto(f"{theatre.url}/jobs/{diverging}")
    watched.settle()
    expect(outside).to_have_text(re.compile("^▲ to "))
    watched.keep("charts-diverging")
    switch.click()
    page.wait_for_url("**?full=1")
    expect(outside).to_have_count(0)


def test_running_jobs_are_followed(theatre: Theatre, visit: Visit, eight: list[str]) -> None:
    run = theatre.scenes.running
    watched = visit(f"/compare?jobs={theatre.scenes.tale},{eight[0]}&names={LOSS}")
    watched.settle()
    expect(watched.page.locator(".connection")).to_have_text("Live")
    before = watched.points(LOSS)
    run.train(run.step + 7)
    wait_for(lambda: watched.points(LOSS) == before + 7, "seven more points, each once")
    row = watched.page.locator(f'tr[data-job="{theatre.scenes.tale}"]')
    expect(row.locator(".legend-step")).to_have_text(f"{run.step:,}")


def test_a_deleted_job_leaves(theatre: Theatre, visit: Visit, eight: list[str]) -> None:
    with theatre.api() as api:
        job = api.post("/jobs", json={"name": "short-lived"}).json()["id"]
        api.post(f"/jobs/{job}/cancel", json={}).raise_for_status()
        watched = visit(f"/compare?jobs={eight[0]},{job}")
        watched.settle()
        expect(watched.page.locator(".connection")).to_have_text("Live")
        expect(watched.page.locator(f'tr[data-job="{job}"]')).to_contain_text("no points")
        watched.rest()
        api.delete(f"/jobs/{job}").raise_for_status()
        expect(watched.page.get_by_text("short-lived was deleted")).to_be_visible()
        watched.page.wait_for_url(f"**/compare?jobs={eight[0]}")


def test_what_cannot_be_compared_is_explained(
    theatre: Theatre, visit: Visit, eight: list[str]
) -> None:
    watched = visit("/compare")
    page = watched.page
    expect(page.get_by_role("heading", name="No job chosen")).to_be_visible()
    page.goto(f"{theatre.url}/compare?jobs={','.join([*eight, theatre.scenes.tale])}")
    expect(page.get_by_role("heading", name="9 jobs are too many")).to_be_visible()
    page.get_by_role("button", name="Compare the first 8").click()
    watched.settle()
    expect(page.locator(".compared tbody tr")).to_have_count(8)
    expect(page.get_by_role("combobox")).to_be_disabled()
    page.goto(f"{theatre.url}/compare?jobs={theatre.scenes.fresh},{theatre.scenes.waiting}")
    expect(page.get_by_role("heading", name="No points yet")).to_be_visible()
    nobody = "01m7wwdtkg114ww1yt53bs6p4z"
    page.goto(f"{theatre.url}/compare?jobs={eight[0]},{nobody}")
    expect(page.get_by_role("alert")).to_contain_text(nobody)
    page.get_by_role("button", name=f"Continue without {nobody}").click()
    watched.settle()
    expect(watched.figure(LOSS)).to_have_attribute("data-curves", "layouts-fsdp-8")
    watched.forgive("404")


@pytest.mark.parametrize(
    ("theme", "width"), [("light", 1360), ("dark", 1360), ("light", 390), ("dark", 390)]
)
def test_it_is_whole_in_every_theme_and_width(
    theatre: Theatre, visit: Visit, eight: list[str], theme: Theme, width: int
) -> None:
    pages = {
        "two": f"jobs={eight[0]},{eight[3]}&names={LOSS}",
        "eight": f"jobs={','.join(eight)}&smooth=0.9",
        "time": f"jobs={','.join(eight[:4])}&x=seconds&y=log&smooth=0.95&names={LOSS}",
    }
    watched = visit("/compare", theme=theme, width=width, height=900 if width > 600 else 844)
    for name, search in pages.items():
        watched.page.goto(f"{theatre.url}/compare?{search}")
        watched.settle()
        for number in range(1, 1 + search.split("&")[0].count(",") + 1):
            assert watched.painted(LOSS, f"--job-{number}") > 20, (name, number)
        watched.keep(f"compare-{name}-{theme}-{width}")
        assert watched.overflow() == 0, name
        assert watched.nameless() == [], name
    if width > 600:
        watched.page.locator("tr[data-job]").nth(1).hover()
        watched.keep(f"compare-hover-{theme}")
        watched.page.get_by_role("combobox").focus()
        expect(watched.page.get_by_role("option").first).to_be_visible()
        watched.keep(f"compare-add-{theme}")


def drag(watched: Watched, series: str, *, start: float, end: float) -> None:
    """Drag over a chart from one share of its width to another."""
    box = watched.figure(series).locator(".u-over").bounding_box()
    assert box is not None
    mouse, middle = watched.page.mouse, box["y"] + box["height"] / 2
    mouse.move(box["x"] + box["width"] * start, middle)
    mouse.down()
    mouse.move(box["x"] + box["width"] * end, middle, steps=5)
    mouse.up()


def test_the_style_of_the_form_leaves_the_comparison_as_it_is(
    theatre: Theatre, visit: Visit
) -> None:
    """The styles of a page stay loaded: those of a later page must not match its classes."""
    scenes = theatre.scenes
    page = visit(f"/compare?jobs={scenes.stopped},{scenes.done}").page
    table = page.get_by_role("table", name="Jobs compared, with their last values")
    expect(table).to_be_visible()
    page.get_by_role("link", name="Jobs", exact=True).click()
    page.get_by_role("link", name="New job").click()
    expect(page.get_by_role("complementary", name="Plan")).to_be_visible()
    page.go_back()
    page.go_back()
    expect(table).to_have_css("display", "table")
