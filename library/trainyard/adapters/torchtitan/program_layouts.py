"""Converts torchtitan's legal layouts to `program.layouts` of a job spec; needs no torchtitan."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from trainyard.spec.sections.program import MAX_LAYOUTS

AXES = {
    "dp_replicate": "data_parallel_replicate_degree",
    "dp_shard": "data_parallel_shard_degree",
    "cp": "context_parallel_degree",
    "tp": "tensor_parallel_degree",
    "pp": "pipeline_parallel_degree",
    "ep": "expert_parallel_degree",
}
"""Fields of torchtitan's parallelism by axis."""
SPEC_AXES = ("dp_replicate", "dp_shard", "cp", "tp", "pp")
"""Axes of a layout in a job spec. Expert parallelism regroups ranks of the other axes."""
MODEL_AXES = ("cp", "tp", "ep")
"""Axes that divide a sequence or the model; the others divide the batch, or have the degree 1."""

Degrees = Mapping[str, int]


def program_layouts(layouts: Iterable[Degrees], recipe: Degrees) -> list[Degrees]:
    """Return one layout for each set of `SPEC_AXES`, in order of preference.

    Layouts that change fewer of the recipe's degrees of `MODEL_AXES` come first; at a tie, layouts
    with fewer padded rows, then layouts with fewer replicas.

    Args:
        layouts: legal layouts, with a degree per axis and `padded_rows`.
        recipe: the recipe's own degree per axis.

    Raises:
        ValueError: there are more layouts than a job spec may have.
    """

    def preference(layout: Degrees) -> tuple[int, int, int]:
        changed = sum(layout[axis] != recipe[axis] for axis in MODEL_AXES)
        return changed, layout["padded_rows"], layout["dp_replicate"]

    found: dict[tuple[int, ...], Degrees] = {}
    for layout in sorted(layouts, key=preference):
        found.setdefault(tuple(layout[axis] for axis in SPEC_AXES), layout)
    if len(found) > MAX_LAYOUTS:
        raise ValueError(
            f"program.layouts has {len(found)} layouts: legal are up to {MAX_LAYOUTS}; list fewer "
            "world sizes"
        )
    return list(found.values())


def toml_of(layouts: Sequence[Degrees]) -> str:
    """Return `[[program.layouts]]` tables; each has the options that select its layout."""
    tables = []
    for layout in layouts:
        axes = [f"{axis} = {layout[axis]}" for axis in SPEC_AXES if layout[axis] != 1]
        options = [
            f"{json.dumps(f'parallelism.{field}')} = {layout[axis]}" for axis, field in AXES.items()
        ]
        table = "\n".join(["[[program.layouts]]", *axes, f"arguments = {{ {', '.join(options)} }}"])
        tables.append(table)
    return "\n\n".join(tables)
