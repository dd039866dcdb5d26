"""Record of a run's facts, and limits of the record."""

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
"""Maximum number of facts in a configuration, and in a summary."""
MAX_FACTS_BYTES = 32 * 1024
"""Maximum size of a configuration, and of a summary, as JSON text in bytes; both fit in one
report."""
LONGEST_FACT_NAME = 256
LONGEST_FACT_VALUE = 1000
EXACT = 2**53
"""Largest integer that every JSON reader keeps exactly."""

FactName = Annotated[str, Cut(LONGEST_FACT_NAME)]
FactValue = (
    bool
    | Annotated[int, Bounds(ge=-EXACT, le=EXACT)]
    | float
    | Annotated[str, Cut(LONGEST_FACT_VALUE)]
)
"""Value of a fact. A value that is no JSON number, boolean or text is stored as text."""
Facts = Annotated[dict[FactName, FactValue], Bounds(max_length=MAX_FACTS)]


@dataclass(frozen=True, kw_only=True)
class RunFacts(JsonRecord):
    """`facts.json`: configuration, summary and tags of a program."""

    config: Facts = field(default_factory=dict)
    """Configuration, by flat name, such as `optimizer.lr`."""
    summary: Facts = field(default_factory=dict)
    """Results, by flat name, such as `best.accuracy`."""
    tags: Annotated[tuple[Annotated[str, Cut(LONGEST_TAG)], ...], Bounds(max_length=MAX_TAGS)] = ()
    """Tags by which lists of jobs can be filtered, in addition to the job's own tags."""

    def __post_init__(self) -> None:
        """Cut long texts.

        Raises:
            ValueError: a section is too large, or a number is not finite, which is illegal in JSON.
        """
        super().__post_init__()
        for name, section in (("config", self.config), ("summary", self.summary)):
            if (size := fact_bytes(section)) > MAX_FACTS_BYTES:
                raise ValueError(f"{name} has {size:,} bytes; legal: {MAX_FACTS_BYTES:,} at most")
            for of, value in section.items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise ValueError(f"{name} {of!r} is {value}; legal: a finite number, or text")


def fact_bytes(facts: Mapping[str, object]) -> int:
    """Return the size of facts as JSON text, in bytes."""
    return sum(
        len(json.dumps((name, value), ensure_ascii=False).encode("utf-8", "backslashreplace"))
        for name, value in facts.items()
    )
