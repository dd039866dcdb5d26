"""The checkpoint tab: facts, actions, and live progress of operations."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.web.browser import Watched
from tests.web.conftest import Visit
from tests.web.theatre import Theatre


@pytest.fixture
def shown(theatre: Theatre, visit: Visit) -> Watched:
    """The tab of the job with all kinds of checkpoints."""
    watched = visit(f"/jobs/{theatre.scenes.tale}?tab=checkpoints")
    watched.settle()
    return watched


def row_of(watched: Watched, step: str) -> Locator:
    return watched.page.locator("tr", has=watched.page.locator("td:first-child", has_text=step))


def test_each_row_shows_what_is_known_of_it(shown: Watched) -> None:
    verified = row_of(shown, "5,200").first
    expect(verified).to_contain_text("✓ loaded")
    expect(verified).to_contain_text("pinned")
    expect(row_of(shown, "4,800")).to_contain_text("✗ file damaged")
    expect(row_of(shown, "4,800").get_by_role("button", name=re.compile("^Resume"))).to_have_count(
        0
    )
    expect(row_of(shown, "4,600")).to_contain_text("to be deleted")
    expect(row_of(shown, "4,600")).to_contain_text("delete queued")
    assert row_of(shown, "4,600").evaluate("row => row.clientHeight") < 80, "two lines, or three"
    expect(row_of(shown, "5,600")).to_contain_text("verifying 45 %")
    expect(row_of(shown, "5,600").get_by_role("progressbar")).to_have_attribute("value", "45")


def test_automatic_exports_are_shown_with_their_places_and_failures(shown: Watched) -> None:
    done = row_of(shown, "5,000").first
    done.get_by_role("button", name="Exported").click()
    panel = shown.page.get_by_role("dialog", name=re.compile("^Exports of step 5000"))
    expect(panel).to_contain_text("safetensors, float32, 5 files, 604 MiB")
    expect(panel).to_contain_text("step-5000/hugging_face")
    badge = row_of(shown, "4,400").get_by_text("not exported")
    expect(badge).to_have_attribute("title", re.compile("No space left on device"))


def test_columns_stay_where_they_are_while_rows_come_and_go(shown: Watched) -> None:
    widths = "() => [...document.querySelectorAll('.checkpoints th')].map(th => th.offsetWidth)"
    top = shown.page.evaluate(widths)
    first = row_of(shown, "5,600")
    expect(first).to_have_count(1)
    shown.page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    expect(first).to_have_count(0)
    assert shown.page.evaluate(widths) == top


def test_cells_hold_what_they_show(shown: Watched) -> None:
    spilt = """() => [...document.querySelectorAll('.checkpoints td')]
      .filter(cell => cell.scrollWidth > cell.clientWidth).map(cell => cell.textContent)"""
    assert shown.page.evaluate(spilt) == []
    ends = """() => [...document.querySelectorAll('.checkpoint-actions > :last-child')]
      .map(button => Math.round(button.getBoundingClientRect().right))"""
    assert len(set(shown.page.evaluate(ends))) == 1, "no row needs more room than its column has"


def test_who_wrote_it_is_shown_on_demand(shown: Watched) -> None:
    row = row_of(shown, "5,200").first
    expect(row).to_contain_text("stall 0.02 s")
    row.get_by_role("button", name="1 writer, 1.18 GiB/s").click()
    panel = shown.page.get_by_role("dialog", name="How step 5200 of attempt")
    expect(panel).to_contain_text("2 files, 1.77 GiB. Saved in 3.40 s, training waited 0.02 s.")
    expect(panel.get_by_role("table", name="Writers")).to_contain_text("1.50 s")


def test_a_verification_is_asked_for_and_shown_without_a_reload(
    theatre: Theatre, visit: Visit
) -> None:
    watched = visit(f"/jobs/{theatre.scenes.stopped}?tab=checkpoints")
    page = watched.page
    page.get_by_role("button", name="Verify step 100 of attempt 1").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("loads every tensor on other ranks")
    expect(dialog.locator(".command-text")).to_contain_text(
        "trainyard checkpoints verify debug@a1.step-100"
    )
    watched.keep("checkpoint-verify")
    dialog.get_by_role("button", name="Verify", exact=True).click()
    expect(dialog).to_have_count(0)
    expect(row_of(watched, "100")).to_contain_text("verify queued")
    page.get_by_role("button", name="Cancel: verify queued").click()
    expect(row_of(watched, "100")).to_contain_text("not yet")


def test_an_export_is_asked_for_and_one_that_was_written_is_named(
    theatre: Theatre, shown: Watched, visit: Visit
) -> None:
    row_of(shown, "5,200").first.get_by_role("button", name="Exported").click()
    panel = shown.page.get_by_role("dialog", name="Exports of step 5200 of attempt")
    expect(panel).to_contain_text("bfloat16, 5 files, 302 MiB")
    expect(panel).to_contain_text("/srv/checkpoints/exports/tale")
    expect(shown.page.get_by_role("button", name="Export step 4800 of")).to_have_count(0)  # damaged

    watched = visit(f"/jobs/{theatre.scenes.stopped}?tab=checkpoints")
    page = watched.page
    page.get_by_role("button", name="Export step 100 of attempt 1").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Type").select_option("float16")
    dialog.get_by_label("Folder").fill("mine")
    expect(dialog.locator(".command-text")).to_contain_text(
        "trainyard export debug@a1.step-100 --dtype float16 --name mine --wait"
    )
    watched.keep("checkpoint-export")
    dialog.get_by_role("button", name="Export", exact=True).click()
    expect(dialog).to_have_count(0)
    expect(row_of(watched, "100")).to_contain_text(re.compile("(export|verify) queued"))


def test_a_fork_lists_what_stays_exact_and_starts_a_new_job(theatre: Theatre, visit: Visit) -> None:
    watched = visit(f"/jobs/{theatre.scenes.stopped}?tab=checkpoints")
    page = watched.page
    page.get_by_role("button", name="Fork step 100 of attempt 1").click()
    dialog = page.get_by_role("dialog", name="Fork step 100 of attempt 1")
    exact = dialog.get_by_role("list", name="What stays exact")
    expect(exact).to_contain_text("✓ weights")
    dialog.get_by_label("Changed settings").fill("training.seed=7")
    dialog.get_by_label("Name").fill("other-seed")
    dialog.get_by_label("Taken over").focus()
    expect(exact).to_contain_text("≠ data order")
    expect(dialog.locator(".command-text")).to_contain_text(
        "@a1.step-100 --set training.seed=7 --name other-seed"
    )
    watched.keep("checkpoint-fork")
    dialog.get_by_role("button", name="Start the new job").click()
    expect(page.get_by_role("heading", name="other-seed")).to_be_visible()


def test_a_fork_of_a_long_name_fits_a_narrow_dark_window(theatre: Theatre, visit: Visit) -> None:
    watched = visit(f"/jobs/{theatre.scenes.tale}?tab=checkpoints", theme="dark", width=420)
    page = watched.page
    page.get_by_role("button", name="Fork step 5200 of attempt 9").click()
    dialog = page.get_by_role("dialog")
    settings = "data.source=text\ndata.path=data:" + "long/" * 20
    dialog.get_by_label("Changed settings").fill(settings)
    dialog.get_by_label("Taken over").focus()
    exact = dialog.get_by_role("list", name="What stays exact")
    expect(exact).to_contain_text("data.path: absent -> data:long/")
    watched.keep("checkpoint-fork-narrow")
    assert exact.evaluate("list => list.scrollWidth - list.clientWidth") == 0
    dialog.get_by_label("Name").fill("a b")
    dialog.get_by_label("Taken over").focus()
    expect(dialog.get_by_role("alert")).to_contain_text("name: 'a b' is no name; legal: letters")
    watched.forgive("422")


def test_a_pin_is_set_and_prevents_deletion(theatre: Theatre, visit: Visit) -> None:
    watched = visit(f"/jobs/{theatre.scenes.stopped}?tab=checkpoints")
    page = watched.page
    page.get_by_role("button", name="Pin step 50 of attempt 1").click()
    page.get_by_role("dialog").get_by_role("button", name="Pin", exact=True).click()
    expect(row_of(watched, "50").first).to_be_visible()
    expect(page.get_by_role("button", name="Unpin step 50 of attempt 1")).to_be_visible()
    refused = theatre.scenes.stopped
    with theatre.api() as api:
        answer = api.delete(f"/checkpoints/{refused}.a1.step-50")
    assert answer.status_code == 409
    page.get_by_role("button", name="Unpin step 50 of attempt 1").click()
    page.get_by_role("dialog").get_by_role("button", name="Unpin", exact=True).click()
    expect(page.get_by_role("button", name="Pin step 50 of attempt 1")).to_be_visible()
