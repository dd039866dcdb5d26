"""The pages: short enough for one subject each, and their links lead somewhere."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
MAX_LINES = 250
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]*)(?:#([^)\s]+))?\)")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        repeated = sum(each == slug or each.startswith(f"{slug}-") for each in anchors)
        anchors.add(slug if slug not in anchors else f"{slug}-{repeated}")
    return frozenset(anchors)


@pytest.mark.parametrize("page", [p for p in PAGES if "docs" in p.parts], ids=name)
def test_a_page_has_one_subject(page: Path) -> None:
    lines = len(page.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, "divide it by subject"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_a_page_and_a_heading(page: Path) -> None:
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    broken = []
    for target, anchor in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        found = (page.parent / target).resolve() if target else page
        if not found.exists():
            broken.append(f"{target} does not exist")
        elif anchor and found.suffix == ".md" and anchor not in anchors_of(found):
            broken.append(f"{target}#{anchor} is no heading")
    assert broken == []


def test_each_test_that_the_comparison_names_exists() -> None:
    page = ROOT / "docs" / "comparison.md"
    named = re.findall(r"\[`(test_\w+)`\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    assert len(named) > 10
    for test, target in named:
        assert f"def {test}(" in (page.parent / target).read_text(encoding="utf-8"), test
