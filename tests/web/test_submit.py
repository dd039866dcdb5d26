"""The submit form in a browser: problems at their fields, the plan, the command line."""

from __future__ import annotations

import re
import tomllib

from playwright.sync_api import Locator, Page, expect

from tests.web.conftest import Visit
from tests.web.theatre import Theatre


def test_problems_stand_at_their_fields_and_open_what_is_closed(
    theatre: Theatre, visit: Visit
) -> None:
    watched = visit("/jobs/new")
    page = watched.page
    fill(page, "name", "two words")
    fill(page, "training-steps", "many")
    expect(said(page, "name")).to_contain_text("two words")
    expect(said(page, "training-steps")).to_contain_text("many")
    expect(page.locator("#field-name")).to_have_attribute("aria-invalid", "true")
    fill(page, "name", "")
    fill(page, "training-steps", "")
    expect(page.locator(".field-error")).to_have_count(0)
    # A problem that only the server finds is shown at its field too, in a closed section.
    find = page.get_by_label("Find a field")
    find.fill("staging_gib")
    fill(page, "checkpoint-staging_gib", "2")
    find.fill("")
    expect(said(page, "checkpoint-staging_gib")).to_contain_text("no rank writes shards")
    fill(page, "parallelism-dp_replicate", "3")
    expect(said(page, "parallelism-dp_replicate")).to_contain_text("does not divide world_size=1")
    page.get_by_role("button", name="checkpoint.staging_gib").click()
    expect(page.locator("#field-checkpoint-staging_gib")).to_be_focused()
    watched.forgive("422")


def test_a_ranked_layout_is_written_into_the_draft(theatre: Theatre, visit: Visit) -> None:
    page = visit("/jobs/new").page
    # In an order in which each draft is legal: a slow browser also requests intermediate plans.
    fill(page, "model-size", "8B")
    fill(page, "training-micro_batch_size", "2")
    fill(page, "resources-world_size", "8")
    fill(page, "parallelism-tp", "8")
    plan = page.get_by_role("complementary", name="Plan")
    layouts = plan.get_by_role("region", name="Layouts")
    own = layouts.locator(".ranked-own")
    expect(own).to_contain_text("TP 8")
    expect(layouts).to_contain_text("tokens/s")
    expect(layouts).to_contain_text("no run has ended on it yet")
    rows = layouts.locator("li")
    expect(own).not_to_contain_text(rows.first.locator(".ranked-name").inner_text())
    other = layouts.get_by_role("button").first
    name = other.inner_text()
    other.click()
    expect(own).to_contain_text(name)
    expect(plan.get_by_role("heading", level=2)).to_have_text(name)
    expect(plan.locator(".command-text")).not_to_contain_text("parallelism.tp=8")


def test_the_plan_follows_the_form(theatre: Theatre, visit: Visit) -> None:
    page = visit("/jobs/new").page
    plan = page.get_by_role("complementary", name="Plan")
    expect(plan.get_by_role("heading", name="1 rank")).to_be_visible()
    fill(page, "model-size", "8B")
    fill(page, "resources-world_size", "4")
    fill(page, "training-global_batch_size", "14")
    fill(page, "training-micro_batch_size", "2")
    expect(plan).to_contain_text("8.03B")
    expect(plan).to_contain_text("14 sequences in 7 micro-batches of 2")
    expect(plan).to_contain_text("2 rounds on 4 data-parallel ranks, 12.5 % idle")
    expect(plan.locator(".partition-idle")).to_have_count(1)
    expect(plan.get_by_text("fits")).to_be_visible()
    expect(plan).to_contain_text("of 140 GiB")
    expect(said(page, "training-micro_batch_size")).to_contain_text("stay idle")
    settings = (
        "model.size=8B",
        "resources.world_size=4",
        "training.global_batch_size=14",
        "training.micro_batch_size=2",
    )
    command = " \\\n  ".join(["$ trainyard submit", *(f"--set {each}" for each in settings)])
    expect(plan.locator(".command-text")).to_have_text(command)


def test_what_is_left_to_the_device_can_be_chosen(theatre: Theatre, visit: Visit) -> None:
    page = visit("/jobs/new").page
    auto = page.get_by_role("region", name="Auto")
    expect(auto).to_contain_text("compile.enabled=true")
    page.get_by_label("Find a field").fill("Compile each")
    compiled = page.locator("#field-compile-enabled")
    expect(compiled).to_have_value("auto")
    compiled.select_option("no")
    command = page.locator(".command-text")
    expect(command).to_have_text("$ trainyard submit --set compile.enabled=false")
    expect(auto).not_to_contain_text("compile.enabled")
    compiled.select_option("auto")
    page.get_by_label("Find a field").fill("log_every")
    fill(page, "training-log_every_steps", "5")
    expect(command).to_have_text("$ trainyard submit --set training.log_every_steps=5")
    fill(page, "training-log_every_steps", "auto")
    expect(command).to_have_text("$ trainyard submit --set name=job")


