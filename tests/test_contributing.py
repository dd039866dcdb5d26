"""The answers of CONTRIBUTING.md: files that exist, in few rooms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_ROOMS = 3
"""Rooms that a reader opens for an answer."""


def answers() -> dict[str, list[str]]:
    """Return the paths of each answer, by question."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.split("## Where the server does what\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| ")]
    return {
        question.strip(): [each for each in re.findall(r"`([^`]+)`", answer) if "/" in each]
        for question, answer in rows
        if question.strip() != "question"
    }


def test_ten_questions_are_answered() -> None:
    assert len(answers()) >= 10


@pytest.mark.parametrize("question", answers())
def test_an_answer_is_in_at_most_three_rooms(question: str) -> None:
    paths = answers()[question]
    assert paths
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert not missing
    rooms = {path.rsplit("/", 1)[0] for path in paths}
    assert len(rooms) <= MAX_ROOMS, sorted(rooms)
