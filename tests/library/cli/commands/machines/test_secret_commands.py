"""`secrets`: values come from standard input, and no command shows one."""

from __future__ import annotations

import json

import pytest

from tests.library.conftest import Run, Yard
from trainyard.protocol.user_accounts.secret_views import MAX_SECRET_BYTES

VALUE = "tell-no-one-of-this"
PROJECT = ("--project", "default")


@pytest.fixture(autouse=True)
def _key(yard: Yard) -> None:
    yard.harness.context.secrets.create()


def test_a_secret_is_set_listed_and_removed(run: Run) -> None:
    made = run("secrets", "set", "hf", *PROJECT, stdin=f"{VALUE}\n")
    assert made.exit_code == 0, made.output
    again = run("secrets", "set", "hf", *PROJECT, stdin=f"{VALUE}2")
    assert VALUE not in made.output + again.output
    listed = json.loads(run("secrets", *PROJECT, "--json").stdout)
    assert [(each["name"], each["versions"]) for each in listed] == [("hf", [1, 2])]
    shown = run("secrets", *PROJECT).stdout.splitlines()
    assert shown[0].split() == ["NAME", "VERSION", "CHANGED", "BY"]
    assert shown[1].split()[:2] == ["hf", "2"]
    assert "No secrets." in run("secrets", "remove", "hf", *PROJECT).stdout
    missing = run("secrets", "remove", "hf", *PROJECT)
    assert missing.exit_code == 2
    assert "no secret has the name 'hf'" in missing.output


def test_a_line_break_at_the_end_is_no_part_of_a_value(yard: Yard, run: Run) -> None:
    assert "fewer than 8 bytes" in run("secrets", "set", "a", *PROJECT, stdin="1234567\n").stderr
    assert "fewer" not in run("secrets", "set", "b", *PROJECT, stdin="1234567\n\n").stderr
    with yard.connect() as connection:
        names = [each.name for each in connection.secrets("default")]
    assert names == ["a", "b"]


@pytest.mark.parametrize(("end", "kept"), [("\r\n", 0), ("\r", 1), ("\n\r", 2), ("\r\r\n", 1)])
def test_only_a_line_break_is_removed(run: Run, end: str, kept: int) -> None:
    """The warning counts the bytes of the value."""
    value = "x" * (7 - kept)
    assert "fewer" in run("secrets", "set", "a", *PROJECT, stdin=value + end).stderr
    assert "fewer" not in run("secrets", "set", "a", *PROJECT, stdin=f"x{value}{end}").stderr


def test_a_value_among_the_arguments_is_refused_and_not_repeated(run: Run) -> None:
    for words in (("set", "hf", VALUE), ("set", "hf", VALUE, VALUE), ("sett", "hf", VALUE)):
        refused = run("secrets", *words, *PROJECT)
        assert refused.exit_code == 2
        assert VALUE not in refused.output + refused.stderr
    assert "No secrets." in run("secrets", *PROJECT).stdout


def test_a_value_that_is_too_long_or_empty_is_refused(run: Run) -> None:
    cut = "€" * (MAX_SECRET_BYTES // 3 + 10)  # the last character that is read is not whole
    for value in ("x" * (MAX_SECRET_BYTES + 10), cut, "x" + cut, "xx" + cut, "", "\n"):
        refused = run("secrets", "set", "hf", *PROJECT, stdin=value)
        assert refused.exit_code == 2
        assert "  value  " in refused.stderr


def test_the_built_in_user_has_no_own_secrets(run: Run) -> None:
    refused = run("secrets", "set", "hf", stdin=VALUE)
    assert refused.exit_code == 1
    assert "store a secret of a project" in refused.output + refused.stderr
    assert "No secrets." in run("secrets").stdout


def test_a_spec_refers_to_a_secret(run: Run) -> None:
    run("secrets", "set", "hf", *PROJECT, stdin=VALUE)
    planned = run("plan", "--set", "env.HF_TOKEN.secret=hf", "--set", "name=a")
    assert planned.exit_code == 0 or "TRAINYARD_ALLOW_CODE" in planned.output + planned.stderr
