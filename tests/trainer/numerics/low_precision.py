"""Layouts under low precision: their distance from one rank of the same precision."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from tests.trainer.numerics.measure import STEPS, Course, course_of, errors_of
from tests.trainer.numerics.rows import SPEC
from tests.trainer.runs import SmallJob
from tests.trainer.stored import stored_tensors
from trainyard.spec.layout import Layout
from trainyard.training.rounding import AT_ONE, Rounding

FSDP, TP, CP = Layout(dp_shard=2), Layout(tp=2), Layout(cp=2)
# Equal keys and heads, so that half of each matrix is a multiple of 32, as mxfp8 needs.
MODEL = {"n_kv_heads": 8}


@dataclass(frozen=True)
class Precision:
    """A precision, and the tolerated distance of two layouts."""

    name: str
    sections: dict[str, dict[str, Any]]
    """Sections of the spec for it."""
    loss: float
    """Tolerance of the loss: the largest relative error over all steps."""
    weights: float
    """Tolerance of the weights after the last step: the norm of each difference, divided by the
    norm of the weight."""
    layouts: tuple[Layout, ...] = (FSDP, TP, CP)
    """Measured layouts; some precisions are emulated so slowly that a row takes minutes."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Distance:
    """The distance of a layout from one rank."""

    loss: float
    weights: float

    def within(self, precision: Precision) -> bool:
        """Whether both are within the tolerance of a precision."""
        return self.loss <= precision.loss and self.weights <= precision.weights


def _recipe(
    name: Rounding, *, weights: float, layouts: tuple[Layout, ...] = (FSDP, TP, CP)
) -> Precision:
    return Precision(name, {"quantization": {"recipe": name}}, AT_ONE[name], weights, layouts)


PRECISIONS = (
    Precision("float32", {}, loss=AT_ONE["float32"], weights=1e-4),
    Precision(
        "bfloat16",
        {"training": {"param_dtype": "bfloat16"}},
        loss=AT_ONE["bfloat16"],
        weights=1e-1,
    ),
    Precision(
        "bfloat16 sums of gradients",
        {"training": {"reduce_dtype": "bfloat16"}},
        loss=AT_ONE["bfloat16_reduce"],
        weights=1e-1,
        layouts=(FSDP,),
    ),
    Precision(
        "bfloat16 weights",
        {
            "training": {"param_dtype": "bfloat16", "weight_dtype": "bfloat16"},
            "optimizer": {"state_dtype": "bfloat16"},
        },
        loss=AT_ONE["bfloat16"],
        weights=2e-1,
    ),
    _recipe("float8_tensorwise", weights=2e-1, layouts=(FSDP, CP)),
    _recipe("float8_rowwise", weights=5e-2),
    _recipe("float8_rowwise_with_gw_hp", weights=5e-2),
    _recipe("mxfp8", weights=5e-2, layouts=(FSDP, TP)),
)


ROWS = tuple((precision, layout) for precision in PRECISIONS for layout in precision.layouts)


def measure(precision: Precision, layout: Layout) -> Distance:
    """Train a layout and one rank in the same precision, and compare losses and weights."""
    expected, before = _trained(precision.name, Layout())
    course, weights = _train(precision, layout)
    assert expected.losses[-1] < expected.losses[0] - 0.1, "the reference must learn"
    return Distance(
        loss=errors_of(course, expected).loss,
        weights=max(_apart(weights[name], tensor) for name, tensor in before.items()),
    )


@cache
def _trained(name: str, layout: Layout) -> tuple[Course, dict[str, Tensor]]:
    (precision,) = (each for each in PRECISIONS if each.name == name)
    return _train(precision, layout)


def _train(precision: Precision, layout: Layout) -> tuple[Course, dict[str, Tensor]]:
    sections = {**precision.sections, "model": MODEL}
    with tempfile.TemporaryDirectory() as folder:
        job = SmallJob(Path(folder), SPEC).changed(Path(folder), **sections)
        course = course_of(job.launch(1, layout), steps=STEPS)
        (manifest,) = job.committed().values()
        tensors = stored_tensors(job, manifest)
    weights = {name: t.float() for name, t in tensors.items() if name.startswith("model.")}
    return course, weights


def _apart(weight: Tensor, expected: Tensor) -> float:
    return float((weight - expected).norm() / expected.norm())
