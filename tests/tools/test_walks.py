"""The walks through the code: every link holds, and a broken link is named."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tools.walks.__main__ import Walk, broken_links, main, read_walks
from tools.walks.syntax import ROOT, definitions

WALKS = read_walks()


@pytest.mark.parametrize("key", WALKS)
def test_every_link_of_a_walk_is_in_the_syntax_tree(key: str) -> None:
    assert broken_links(WALKS[key]) == []


@pytest.mark.parametrize("key", WALKS)
def test_no_walk_is_longer_than_its_limits(key: str) -> None:
    walk = WALKS[key]
    assert len(walk.files) <= walk.most_files, walk.files
    assert walk.most_names is None or len(walk.names) <= walk.most_names, walk.names


def test_the_page_of_the_life_of_a_job_lists_the_files_of_a_resume() -> None:
    page = (ROOT / "docs" / "lifecycle-resume.md").read_text(encoding="utf-8")
    section = page.partition("## A resume, file by file\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| .* \| `(.+)` \|$", section, flags=re.MULTILINE) == WALKS["resume"].files


def test_a_link_that_is_not_there_is_named() -> None:
    walk = WALKS["crash"]
    first, second = walk.hops[:2]
    gone = replace(first, symbol="no_such_function")
    unnamed = replace(first, name="no_such_name")
    apart = Walk("", 9, None, (first, replace(WALKS["metric"].hops[0], via=None)))
    assert broken_links(replace(walk, hops=(gone, second))) == [
        f"{first.file} defines no no_such_function"
    ]
    assert broken_links(replace(walk, hops=(unnamed, second))) == [
        f"{first.file}::{first.symbol} has no no_such_name"
    ]
    assert broken_links(apart) == ["neither failure_of nor Loop._train mentions the other one"]


def test_a_walk_that_is_too_long_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    walk = WALKS["crash"]
    most = len(walk.files)
    for allowed, status in ((most, 0), (most - 1, 1)):
        found = {"crash": replace(walk, most_files=allowed)}
        monkeypatch.setattr("tools.walks.__main__.read_walks", lambda found=found: found)
        assert main(["crash"]) == status
    assert f"{most} files; at most {most - 1} files" in capsys.readouterr().out


def test_definitions_of_both_languages_are_read() -> None:
    assert "remedy" in definitions("library/trainyard/run/failures.py")["Failure"]
    assert "remedy" in definitions("web/src/features/job/Notices.tsx")["FailureNotice"]
