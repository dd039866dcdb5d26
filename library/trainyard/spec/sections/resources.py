"""Sections `resources` and `env`: the slots of a job, and the environment of its ranks."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from trainyard.base.labels import Labels
from trainyard.base.model_base import Ranks, SpecModel, Text
from trainyard.base.names import NAME
from trainyard.spec.environment import ALLOWED, ENV_NAME, checked_environment

Env = Annotated[
    dict[str, Annotated[Text, Field(max_length=4096)]],
    AfterValidator(checked_environment),
    Field(
        max_length=100,
        json_schema_extra={
            "propertyNames": {"pattern": f"^{ENV_NAME.pattern}$", "examples": sorted(ALLOWED)},
            "masked": True,
        },
    ),
]
"""In the JSON Schema: `masked` where views show the values of the examples' names alone."""


PRIORITY_CLASSES = {"low": -50, "normal": 0, "high": 50}
"""Priorities that have a name."""
LOWEST_PRIORITY, HIGHEST_PRIORITY = -100, 100


def priority_words(priority: int) -> str:
    """Return the name of a priority, such as `high`, or the number of one without a name."""
    names = {number: name for name, number in PRIORITY_CLASSES.items()}
    return names.get(priority, str(priority))


def _of_class(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    if given not in PRIORITY_CLASSES:
        raise ValueError(
            f"{given!r} is no priority: use {', '.join(PRIORITY_CLASSES)}, or an integer from "
            f"{LOWEST_PRIORITY} to {HIGHEST_PRIORITY}"
        )
    return PRIORITY_CLASSES[given]


# A class is stored as its number: workers of any version and queries need no table of names.
Priority = Annotated[
    int,
    Field(ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY),
    BeforeValidator(_of_class),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": LOWEST_PRIORITY, "maximum": HIGHEST_PRIORITY},
                {"type": "string", "enum": list(PRIORITY_CLASSES)},
            ]
        },
        mode="validation",
    ),
]
"""A priority in the queue: a number, or the name of a class."""


class ResourcesSection(SpecModel):
    """Slots: one is a GPU, or on a node without GPUs one CPU rank."""

    world_size: Ranks = 1
    """Slots that the job runs on, all at once."""
    min_world_size: Ranks | None = None
    """Fewest slots of an elastic job: it starts on them where more are not free, and shrinks to
    them when a node is lost. With `max_world_size` alone it is `world_size`."""
    max_world_size: Ranks | None = None
    """Most slots of an elastic job: it grows to them when no other job needs them. With
    `min_world_size` alone it is `world_size`."""
    shrink_after_seconds: (
        Annotated[float, Field(gt=0, le=10**8, json_schema_extra={"unit": "s"})] | None
    ) = None
    """Silence of a node after which an elastic job, or one with spare nodes, continues without it,
    never before the node's lease has run out; when absent as soon as it has."""
    nodes: Annotated[int, Field(ge=1, le=8192)] | None = None
    """Number of nodes over which the slots are spread evenly; when absent as few as fit, evenly
    where so many nodes allow it."""
    spare_nodes: Annotated[int, Field(ge=0, le=100)] = 0
    """Nodes that are reserved next to `nodes`, each with as many slots as one of them, and take the
    place of lost ones. The job starts with all of them; a retry also starts with fewer."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Kind of slot; `auto` takes what the nodes offer, but never a mixture."""
    priority: Priority = 0
    """Queued jobs of higher priority start first; among equals the oldest. `low` is -50, `normal`
    0, `high` 50. It can be changed while the job waits or runs."""
    max_runtime_seconds: (
        Annotated[float, Field(gt=0, le=10**8, json_schema_extra={"unit": "s"})] | None
    ) = None
    """Longest run time of one attempt, from its placement on. Then it saves and leaves, and the job
    waits for another attempt where a further step was saved, else it ends. A job with a bound can
    start on slots that a larger one waits for, if it is over before that one can start."""
    node_selector: Labels = Field(default_factory=dict)
    """Labels that each node must have, such as `a` for `zone`."""
    exclude_nodes: Annotated[
        tuple[Annotated[str, Field(pattern=NAME, max_length=100)], ...],
        Field(strict=False, max_length=100),
    ] = ()
    """Names of nodes that it never runs on."""

    @model_validator(mode="after")
    def _complete_range(self) -> Self:
        """Set the other end of a range of which one is given.

        The number is stored, because `world_size` follows each change of size.
        """
        ends = (self.min_world_size, self.max_world_size)
        for field, value in zip(("min_world_size", "max_world_size"), ends, strict=True):
            if value is None and ends != (None, None):
                object.__setattr__(self, field, self.world_size)
        return self

    @property
    def size_range(self) -> tuple[int, int] | None:
        """Fewest and most slots of an elastic job; None for a job of a fixed size."""
        if self.min_world_size is None or self.max_world_size is None:
            return None
        return self.min_world_size, self.max_world_size

    @property
    def continues_without_node(self) -> bool:
        """Whether the job continues without a silent node: on another one, or on fewer slots."""
        return self.size_range is not None or self.spare_nodes > 0
