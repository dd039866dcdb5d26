"""Sections `resources` and `env`: slots of a job, and environment variables of its ranks."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from trainyard.base.labels import Labels
from trainyard.base.model_base import Ranks, SpecModel, Text
from trainyard.base.names import NAME
from trainyard.spec.environment import (
    ALLOWED,
    ENV_NAME,
    SecretReference,
    checked_environment,
)


def _kind_of(given: Any) -> str:
    return "of a secret" if isinstance(given, dict | SecretReference) else "of a value"


# A discriminator, so that an error is about the given kind alone. Its tags are no identifiers, so
# that no error points at them.
_Value = Annotated[
    Annotated[Text, Field(max_length=4096), Tag("of a value")]
    | Annotated[SecretReference, Tag("of a secret")],
    Discriminator(_kind_of),
]
Env = Annotated[
    dict[str, _Value],
    AfterValidator(checked_environment),
    Field(
        max_length=100,
        json_schema_extra={
            "propertyNames": {"pattern": f"^{ENV_NAME.pattern}$", "examples": sorted(ALLOWED)},
            "masked": True,
        },
    ),
]
"""Environment variables. The JSON Schema has `masked`, because views mask all values except the
legal values of variables in the schema's examples."""


PRIORITY_CLASSES = {"low": -50, "normal": 0, "high": 50}
"""Priorities by name."""
LOWEST_PRIORITY, HIGHEST_PRIORITY = -100, 100


def priority_words(priority: int) -> str:
    """Return the name of a priority, such as `high`; without a name, its number."""
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


# A named priority is stored as its number, so queries and other versions need no table of names.
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
"""A priority in the queue: an integer, or a name such as `high`."""


class ResourcesSection(SpecModel):
    """Slots of the job. A slot is a GPU, a MIG instance, or a CPU rank on a node without GPUs."""

    world_size: Ranks = 1
    """Number of slots; a job that is not elastic starts only once all of them are free."""
    min_world_size: Ranks | None = None
    """Minimum number of slots of an elastic job. The job starts with this number if no more slots
    are free, and shrinks down to it when a node is lost. Defaults to `world_size` if only
    `max_world_size` is given."""
    max_world_size: Ranks | None = None
    """Maximum number of slots of an elastic job. The job grows up to this number while no other job
    needs the slots. Defaults to `world_size` if only `min_world_size` is given."""
    shrink_after_seconds: (
        Annotated[float, Field(gt=0, le=10**8, json_schema_extra={"unit": "s"})] | None
    ) = None
    """Time without a report from a node after which a job continues without the node; only for
    elastic jobs and jobs with spare nodes. The job never continues before the node's lease has
    expired. If this field is absent, the job continues as soon as the lease has expired."""
    nodes: Annotated[int, Field(ge=1, le=8192)] | None = None
    """Number of nodes, each with the same number of slots. If absent, the job runs on as few nodes
    as possible, with the same number of slots on each node if the free slots allow this."""
    spare_nodes: Annotated[int, Field(ge=0, le=100)] = 0
    """Number of nodes to reserve in addition to `nodes`, each with the same number of slots, as
    replacements for lost nodes. The first start waits for all spare nodes; a retry may start with
    fewer."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Kind of slot. `auto` allows either kind, but all slots have the same kind."""
    priority: Priority = 0
    """Priority in the queue. Jobs with a higher priority start first; among equal priorities the
    oldest job starts first. `low` is -50, `normal` is 0, `high` is 50. The priority can be changed
    while the job waits or runs."""
    max_runtime_seconds: (
        Annotated[float, Field(gt=0, le=10**8, json_schema_extra={"unit": "s"})] | None
    ) = None
    """Maximum run time of one attempt, from its placement. At this time the attempt saves and
    leaves. If the attempt saved a later step than the one at which it began, the job waits for
    another attempt; otherwise the job ends. An attempt with this limit may run on slots that a
    larger waiting job keeps, if the limit ends the attempt before the larger job can start."""
    node_selector: Labels = Field(default_factory=dict)
    """Labels that each node of the job must have, such as `zone` with the value `a`."""
    exclude_nodes: Annotated[
        tuple[Annotated[str, Field(pattern=NAME, max_length=100)], ...],
        Field(strict=False, max_length=100),
    ] = ()
    """Names of nodes on which the job must not run."""

    @model_validator(mode="after")
    def _complete_range(self) -> Self:
        """Set the missing limit of an elastic job to `world_size`.

        The limit is stored now, because `world_size` changes with each later change of size.
        """
        ends = (self.min_world_size, self.max_world_size)
        for field, value in zip(("min_world_size", "max_world_size"), ends, strict=True):
            if value is None and ends != (None, None):
                object.__setattr__(self, field, self.world_size)
        return self

    @property
    def size_range(self) -> tuple[int, int] | None:
        """Minimum and maximum number of slots of an elastic job; None for a job of a fixed size."""
        if self.min_world_size is None or self.max_world_size is None:
            return None
        return self.min_world_size, self.max_world_size

    @property
    def continues_without_node(self) -> bool:
        """Whether the job continues without a silent node, on a spare node or on fewer slots."""
        return self.size_range is not None or self.spare_nodes > 0
