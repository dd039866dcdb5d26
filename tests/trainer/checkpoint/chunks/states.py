"""Divided tensors of small models, without ranks."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.checkpoint.chunks.divided_tensor import DividedKind, DividedTensor, Division
from trainyard.spec.layout import Layout

Stages = list[list[DividedTensor]]


def stages_of(layout: Layout, *, layers: int = 3, rows: int = 37) -> Stages:
    """Return a model divided by FSDP and tensor parallelism, with uneven rows."""
    fsdp = layout.dp_shard * layout.cp
    by_rows = (0, layout.tp, 1), (0, fsdp, layout.tp)
    by_columns = (1, layout.tp, 1), (0, fsdp, layout.tp)
    shapes: dict[str, tuple[tuple[int, ...], Sequence[tuple[int, int, int]]]] = {
        "up": ((rows, 8), by_rows),
        "down": ((rows, 24), by_columns),
        "norm": ((rows,), by_rows[1:]),
        "step": ((), ()),
    }
    stages: Stages = []
    for stage in range(layout.pp):
        tensors = [
            DividedTensor(
                f"{layer}.{name}",
                DividedKind("float32", shape, tuple(Division(*d) for d in divisions if d[1] > 1)),
            )
            for layer in range(stage * layers, (stage + 1) * layers)
            for name, (shape, divisions) in shapes.items()
        ]
        stages.append(sorted(tensors, key=lambda tensor: tensor.name))
    return stages
