"""Sections `resources` and `env`: slots of a job, and environment variables of its ranks."""

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
"""Environment variables; `masked` in the JSON Schema: views show values only of the examples."""


PRIORITY_CLASSES = {"low": -50, "normal": 0, "high": 50}
"""Named priorities."""
LOWEST_PRIORITY, HIGHEST_PRIORITY = -100, 100


def priority_words(priority: int) -> str:
    """Return the name of a priority, such as `high`, or its number if it has no name."""
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


# A class is stored as its number, so workers of any version and queries need no table of names.
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
    """Slots: a slot is a GPU, or a CPU rank on a node without GPUs."""

    world_size: Ranks = 1
    """Number of slots; the job starts only when all of them are free."""
    min_world_size: Ranks | None = None
    """Fewest slots of an elastic job. It starts on this number if no more are free, and shrinks to
    it when a node is lost. Defaults to `world_size` if only `max_world_size` is given."""
    max_world_size: Ranks | None = None
    """Most slots of an elastic job. It grows to this number when no other job needs the slots.
    Defaults to `world_size` if only `min_world_size` is given."""
    shrink_after_seconds: (
        Annotated[float, Field(gt=0, le=10**8, json_schema_extra={"unit": "s"})] | None
    ) = None
    """Silence of a node after which an elastic job, or one with spare nodes, continues without it.
    It never continues before the node's lease has expired; when absent, it continues then."""
    nodes: Annotated[int, Field(ge=1, le=8192)] | None = None
    """Number of nodes over which the slots are spread evenly. When absent, the job runs on as few
    nodes as can hold it, evenly if that many nodes allow it."""
    spare_nodes: Annotated[int, Field(ge=0, le=100)] = 0
    """Nodes to reserve in addition to `nodes`, with as many slots each; they replace lost nodes.
    The job starts with all of them; a retry also starts with fewer."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Kind of slot; `auto` takes either kind, but never a mixture."""
    priority: Priority = 0
    """Queued jobs of higher priority start first; the oldest first among equals. `low` is -50,
    `normal` 0, `high` 50. It can be changed while the job waits or runs."""
    max_runtime_seconds: (
        Annotated[float, Field(gt=0, le=10**8, json_schema_extra={"unit": "s"})] | None
    ) = None
    """Longest run time of one attempt, counted from its placement. Then the attempt saves and
    leaves. The job waits for another attempt if a further step was saved, else it ends. A job with
    a bound can start on slots that wait for a larger job, if it ends before that job can start."""
    node_selector: Labels = Field(default_factory=dict)
    """Labels that each node must have, such as `zone` with the value `a`."""
    exclude_nodes: Annotated[
        tuple[Annotated[str, Field(pattern=NAME, max_length=100)], ...],
        Field(strict=False, max_length=100),
    ] = ()
    """Names of nodes on which the job never runs."""

    @model_validator(mode="after")
    def _complete_range(self) -> Self:
        """Set the missing limit of a range of sizes to `world_size`.

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
