"""Compares what torchtitan trained with to the spec of the job that continues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isclose

from torch import Tensor

from trainer.checkpoint.chunks.divided_tensor import DTYPES, TensorKind
from trainer.checkpoint.tensors import WEIGHTS
from trainer.errors import CheckpointError
from trainer.titan_import.titan_checkpoint import TitanCheckpoint
from trainyard.spec.job import JobSpec

GROUP = "optimizer.param_groups.tok_embeddings.weight."
"""Prefix of the settings of the group that trains the embedding, which every model has."""


def differences(
    source: TitanCheckpoint, spec: JobSpec, *, kinds: Mapping[str, TensorKind]
) -> Iterator[str]:
    """Yield each setting of AdamW that differs, and each kind of tensor that loses precision.

    The learning rate is not compared, because a schedule changes it.

    Args:
        source: checkpoint of torchtitan.
        spec: spec of the job that continues.
        kinds: kinds of the tensors of `source`, by the trainer's names.
    """
    ours = spec.optimizer
    for name, value in _stored(source).items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            yield f"optimizer.{name}: torchtitan's value is not compared, as it is no number"
        elif not isclose(value, getattr(ours, name), rel_tol=1e-6):
            yield f"optimizer.{name}: {value!r} in torchtitan, {getattr(ours, name)!r} in the spec"
    for field, dtype, are_weights in (
        ("training.weight_dtype", spec.training.weight_dtype, True),
        ("optimizer.state_dtype", ours.state_dtype, False),
    ):
        held = {
            kind.dtype
            for name, kind in kinds.items()
            if kind.shape and name.startswith(WEIGHTS) == are_weights
        }
        wider = sorted(each for each in held if DTYPES[each].itemsize > DTYPES[dtype].itemsize)
        if wider:
            yield f"{field}: {', '.join(wider)} in torchtitan, rounded to {dtype} of the spec"


def _stored(source: TitanCheckpoint) -> dict[str, object]:
    """Return the stored settings; what cannot be read is None, which is no error of the weights."""
    found: dict[str, object] = {}
    for name in ("betas", "eps", "weight_decay"):
        try:
            value = source.value(f"{GROUP}{name}")
        except CheckpointError:
            found[name] = None
            continue
        if isinstance(value, Tensor):
            value = value.tolist()
        if value is not None:
            found[name] = value
    betas = found.pop("betas", ())
    pair = betas if isinstance(betas, tuple | list) else (None, None)
    return found | dict(zip(("beta1", "beta2"), pair, strict=False))
