"""The generated files: fresh in the repository, and correctly written and checked."""

from pathlib import Path

import pytest

from tools.generate import GENERATED, ROOT, main, stale_files


def test_every_generated_file_is_fresh() -> None:
    assert stale_files(ROOT) == [], "refresh with `python -m tools.generate`"


def test_check_names_what_is_stale_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check"], root=tmp_path) == 1
    said = capsys.readouterr().err
    assert all(f"{name} is stale" in said for name in GENERATED)
    assert list(tmp_path.iterdir()) == []


def test_writing_makes_the_check_pass_and_touches_only_what_is_stale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], root=tmp_path) == 0
    assert main(["--check"], root=tmp_path) == 0
    first, *_ = GENERATED
    (tmp_path / first).write_text("something else", encoding="utf-8")
    capsys.readouterr()
    assert stale_files(tmp_path) == [first]
    assert main([], root=tmp_path) == 0
    assert capsys.readouterr().out == f"wrote {first}\n"
