"""The strategies that `trainyard prove` and `benchmarks.strategies` compare, by number of slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainyard.spec.auto import DeviceKind

LARGE_FROM = 8
"""Number of GPUs from which Llama 8B is trained instead of 1B; its float32 states take 90 GiB."""
GPU_SIZES = ("8B", "1B", "debug")
BATCH = 16
"""Sequences in a step; the number of devices if that is larger."""
CPU_MODEL: dict[str, Any] = {
    "model": {"size": "debug"},
    "data": {"max_tokens": 500_000},
    "training": {"seq_len": 128, "micro_batch_size": 2},
    "optimizer": {"lr": 3e-3},
}
COMPILED = {"compile": {"enabled": True}}
FLOAT8 = {"quantization": {"recipe": "float8_tensorwise"}}
USES = {
    "one rank": "a model that fits on one device, and the reference of the others",
    "FSDP": "the default up to 10 billion parameters: each rank holds a share of all states",
    "compile": "nearly always on GPUs: fused kernels for the same numbers",
    "float8": "wide layers on GPUs with float8: faster products, half the bytes gathered",
    "HSDP": "several nodes with a slow network between them: replicas of a sharded node",
    "2D": "above 10 billion parameters: ranks of a node also share each matrix",
    "2D async": "2D on GPUs with NVLink: products overlap with their communication",
    "3D": "above 100 billion parameters: stages on other nodes receive only activations",
}
"""When to use each strategy (docs/strategy.md)."""


@dataclass(frozen=True)
class ComparedStrategy:
    """A job, and the reason for which the devices are too few or of the wrong kind for it."""

    name: str
    document: dict[str, Any]
    words: str
    """The model and its batch."""
    missing: str | None = None

    def with_steps(self, steps: int) -> dict[str, Any]:
        """Return the job with `steps` steps, each of which it reports."""
        training = self.document["training"] | {"steps": steps, "log_every_steps": 1}
        return self.document | {
            "training": training,
            "lr_schedule": {"warmup_steps": min(5, steps // 2)},
            "checkpoint": {"interval_steps": 0, "preflight": False},
        }


def strategies(
    devices: int, *, device: DeviceKind, size: str | None = None
) -> list[ComparedStrategy]:
    """Return the strategies for a number of devices, including those that need more or others.

    The first strategy is the reference of the others.

    Args:
        devices: number of devices.
        device: kind of the devices.
        size: size of the model on GPUs; by default 8B from `LARGE_FROM` GPUs on, else 1B.
    """
    cuda = device == "cuda"
    chosen = size or ("8B" if devices >= LARGE_FROM else "1B")
    base, words = _cuda_model(chosen) if cuda else (CPU_MODEL, "debug model, 128 tokens, float32")
    batch = max(BATCH, devices)
    words += f", {batch} sequences a step"

    def strategy(name: str, ranks: int, *sections: dict[str, Any], **axes: Any) -> ComparedStrategy:
        document = {
            "name": name.replace(" ", "-"),
            **base,
            "training": base["training"] | {"global_batch_size": batch},
            "resources": {"world_size": ranks, "device": device},
            "parallelism": axes,
            "compile": {"enabled": False},
        }
        for section in sections:
            document |= section
        missing = f"needs {ranks} devices, here are {devices}" if ranks > devices else None
        if axes.get("async_tp") and not cuda:
            missing = "needs CUDA with symmetric memory"
        return ComparedStrategy(name, document, words, missing)

    flat = devices if cuda else min(4, devices)  # as many ranks as 2D has
    few = max(4, devices) if cuda else 4
    many = max(8, devices)
    # Llama 8B does not fit on one device; with only one device, FSDP is that rank.
    alone = [strategy("one rank", 1)] if not cuda or (devices > 1 and chosen != "8B") else []
    return [
        *alone,
        strategy("FSDP", flat),
        strategy("compile", flat, COMPILED),
        strategy("float8", flat, COMPILED, FLOAT8),
        strategy("HSDP", few, dp_replicate=2),
        strategy("2D", few, tp=2),
        strategy("2D async", few, COMPILED, tp=2, async_tp=True),
        strategy("3D", many, tp=2, pp=2),
    ]


def _cuda_model(size: str) -> tuple[dict[str, Any], str]:
    document = {
        "model": {"size": size},
        "training": {"seq_len": 4096, "micro_batch_size": 1, "param_dtype": "bfloat16"},
        "activation_checkpoint": {"mode": "selective"},
        "optimizer": {"lr": 3e-4},
    }
    return document, f"Llama {size}, 4,096 tokens, bfloat16"
