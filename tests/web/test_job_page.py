"""The job page: charts, logs, dialogs, by mouse and by keyboard."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.e2e.control_plane import wait_for
from tests.web.browser import Watched
from tests.web.conftest import Visit
from tests.web.theatre import Theatre
from trainyard.run.directory import Phase

LOSS, RATE = "train/loss", "train/lr"


def test_nan_is_marked_where_it_happened(theatre: Theatre, visit: Visit) -> None:
    watched = visit(f"/jobs/{theatre.scenes.tale}?from=2400&to=2600")
    watched.settle()
    assert watched.painted(LOSS, "--bad") > 20
    assert watched.painted(RATE, "--bad") == 0
    slider = watched.page.get_by_role("slider", name=f"{LOSS} over steps")
    slider.focus()
    slider.press("ArrowLeft")
    tip = watched.figure(LOSS).locator(".chart-tip")
    watched.page.mouse.move(*centre_of(watched, LOSS, share=0.45))  # step 2490 or so
    expect(tip).to_contain_text("attempt 3, abandoned: NaN")


def test_a_spike_stays_in_the_chart_of_all_steps(theatre: Theatre, visit: Visit) -> None:
    watched = visit(f"/jobs/{theatre.scenes.tale}")
    watched.settle()
    last = theatre.scenes.running.step
    assert watched.points(LOSS) == last  # each once, along the lineage
    watched.page.mouse.move(*centre_of(watched, LOSS, share=2210 / last))
    expect(watched.figure(LOSS).locator(".chart-tip")).to_contain_text("attempt 3, abandoned")
    expect(watched.figure(RATE).locator(".chart-tip")).to_have_count(0)  # the cursor is elsewhere


def test_a_chart_is_read_and_zoomed_by_keyboard(theatre: Theatre, visit: Visit) -> None:
    watched = visit(f"/jobs/{theatre.scenes.tale}")
    watched.settle()
    page = watched.page
    slider = page.get_by_role("slider", name=f"{LOSS} over steps")
    last = theatre.scenes.running.step
    expect(slider).to_have_attribute("aria-valuenow", str(last))
    slider.focus()
    for _ in range(3):
        slider.press("Shift+ArrowLeft")
    step = int(slider.get_attribute("aria-valuenow") or 0)
    assert step < last
    rate = page.get_by_role("slider", name=f"{RATE} over steps")
    expect(rate).to_have_attribute("aria-valuenow", str(step))  # one cursor for all charts
    slider.press("+")
    expect(page).to_have_url(re.compile(r"from=\d+&to=\d+"))
    slider.press("Escape")
    expect(page).not_to_have_url(re.compile(r"from="))


def test_a_drag_zooms_all_charts_and_a_double_click_shows_everything(
    theatre: Theatre, visit: Visit
) -> None:
    watched = visit(f"/jobs/{theatre.scenes.tale}")
    watched.settle()
    page = watched.page
    before = watched.points(LOSS)
    page.mouse.move(*centre_of(watched, LOSS, share=0.3))
    page.mouse.down()
    page.mouse.move(*centre_of(watched, LOSS, share=0.5), steps=5)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"from=\d+&to=\d+"))
    wait_for(lambda: watched.points(LOSS) < before, "the chosen steps alone")
    assert watched.points(LOSS) == watched.points(RATE)
    page.mouse.dblclick(*centre_of(watched, LOSS, share=0.5))
    expect(page).not_to_have_url(re.compile(r"from="))


def test_points_arrive_by_themselves(theatre: Theatre, visit: Visit) -> None:
    run = theatre.scenes.running
    watched = visit(f"/jobs/{theatre.scenes.fresh}")
    expect(watched.page.get_by_role("heading", name="No points yet")).to_be_visible()
    watched.page.goto(f"{theatre.url}/jobs/{theatre.scenes.tale}?from=5700&to=9000")
    watched.settle()
    first = watched.points(LOSS)
    run.train(run.step + 10, batch=5)
    wait_for(lambda: watched.points(LOSS) == first + 10, "ten more points, each once")
    assert watched.figure(LOSS).get_attribute("data-last-step") == str(run.step)


def test_a_log_is_followed_until_somebody_scrolls(theatre: Theatre, visit: Visit) -> None:
    run = theatre.scenes.running
    watched = visit(f"/jobs/{theatre.scenes.tale}?tab=logs")
    page = watched.page
    expect(page.get_by_label("Follow")).to_be_checked()
    run.write(0, ["a line that comes late"])
    expect(page.get_by_text("a line that comes late")).to_be_in_viewport()
    page.get_by_role("region", name="Lines").hover()
    page.mouse.wheel(0, -4000)
    expect(page.get_by_label("Follow")).not_to_be_checked()
    run.write(0, ["a line that is not followed"])
    page.wait_for_timeout(1500)  # long enough for its arrival
    expect(page.get_by_text("a line that is not followed")).to_have_count(0)
    page.get_by_label("Follow").check()
    expect(page.get_by_text("a line that is not followed")).to_be_in_viewport()


def test_the_first_error_and_a_search_lead_into_a_long_log(theatre: Theatre, visit: Visit) -> None:
    watched = visit(f"/jobs/{theatre.scenes.tale}?tab=logs&attempt=3")
    page = watched.page
    page.get_by_role("button", name="First error").click()
    expect(page).to_have_url(re.compile(r"line=150001"))
    expect(page.locator(".log-selected")).to_contain_text("ERROR RuntimeError")  # no codes
    expect(page.locator(".log-selected")).to_be_in_viewport()
    assert page.locator(".log-row").count() < 200  # only visible lines are rendered

    search = page.get_by_role("searchbox")
    search.fill("step 199998")
    expect(page.get_by_role("status").filter(has_text="1 lines")).to_be_visible()
    search.press("Enter")
    expect(page.locator(".log-selected mark")).to_have_text("step 199998")
    expect(page.locator(".log-selected")).to_be_in_viewport()


def test_a_failure_shows_its_remedy_and_the_button_applies_it(
    theatre: Theatre, visit: Visit
) -> None:
    watched = visit(f"/jobs/{theatre.scenes.oom}")
    page = watched.page
    notice = page.get_by_role("region", name="Attempt 1 failed: out of memory")
    expect(notice).to_contain_text("smaller micro_batch_size")
    notice.get_by_role("button", name="Log of rank 3").click()
    expect(page.locator(".log-selected")).to_contain_text("Traceback")
    page.go_back()
    notice.get_by_role("button", name="Resume with less memory").click()
    dialog = page.get_by_role("dialog")
    # On more slots it fits unchanged; on the same number it needs a smaller micro-batch.
    expect(dialog.locator("input:checked")).not_to_have_attribute("data-world-size", "4")
    dialog.locator('input[data-layout="FSDP 4"]').check()
    expect(dialog.get_by_label("Micro-batch (sequences)")).to_have_value("4")
    changes = dialog.get_by_role("region", name="Changes")
    expect(changes).to_contain_text(re.compile(r"micro-batch size\s*8 →\s*4"))
    expect(dialog.locator(".command-text")).to_contain_text("--set training.micro_batch_size=4")
    expect(dialog.get_by_role("note")).to_have_count(0)
    dialog.get_by_label("Micro-batch (sequences)").fill("8")  # the layout that ran out of memory
    expect(dialog.get_by_role("note")).to_contain_text("needs as much again")


def test_a_dialog_keeps_the_focus_and_gives_it_back(theatre: Theatre, visit: Visit) -> None:
    watched = visit(f"/jobs/{theatre.scenes.stopped}")
    page = watched.page
    page.get_by_role("button", name="Resume", exact=True).focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("input:checked")).to_be_focused()
    page.keyboard.press("ArrowDown")  # the next layout
    expect(dialog.locator("input:checked")).to_have_attribute("data-layout", "FSDP 3")
    seen = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.add(page.evaluate(FOCUS))
    assert "outside" not in seen
    assert len(seen) > 4
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Resume", exact=True)).to_be_focused()


FOCUS = """() => {
  const { activeElement } = document;
  if (activeElement === document.body) return 'the browser itself';
  if (!activeElement.closest('dialog')) return 'outside';
  return activeElement.id || activeElement.textContent || activeElement.tagName;
}"""


def test_an_older_checkpoint_makes_a_branch_and_the_dialog_shows_it(
    theatre: Theatre, visit: Visit
) -> None:
    watched = visit(f"/jobs/{theatre.scenes.stopped}?tab=checkpoints")
    page = watched.page
    page.get_by_role("button", name="Resume from step 100 of attempt 1").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("This makes a branch.")
    expect(dialog).to_contain_text("steps 101 to 180 are abandoned")
    expect(dialog.locator(".command-text")).to_contain_text("trainyard resume debug@a1.step-100")
    dialog.get_by_label("Checkpoint").select_option(index=0)
    expect(dialog.get_by_text("This makes a branch.")).to_have_count(0)


def test_layouts_tell_their_pipeline_and_how_many_more_there_are(
    theatre: Theatre, visit: Visit
) -> None:
    watched = visit(f"/jobs/{theatre.scenes.tale}?do=resize")
    dialog = watched.page.get_by_role("dialog")
    expect(
        dialog.locator("label", has=watched.page.locator("[data-world-size='8']"))
    ).to_have_count(1)
    dialog.get_by_role("button", name=re.compile(r"\d+ other layouts on 8 slots")).click()
    row = dialog.locator("label", has=watched.page.locator("[data-layout='PP 8']"))
    expect(row).to_contain_text(re.compile(r"PP 8\s*1F1B, \d+(\.\d)? % bubble"))
    more = dialog.get_by_text(re.compile(r"and \d+ more layouts, by command line"))
    expect(more.last).to_be_visible()


def test_what_the_server_refuses_is_said_and_cannot_be_launched(
    theatre: Theatre, visit: Visit
) -> None:
    watched = visit(f"/jobs/{theatre.scenes.stopped}?do=resume")
    dialog = watched.page.get_by_role("dialog")
    launch = dialog.get_by_role("button", name="Resume on 2 slots")
    expect(launch).to_be_enabled()
    dialog.get_by_label("Total steps").fill("100")
    expect(dialog.locator(".field-error")).to_contain_text("stands at step 180 already")
    expect(launch).to_be_disabled()
    watched.forgive("422")  # the browser itself logs a refused request


def test_the_continuity_badge_opens_its_checks(theatre: Theatre, visit: Visit) -> None:
    page = visit(f"/jobs/{theatre.scenes.tale}?tab=attempts&attempt=4").page
    row = page.get_by_role("row").filter(has_text="FSDP 3")
    row.get_by_role("button", name="exact").click()
    checks = page.get_by_role("dialog", name="Continuity")
    expect(checks).to_contain_text("step 2,000 of attempt 3")
    expect(checks.get_by_role("row")).to_have_count(6)  # five checks and their head
    page.keyboard.press("Escape")
    expect(checks).to_be_hidden()


def test_the_badge_of_a_fork_names_what_it_changed(theatre: Theatre, visit: Visit) -> None:
    page = visit(f"/jobs/{theatre.scenes.forked}").page
    page.get_by_role("button", name="continues, 1 change").click()
    checks = page.get_by_role("dialog", name="Continuity")
    expect(checks.get_by_role("listitem")).to_have_text(["optimizer.lr: 0.0003 -> 0.00015"])
    expect(checks).to_contain_text("own learning rate")
    expect(checks).not_to_contain_text("same learning rate")


def test_a_loss_that_would_come_again_leads_to_a_fork_with_another_rate(
    theatre: Theatre, visit: Visit
) -> None:
    page = visit(f"/jobs/{theatre.scenes.forked}").page
    expect(page.get_by_text("ends in the same way")).to_be_visible()
    notice = page.get_by_label("Attempt 1 failed: loss NaN or infinite")
    expect(notice.locator(".button-primary")).to_have_count(1)
    notice.get_by_role("button", name="Fork step 150 with another optimizer.lr…").click()
    dialog = page.get_by_role("dialog", name="Fork step 150 of attempt 1")
    expect(dialog.get_by_label("Changed settings")).to_have_value("optimizer.lr=7.5e-05")
    expect(dialog.get_by_text("≠ curve")).to_be_visible()
    dialog.get_by_role("button", name="Back").click()
    expect(page).not_to_have_url(re.compile("fork="))


def test_the_trainer_answers_a_request_to_save(theatre: Theatre, visit: Visit) -> None:
    run = theatre.scenes.running
    page = visit(f"/jobs/{theatre.scenes.tale}").page
    page.get_by_role("button", name="Save now").click()
    expect(page.get_by_role("button", name="Saving…")).to_be_disabled()
    wait_for(lambda: run.answer_requests("saved step 5740"), "the request")
    expect(page.get_by_text("saved step 5740")).to_be_visible()
    expect(page.get_by_role("button", name="Save now")).to_be_enabled()
    profile = page.get_by_role("button", name="Profile")
    assert "trainyard profile" in str(profile.get_attribute("title"))
    profile.click()
    expect(page.get_by_role("button", name="Recording…")).to_be_disabled()
    wait_for(lambda: run.answer_requests("recorded profiles/steps-5741-5743"), "the request")
    expect(page.get_by_text("recorded profiles/steps-5741-5743")).to_be_visible()


def test_a_phase_and_a_loss_that_became_nan_are_told(theatre: Theatre, visit: Visit) -> None:
    run = theatre.scenes.running
    page = visit(f"/jobs/{theatre.scenes.tale}").page
    expect(page.locator(".job-numbers")).to_contain_text("training")
    run.tell("phase", {"phase": Phase.SAVING.value})
    expect(page.locator(".job-numbers")).to_contain_text("saving a checkpoint")
    run.train(run.step + 1, strange={run.step + 1: {LOSS: float("nan")}})
    expect(page.locator(".job-numbers")).to_contain_text("NaN")


def centre_of(watched: Watched, series: str, *, share: float) -> tuple[float, float]:
    """Return the place in a chart at a share of its width, half way up."""
    box = watched.figure(series).locator(".u-over").bounding_box()
    assert box is not None
    return box["x"] + box["width"] * share, box["y"] + box["height"] / 2


def test_a_page_of_no_job_shows_an_error(theatre: Theatre, visit: Visit) -> None:
    watched = visit("/jobs/01m7wwdtkg114ww1yt53bs6p4z")
    page: Page = watched.page
    expect(page.get_by_role("alert")).to_contain_text("no job has the id")
    expect(page.get_by_role("link", name="All jobs")).to_be_visible()
    watched.forgive("404")


def test_a_waiting_job_has_its_place_and_its_priority_can_be_changed(
    theatre: Theatre, visit: Visit
) -> None:
    with theatre.api() as api:
        wanted = {"name": "in-line", "resources": {"priority": -80}}
        job_id = api.post("/jobs", json=wanted).json()["id"]
    watched = visit(f"/jobs/{job_id}")
    page = watched.page
    place = page.get_by_text(re.compile(r"Position [\d,]+ in the queue"))
    expect(place).to_contain_text(
        "No expected start: the scheduler does not consider it for slots yet."
    )
    page.get_by_role("button", name="priority -80").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Priority", exact=True).fill("urgent")
    watched.forgive("422")
    dialog.get_by_role("button", name="Change").click()
    expect(dialog).to_contain_text("'urgent' is no priority: use low, normal, high")
    dialog.get_by_label("Priority", exact=True).fill("high")
    expect(dialog).to_contain_text("trainyard priority in-line high")
    watched.keep("priority-dialog")
    dialog.get_by_role("button", name="Change").click()
    expect(page.get_by_role("button", name="priority high")).to_be_visible()
    watched.keep("queue-place")
    page.close()  # otherwise it may read the job between its stop and its deletion: 404
    with theatre.api() as api:
        api.post(f"/jobs/{job_id}/stop", json={}).raise_for_status()
        api.delete(f"/jobs/{job_id}").raise_for_status()
