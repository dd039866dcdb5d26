"""Labels: the characters of Kubernetes, and how a setting lists them."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from trainyard.base.labels import MAX_LABELS, Labels, in_words, parse_labels

LABELS: TypeAdapter[dict[str, str]] = TypeAdapter(Labels)


@pytest.mark.parametrize(
    "key", ["zone", "a", "topology.kubernetes.io/zone", "A-1_b.c", "x" * 63, "p" * 253 + "/n"]
)
@pytest.mark.parametrize("value", ["", "a", "r-7_x.Y", "v" * 63])
def test_legal_labels(key: str, value: str) -> None:
    assert parse_labels(f"{key}={value}") == LABELS.validate_python({key: value})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("zone", "'zone' is not key=value"),
        ("-zone=a", "'-zone' is no key of a label; legal: at most 63"),
        ("a/b/c=d", "'a/b/c' is no key"),
        ("x" * 64 + "=a", "is no key"),
        ("zone=a b", "zone='a b' is no value of a label; legal: at most 63"),
        ("zone=" + "v" * 64, "is no value"),
        ("zone=a,zone=b", "label 'zone' is given twice"),
        (",".join(f"k{i}=" for i in range(MAX_LABELS + 1)), "65 labels were given; at most 64"),
    ],
)
def test_malformed_labels_are_refused_with_what_is_legal(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_labels(text)
    pairs = [pair.partition("=") for pair in text.split(",")]
    if all(equals for _, equals, _ in pairs) and "twice" not in error:
        with pytest.raises(ValidationError):
            LABELS.validate_python({key: value for key, _, value in pairs})


def test_labels_in_words_are_read_back() -> None:
    assert in_words({"zone": "a", "rack": ""}) == "rack=,zone=a"
    assert parse_labels(" rack=, zone=a ,") == {"rack": "", "zone": "a"}
