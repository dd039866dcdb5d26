"""The strategies that `benchmarks.strategies` compares, for the devices present."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from trainyard.training.known_devices import Slot

LARGE_FROM = 8
"""Number of GPUs from which Llama 8B is trained instead of 1B; its float32 states take 90 GiB."""
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


@dataclass(frozen=True)
class Strategy:
    """A job, or the reason that this machine has too few devices for it."""

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


def strategies_here() -> list[Strategy]:
    """Return the strategies for this machine; the first one is the reference."""
    if torch.cuda.is_available():
        return strategies(torch.cuda.device_count(), cuda=True)
    return strategies(8, cuda=False)  # ranks share the cores


def strategies(devices: int, *, cuda: bool) -> list[Strategy]:
    """Return the strategies for a number of devices, including those that need more."""
    base, words = _cuda_model(devices) if cuda else (CPU_MODEL, "debug model, 128 tokens, float32")
    batch = max(BATCH, devices)
    words += f", {batch} sequences a step"
    kind = "cuda" if cuda else "cpu"

    def strategy(name: str, ranks: int, *sections: dict[str, Any], **axes: Any) -> Strategy:
        document = {
            "name": name.replace(" ", "-"),
            **base,
            "training": base["training"] | {"global_batch_size": batch},
            "resources": {"world_size": ranks, "device": kind},
            "parallelism": axes,
            "compile": {"enabled": False},
        }
        for section in sections:
            document |= section
        short = f"needs {ranks} devices, here are {devices}" if ranks > devices else None
        return Strategy(name, document, words, short)

    flat = devices if cuda else 4  # as many ranks as 2D has
    few = max(4, devices) if cuda else 4
    many = max(8, devices)
    # Llama 8B does not fit on one device; with only one device, FSDP is that rank.
    alone = [strategy("one rank", 1)] if not cuda or 1 < devices < LARGE_FROM else []
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


def slots_here() -> list[Slot]:
    """Return the slots of this machine, for the planner."""
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return [Slot("cuda", properties.name, properties.total_memory)]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return [Slot("cpu", "CPU", memory)]


def _cuda_model(devices: int) -> tuple[dict[str, Any], str]:
    size = "8B" if devices >= LARGE_FROM else "1B"
    document = {
        "model": {"size": size},
        "training": {"seq_len": 4096, "micro_batch_size": 1, "param_dtype": "bfloat16"},
        "activation_checkpoint": {"mode": "selective"},
        "optimizer": {"lr": 3e-4},
    }
    return document, f"Llama {size}, 4,096 tokens, bfloat16"