def test_form_and_text_are_one_draft(theatre: Theatre, visit: Visit) -> None:
    page = visit("/jobs/new").page
    fill(page, "optimizer-lr", "1e-4")
    expect(page.locator("#field-optimizer-lr")).to_have_value("1e-4")
    page.get_by_role("tab", name="TOML").click()
    text = page.get_by_label("The spec as TOML")
    assert tomllib.loads(text.input_value()) == {"optimizer": {"lr": 1e-4}}
    text.fill('tags = ["a", "b"]\n[training\nsteps = 3')
    expect(page.locator(".spec-text .field-error")).to_contain_text("Line 2, column ")
    text.fill('tags = ["a", "b"]\n[training]\nsteps = 3')
    expect(page.get_by_role("link", name="Download job.toml")).to_be_visible()
    # A spec in JSON, which has null, is legal too.
    text.fill('{"tags": ["a", "b"], "training": {"max_grad_norm": null}}')
    expect(page.get_by_role("link", name="Download job.json")).to_be_visible()
    page.get_by_role("tab", name="Form").click()
    expect(page.locator("#field-tags")).to_have_value("a, b")
    page.locator("details.section").filter(has_text="seq_len").get_by_text("more field").click()
    expect(page.locator("#field-training-max_grad_norm")).to_have_value("")
    # TOML has no null, so `--set` cannot express this.
    expect(page.locator(".command-text")).to_have_text("$ trainyard submit job.json")
    page.locator(".field", has_text="max_grad_norm").get_by_role("button", name="reset").click()
    expect(page.locator("#field-training-max_grad_norm")).to_have_value("1")


def test_a_submission_whose_answer_was_lost_makes_one_job(theatre: Theatre, visit: Visit) -> None:
    watched = visit("/jobs/new")
    page = watched.page
    fill(page, "name", "only-once")
    with theatre.api() as api:
        page.route("**/api/v1/jobs", lambda route: (route.fetch(), route.abort()))
        page.get_by_role("button", name="Submit job").click()
        # After the next successful read this notice replaces that of the unreachable server.
        expect(page.get_by_text("The server answers again. Try again.")).to_be_visible()
        page.unroute("**/api/v1/jobs")
        page.get_by_role("button", name="Submit job").click()
        page.wait_for_url("**/jobs/0*")
        made = api.get("/jobs", params={"name": "only-once"}).json()["items"]
        assert [job["id"] for job in made] == [page.url.rsplit("/", 1)[-1]]
        api.post(f"/jobs/{made[0]['id']}/cancel", json={}).raise_for_status()
    watched.forgive_lost()


def test_a_copy_starts_with_the_spec_but_not_with_its_secrets(
    theatre: Theatre, visit: Visit
) -> None:
    # The address of the text when it was JSON.
    page = visit(f"/jobs/new?from={theatre.scenes.tale}&view=json").page
    spec = tomllib.loads(page.get_by_label("The spec as TOML").input_value())
    assert spec["model"] == {"size": "8B"}
    assert spec["env"] == {"NCCL_DEBUG": "INFO"}
    assert "quantization" not in spec


def fill(page: Page, field: str, value: str) -> None:
    page.locator(f"#field-{field}").fill(value)


def said(page: Page, field: str) -> Locator:
    return page.locator(f"#field-{field}-said")


def test_what_cannot_fit_is_confirmed(theatre: Theatre, visit: Visit) -> None:
    page = visit("/jobs/new").page
    fill(page, "name", "large")
    fill(page, "model-size", "405B")
    plan = page.get_by_role("complementary", name="Plan")
    expect(plan.locator(".badge", has_text="does not fit")).to_be_visible()
    button = plan.get_by_role("button", name="Submit job")
    button.click()
    dialog = page.get_by_role("dialog", name="Submit a job that does not fit?")
    expect(dialog).to_contain_text("the fullest rank needs about")
    dialog.get_by_role("button", name="Back").click()
    expect(dialog).to_have_count(0)
    expect(page).to_have_url(re.compile("/jobs/new$"))
    button.click()
    dialog.get_by_role("button", name="Submit it").click()
    expect(page.get_by_role("heading", name="large")).to_be_visible()
