"""A program in the submit form: its command, its variables, and the same job as a TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser import Watched
from tests.web.conftest import Theme, Visit
from tests.web.theatre import Theatre
from trainyard.client.sdk import Client
from trainyard.client.spec_file import read_spec_file
from trainyard.spec.job import parse_job_spec

SECRET = "hf_p'\"\\ é$x"
"""A value that every quoting has to survive."""
ODD_WORDS = ["train.py", "--name=it's", "two words", 'a"b', "x,y", "{checkpoint}", "\\n"]


def fill(page: Page, field: str, value: str) -> None:
    page.locator(f"#field-{field}").fill(value)


def add_variable(page: Page, name: str, value: str) -> None:
    page.get_by_role("button", name="Add variable").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label(f"Value of {name}").fill(value)


def fill_program(page: Page, name: str) -> None:
    """Fill in a program with an argument of each type and two variables."""
    fill(page, "name", name)
    page.get_by_role("radio", name="Program").check()
    fill(
        page,
        "program-command",
        r"""train.py "--name=it's" 'two words' a\"b x,y {checkpoint} '\n'""",
    )
    add = page.locator("#field-program-arguments").get_by_role("button", name="Add row")
    for place, (argument, value) in enumerate(
        {"lr": "1e-4", "on": "true", "n.x": "3", "text": '"3"', "sizes": "[1, 2]"}.items()
    ):
        add.click()
        fill(page, f"program-arguments-name-{place}", argument)
        page.get_by_label(f"Value of {argument}", exact=True).fill(value)
    fill(page, "program-code-folder", "data:mine")
    add_variable(page, "NCCL_DEBUG", "WARN")
    add_variable(page, "HF_TOKEN", SECRET)


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_a_program_is_submitted_from_the_form_as_from_its_file(
    theatre: Theatre, visit: Visit, tmp_path: Path, width: int, height: int
) -> None:
    name = f"mine-{width}"
    watched = visit("/jobs/new", width=width, height=height)
    page = watched.page
    fill_program(page, name)
    expect(page.get_by_role("complementary", name="Plan")).to_contain_text("two words")
    expect(page.locator(".field-error")).to_have_count(0)
    assert watched.overflow() <= 0
    assert watched.nameless() == []
    page.get_by_role("tab", name="TOML").click()
    file = tmp_path / "job.toml"
    file.write_text(page.get_by_label("The spec as TOML").input_value(), encoding="utf-8")
    with page.expect_request(lambda sent: sent.url.endswith("/api/v1/jobs")) as sent:
        page.get_by_role("button", name="Submit job").click()
    page.wait_for_url("**/jobs/0*")
    document = read_spec_file(file)
    assert document["program"] == {
        "command": ODD_WORDS,
        "arguments": {"lr": 1e-4, "on": True, "n.x": 3, "text": "3", "sizes": [1, 2]},
        "code": {"folder": "data:mine"},
    }
    assert document["env"] == {"NCCL_DEBUG": "WARN", "HF_TOKEN": SECRET}
    assert list(document) == ["name", "env", "program"]
    assert parse_job_spec(document) == parse_job_spec(sent.value.post_data or "")
    with Client(theatre.url, theatre.token) as yard:
        own = yard.job(page.url.rsplit("/", 1)[-1])
        other = yard.submit(document)
        assert other.spec == own.spec
        for job in (own, other):
            yard.cancel(job.id)
    watched.forgive("422")


def test_nothing_typed_is_lost_between_the_two_kinds(theatre: Theatre, visit: Visit) -> None:
    watched = visit("/jobs/new")
    page = watched.page
    fill(page, "model-size", "8B")
    fill(page, "checkpoint-interval_steps", "7")
    program = page.get_by_role("radio", name="Program")
    program.check()
    expect(page.locator("#field-model-size")).to_have_count(0)
    expect(page.locator("#field-checkpoint-interval_steps")).to_have_count(0)
    fill(page, "program-command", "x.py 'open")
    said = page.locator("#field-program-command-said")
    expect(said).to_contain_text("The quote ' is not closed.")
    fill(page, "program-command", "x.py 'op en'")
    expect(said).not_to_contain_text("quote")
    page.get_by_role("radio", name="Built-in trainer").check()
    expect(page.locator("#field-model-size")).to_have_value("8B")
    expect(page.locator("#field-checkpoint-interval_steps")).to_have_value("7")
    expect(page.locator(".command-text").last).not_to_contain_text("program")
    program.check()
    expect(page.locator("#field-program-command")).to_have_value("x.py 'op en'")
    # The field may be empty; the job stays a program.
    fill(page, "program-command", "")
    expect(program).to_be_checked()
    expect(page.locator("#field-program-command")).to_have_attribute("aria-invalid", "true")
    watched.forgive("422")


