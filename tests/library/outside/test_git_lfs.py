"""What is a pointer of Git LFS, and what only resembles one."""

from __future__ import annotations

import pytest

from trainyard.outside.git_lfs import pointer_problem

DIGEST = "4d" * 32
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{DIGEST}\nsize 12345\n"


@pytest.mark.parametrize(
    "text",
    [
        POINTER,
        POINTER.rstrip(),
        POINTER.replace("\n", "\r\n"),
        "\ufeff" + POINTER,
        POINTER.replace("git-lfs.github.com", "hawser.github.com"),
        POINTER.replace("oid", f"ext-0-foo sha256:{DIGEST}\noid"),
        POINTER.replace("size 12345", f"size {2**62}"),
    ],
)
def test_pointers(text: str) -> None:
    problem = pointer_problem(text.encode())
    assert problem is not None
    assert "git lfs pull" in problem


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version https://git-lfs.github.com/spec/v1\n",
        POINTER + "and more words\n",
        f"# About pointers\n{POINTER}",
        POINTER + " " * 2000,
        POINTER.replace("4d", "xx"),
        POINTER.replace("https://git-lfs.github.com", "https://example.org"),
        "x" * 130,
        ("a a\n" * 250)[:1000],
    ],
)
def test_other_texts(text: str) -> None:
    assert pointer_problem(text.encode()) is None
