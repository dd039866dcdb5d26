"""Labels of nodes, and selectors of jobs, with keys and values as in Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

_PART = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
KEY = rf"^([A-Za-z0-9]([A-Za-z0-9._-]{{0,251}}[A-Za-z0-9])?/)?{_PART}$"
VALUE = rf"^({_PART})?$"
LEGAL_VALUE = "at most 63 letters, digits, '-', '_' and '.', with a letter or a digit at both ends"
LEGAL_KEY = f"{LEGAL_VALUE}, after a prefix and '/' where there is one"
MAX_LABELS = 64
"""Maximum number of labels on a node, and maximum number of labels in a selector."""

FABRIC = "fabric"
"""Key of the label for the network of a node; all nodes of an attempt have the same value."""
BLOCK, RACK = "block", "rack"
"""Keys of the labels for a node's location. Placement keeps an attempt in one block and one rack,
unless that would take more nodes."""


def checked_labels(labels: Mapping[str, str | None]) -> Mapping[str, str | None]:
    """Return the labels unchanged if they are well-formed; a value may be None.

    Raises:
        ValueError: a key or value is malformed; the error contains it.
    """
    for key, value in labels.items():
        if not re.fullmatch(KEY, key):
            raise ValueError(f"{key!r} is no key of a label; legal: {LEGAL_KEY}")
        if value is not None and not re.fullmatch(VALUE, value):
            raise ValueError(f"{key}={value!r} is no value of a label; legal: {LEGAL_VALUE}")
    return labels


Labels = Annotated[dict[str, str], AfterValidator(checked_labels), Field(max_length=MAX_LABELS)]
"""Label values, by key."""
ChangedLabels = Annotated[
    dict[str, str | None],
    AfterValidator(checked_labels),
    Field(min_length=1, max_length=2 * MAX_LABELS),
]
"""New label values, by key; null removes a label."""


def parse_labels(text: str) -> dict[str, str]:
    """Parse labels such as `zone=a,rack=r7`.

    Raises:
        ValueError: a pair lacks `=`, a key or value is malformed, a key occurs twice, or there are
            more than `MAX_LABELS` labels.
    """
    labels: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"{pair!r} is not key=value, as in zone=a")
        if key in labels:
            raise ValueError(f"label {key!r} is given twice")
        labels[key] = value
    checked_labels(labels)
    if len(labels) > MAX_LABELS:
        raise ValueError(f"{len(labels)} labels were given; at most {MAX_LABELS} are legal")
    return labels


def in_words(labels: Mapping[str, str]) -> str:
    """Return labels as text such as `rack=r7,zone=a`, sorted by key."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