def test_rows_of_variables_are_added_removed_and_kept_while_they_are_wrong(
    theatre: Theatre, visit: Visit
) -> None:
    watched = visit("/jobs/new")
    page = watched.page
    add_variable(page, "HF_TOKEN", "first")
    value = page.get_by_label("Value of HF_TOKEN")
    expect(value).to_have_attribute("type", "password")
    page.get_by_role("button", name="Show values").click()
    expect(value).to_have_attribute("type", "text")
    command = page.locator(".command-text")
    expect(command).to_contain_text('--set "env.HF_TOKEN=$HF_TOKEN"')
    expect(command).not_to_contain_text("first")
    page.get_by_role("button", name="Add variable").click()
    page.get_by_label("Name", exact=True).fill("HF_TOKEN")
    said = page.locator("#field-env-said")
    expect(said).to_contain_text("HF_TOKEN is given twice.")
    page.get_by_role("tab", name="TOML").click()
    page.get_by_role("tab", name="Form").click()
    expect(page.get_by_label("Value of HF_TOKEN")).to_have_count(2)
    page.get_by_role("button", name="Remove HF_TOKEN").first.click()
    expect(said.locator(".field-error")).to_have_count(0)
    page.get_by_label("Name, HF_TOKEN").fill("PATH")
    expect(said).to_contain_text("PATH is set by the launcher")
    page.get_by_role("button", name="Remove PATH").click()
    expect(page.locator(".field-error")).to_have_count(0)
    watched.forgive("422")


def test_a_copy_needs_the_values_that_are_not_shown(theatre: Theatre, visit: Visit) -> None:
    document: dict[str, Any] = {
        "name": "with-secret",
        "program": {"command": ["train.py"], "arguments": {"n.x": 1}},
        "env": {"HF_TOKEN": "hf_1", "NCCL_DEBUG": "INFO"},
    }
    with Client(theatre.url, theatre.token) as yard:
        job = yard.submit(document)
        yard.cancel(job.id)
    watched = visit(f"/jobs/new?from={job.id}")
    page = watched.page
    expect(page.get_by_role("radio", name="Program")).to_be_checked()
    expect(page.locator("#field-program-command")).to_have_value("train.py")
    said = page.locator("#field-env-said")
    expect(said).to_contain_text("The value of env.HF_TOKEN is not shown here.")
    value = page.get_by_label("Value of HF_TOKEN")
    expect(value).to_have_value("")
    page.get_by_role("tab", name="TOML").click()
    text = page.get_by_label("The spec as TOML")
    assert text.input_value().startswith("# env.HF_TOKEN is not shown here")
    page.get_by_role("tab", name="Form").click()
    with page.expect_request("**/api/v1/jobs/plan") as sent:
        value.fill("hf_2")
    assert sent.value.post_data_json == document | {
        "env": {"HF_TOKEN": "hf_2", "NCCL_DEBUG": "INFO"}
    }
    expect(page.locator(".field-error")).to_have_count(0)
    watched.forgive("422")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_pictures_of_a_program(theatre: Theatre, visit: Visit, theme: Theme, width: int) -> None:
    watched: Watched = visit("/jobs/new", theme=theme, width=width, height=2200)
    page = watched.page
    page.get_by_role("radio", name="Program").check()
    expect(page.locator("#field-program-command")).to_have_attribute("aria-invalid", "true")
    watched.keep(f"submit-program-empty-{theme}-{width}")
    fill_program(page, "mine")
    expect(page.get_by_role("complementary", name="Plan")).to_contain_text("two words")
    expect(page.locator(".field-error")).to_have_count(0)
    assert watched.overflow() <= 0
    watched.keep(f"submit-program-{theme}-{width}")
    page.get_by_role("tab", name="TOML").click()
    expect(page.get_by_label("The spec as TOML")).to_be_visible()
    watched.keep(f"submit-program-text-{theme}-{width}")
    watched.forgive("422")
