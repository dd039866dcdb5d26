"""The measured configurations: jobs of small models, each on every layout of up to four ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainyard.spec.auto import resolved
from trainyard.spec.job import JobSpec, parse_job_spec


@dataclass(frozen=True, eq=False)  # a spec has no hash
class Configuration:
    """A job on a layout."""

    job: str
    """Name of the job; layouts of the same job are compared with each other."""
    spec: JobSpec

    @property
    def name(self) -> str:
        """Name of job and layout."""
        return f"{self.job}, {self.spec.layout()}"


def _model(dim: int, layers: int, *, vocab: int = 2048, **fields: Any) -> dict[str, Any]:
    heads = dim // 32
    shape = {"dim": dim, "n_layers": layers, "n_heads": heads, "n_kv_heads": heads}
    return {"size": "debug", **shape, "ffn_dim": 3 * dim, "vocab_size": vocab, **fields}


def _training(tokens: int, sequences: int, *, batch: int, dtype: str = "float32") -> dict[str, Any]:
    sizes = {"seq_len": tokens, "micro_batch_size": sequences, "global_batch_size": batch}
    return {**sizes, "param_dtype": dtype}


JOBS: dict[str, dict[str, Any]] = {
    "plain": {"model": _model(256, 6), "training": _training(256, 2, batch=8)},
    "wide": {"model": _model(512, 4), "training": _training(128, 2, batch=8)},
    "deep": {"model": _model(128, 12), "training": _training(256, 2, batch=8)},
    "long": {"model": _model(192, 4, vocab=512), "training": _training(1024, 1, batch=4)},
    "large vocabulary": {
        "model": _model(192, 4, vocab=16384),
        "training": _training(128, 2, batch=8),
    },
    "grouped keys, bfloat16": {
        "model": _model(256, 4, n_kv_heads=4),
        "training": _training(256, 1, batch=8, dtype="bfloat16"),
    },
    "full recomputation": {
        "model": _model(256, 6),
        "training": _training(256, 4, batch=16),
        "activation_checkpoint": {"mode": "full"},
    },
    "selective recomputation, accumulation": {
        "model": _model(256, 4),
        "training": _training(256, 1, batch=16),
        "activation_checkpoint": {"mode": "selective"},
    },
}
LAYOUTS: tuple[tuple[int, dict[str, int]], ...] = (
    (1, {}),
    (2, {}),
    (2, {"dp_replicate": 2}),
    (2, {"tp": 2}),
    (2, {"cp": 2}),
    (2, {"pp": 2}),
    (4, {}),
    (4, {"dp_replicate": 2}),
    (4, {"tp": 2}),
    (4, {"cp": 2}),
    (4, {"pp": 2}),
    (4, {"tp": 2, "cp": 2}),
)
FEW_JOBS, FEW_LAYOUTS = ("plain",), 3


def configurations(*, few: bool = False) -> list[Configuration]:
    """Return the configurations; `few` of them to check the program.

    Jobs alternate, so that a slow minute of the machine affects all of them.
    """
    jobs = {name: JOBS[name] for name in FEW_JOBS} if few else JOBS
    layouts = LAYOUTS[:FEW_LAYOUTS] if few else LAYOUTS
    return [
        Configuration(name, _spec(document, ranks, axes))
        for ranks, axes in layouts
        for name, document in jobs.items()
    ]


def _spec(document: dict[str, Any], ranks: int, axes: dict[str, int]) -> JobSpec:
    spec = parse_job_spec(
        document
        | {
            "parallelism": axes,
            "lr_schedule": {"warmup_steps": 0},
            "resources": {"world_size": ranks, "device": "cpu"},
        }
    )
    return resolved(spec, "cpu")
