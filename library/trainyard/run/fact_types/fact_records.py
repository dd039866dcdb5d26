"""The record of the facts of a run, and its limits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from trainyard.base.names import LONGEST_TAG, MAX_TAGS
from trainyard.run.limits import Bounds, Cut
from trainyard.run.record_base import JsonRecord

MAX_FACTS = 1000
"""Values of a configuration, or of a summary."""
MAX_FACTS_BYTES = 32 * 1024
"""JSON text of a configuration, or of a summary: a report has room for both."""
LONGEST_FACT_NAME = 256
LONGEST_FACT_VALUE = 1000
EXACT = 2**53
"""Whole numbers up to it are exact in every reader of JSON."""

FactName = Annotated[str, Cut(LONGEST_FACT_NAME)]
FactValue = (
    bool
    | Annotated[int, Bounds(ge=-EXACT, le=EXACT)]
    | float
    | Annotated[str, Cut(LONGEST_FACT_VALUE)]
)
"""A value of one name. What is no JSON number, truth value or text is stored as text."""
Facts = Annotated[dict[FactName, FactValue], Bounds(max_length=MAX_FACTS)]


@dataclass(frozen=True, kw_only=True)
class RunFacts(JsonRecord):
    """`facts.json`: configuration, summary and tags of a program."""

    config: Facts = field(default_factory=dict)
    """Its configuration by flat names, such as `optimizer.lr`."""
    summary: Facts = field(default_factory=dict)
    """Its results by flat names, such as `best.accuracy`."""
    tags: Annotated[tuple[Annotated[str, Cut(LONGEST_TAG)], ...], Bounds(max_length=MAX_TAGS)] = ()
    """Words to filter by, which the job has in addition to its own."""

    def __post_init__(self) -> None:
        """Cut the texts.

        Raises:
            ValueError: a section is too large, or a number is not finite: JSON has no such number.
        """
        super().__post_init__()
        for name, section in (("config", self.config), ("summary", self.summary)):
            if (size := fact_bytes(section)) > MAX_FACTS_BYTES:
                raise ValueError(f"{name} has {size:,} bytes; legal: {MAX_FACTS_BYTES:,} at most")
            for of, value in section.items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise ValueError(f"{name} {of!r} is {value}; legal: a finite number, or text")


def fact_bytes(facts: Mapping[str, object]) -> int:
    """Return the bytes of the JSON text of some facts."""
    return sum(
        len(json.dumps((name, value), ensure_ascii=False).encode("utf-8", "backslashreplace"))
        for name, value in facts.items()
    )
