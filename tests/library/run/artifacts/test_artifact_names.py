"""Legal names and kinds of artifacts, and the closest ones to any text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.run.artifacts.artifact_records import (
    check_kind,
    check_name,
    legal_artifact_name,
    legal_kind,
)


@pytest.mark.parametrize(
    ("text", "legal"),
    [
        ("/a//b/", "a/b"),
        ("..", "unnamed"),
        ("", "unnamed"),
        ("a\nb\\c", "a_b_c"),
        ("x" * 300, "x" * 200),
        ("x" * 198 + "/..y", "x" * 198),
        ("x" * 199 + "\u3000y", "x" * 199),
    ],
)
def test_a_text_becomes_the_closest_legal_name(text: str, legal: str) -> None:
    assert legal_artifact_name(text) == legal


@given(
    st.text(st.sampled_from("a. /\\\n\u3000\ud800"), max_size=12),
    st.integers(1, 12),
)
def test_what_becomes_a_legal_name_or_kind_is_one(text: str, longest: int) -> None:
    """A legal one stays as it is, so that wandb and the session store the same names."""
    name, kind = legal_artifact_name(text, longest=max(longest, len("unnamed"))), legal_kind(text)
    assert check_name(name) == name == legal_artifact_name(name)
    assert check_kind(kind) == kind == legal_kind(kind)
    assert len(name) <= max(longest, len("unnamed"))


@pytest.mark.parametrize("kind", ["image", "-a", "_.-", "a b", "x" * 70, "ä"])
def test_kinds_that_are_not_legal_become_legal(kind: str) -> None:
    legal = legal_kind(kind)
    assert check_kind(legal) == legal
    assert legal != kind
